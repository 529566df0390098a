"""Builds gpuprov-node-health, a single file with all modules that it needs.

The role node_health installs the whole program. A burn-in stores the part it needs in its spool, where
updates do not change it. The file is a zip archive that Python can run (zipapp). Python would compile a zip's
modules at each start, so the program, which runs every minute, unpacks itself once into a folder of root's,
where Python caches the bytecode; `shiv` does the same. The build is reproducible, so that a checksum
identifies the right program on a node.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from provision import atomic_file, paths, shipped

_ENTRIES = {"health": "provision.checks.on_node.entry", "burnin": "provision.node.burnin.entry"}
_DATA = (
    "xid",
    "amdgpu",
    "sxid",
    "nvlink",
    "kernel_log",
    "host_lines",
    "fabric_lines",
    "majority",
    "host_limits",
    "port_limits",
    "nccl_environment",
    "debounce",
    "thresholds/metrics",
)
_NOT_ON_NODES = ("provision.yamlfile",)  # its data is shipped as JSON
_TIME = (1980, 1, 1, 0, 0, 0)  # time stamp of every member, for reproducible builds
_PYTHON = "#!/usr/bin/python3 -IS\n"

# The program is unpacked to a temporary folder that is then renamed, so that readers see all of it or
# nothing. If no disk is writable, a folder in memory serves this run.
_MAIN = '''\
"""Runs the program from the folder it has unpacked itself to."""

import os
import shutil
import sys
import tempfile
import zipfile

HOME = "/var/lib/gpuprov/node-health"
NAME = "program-%s"


def unpacked():
    for home in (HOME, None):
        try:
            return unpack(home) if home else unpack_for_once()
        except OSError as error:
            reason = error
    sys.exit("gpuprov-node-health: cannot be unpacked: %%s" %% reason)


def unpack(home):
    found = os.path.join(home, NAME)
    if os.path.isdir(found) and os.lstat(found).st_uid == os.geteuid():
        return found
    os.makedirs(home, 0o700, exist_ok=True)
    if os.stat(home).st_uid != os.geteuid():
        raise PermissionError(13, "not this user's folder", home)
    beside = tempfile.mkdtemp(prefix=".new-", dir=home)
    try:
        extract(beside)
        os.rename(beside, found)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        if not os.path.isdir(found):
            raise
    for name in os.listdir(home):
        if name.startswith("program-") and name != NAME:
            shutil.rmtree(os.path.join(home, name), ignore_errors=True)
    return found


def unpack_for_once():
    import atexit

    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    folder = tempfile.mkdtemp(prefix="gpuprov-node-health-", dir=memory)
    atexit.register(shutil.rmtree, folder, True)
    extract(folder)
    return folder


def extract(folder):
    with zipfile.ZipFile(sys.path[0] if os.path.isfile(sys.path[0]) else sys.argv[0]) as archive:
        archive.extractall(folder)
    os.chmod(folder, 0o755)


if sys.argv[1:2] == ["burnin"]:
    # From the archive itself: it starts seldom, needs no Python 3.9, and ends with its spool.
    from provision.node.burnin.entry import burnin

    sys.exit(burnin(sys.argv[2:]))
if sys.version_info < (3, 9):
    sys.exit("gpuprov-node-health: needs Python 3.9 or newer, this is %%d.%%d" %% sys.version_info[:2])
sys.path[0] = unpacked()
from provision.checks.on_node.entry import main  # noqa: E402

sys.exit(main())
'''


def sha256() -> str:
    """Return the checksum of the program, as `sha256sum` prints it."""
    return hashlib.sha256(build()).hexdigest()


def file() -> Path:
    """Return the program's path on this machine; build it if it is missing or stale. Raises OSError."""
    path = paths.state_home() / "node-health" / sha256()[:16] / "gpuprov-node-health"
    if not path.is_file() or path.read_bytes() != build():
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.write(path, build())
    return path


@functools.cache
def build(part: str = "") -> bytes:
    """Return the program's bytes; `part` "burnin" builds only what its subcommand `burnin` needs."""
    members = dict(_modules([_ENTRIES[part]] if part else _ENTRIES.values()))
    if part != "burnin":
        members.update(_data())
    # Python imports from an archive only packages that have an __init__.py.
    folders = {folder for name in members if name.endswith(".py") for folder in Path(name).parents}
    members = {**{f"{folder.as_posix()}/__init__.py": "" for folder in folders if folder.name}, **members}
    digest = hashlib.sha256(
        "".join(f"{name}\0{members[name]}\0" for name in sorted(members)).encode()
    ).hexdigest()
    members["__main__.py"] = _MAIN % digest[:16]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(members):
            about = zipfile.ZipInfo(name, _TIME)
            about.compress_type = zipfile.ZIP_DEFLATED
            about.external_attr = 0o644 << 16
            about.create_system = 3  # Unix, also when built elsewhere
            archive.writestr(about, members[name])
    return _PYTHON.encode() + packed.getvalue()


def _modules(entries: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield path and text of every module that `entries` import, directly or not."""
    modules: dict[str, str] = {}
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name in modules or name in _NOT_ON_NODES:
            continue
        base = paths.PACKAGE.parent.joinpath(*name.split("."))
        path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if not path.is_file():
            continue  # a name imported from a module, not a module
        modules[name] = text = path.read_text(encoding="utf-8")
        # Python 3.9 has neither slots for dataclasses nor strict for zip; the program works without both.
        for newer in (", slots=True", ", strict=True)"):
            text = text.replace(newer, ")" if newer.endswith(")") else "")
        yield path.relative_to(paths.PACKAGE.parent).as_posix(), text
        waiting += _imported(text)
        waiting.append(name.rpartition(".")[0] or name)


def _imported(text: str) -> Iterator[str]:
    """Yield gpuprov's modules that a module imports, also inside functions, but not for type checkers."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "provision":
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("provision."))


def _data() -> Iterator[tuple[str, str]]:
    skus = [f"{folder}/{name}" for folder in ("skus", "thresholds") for name in shipped.names(folder)]
    for name in sorted({*_DATA, *skus}):
        yield f"provision/data/{name}.json", json.dumps(shipped.load(name), sort_keys=True)
