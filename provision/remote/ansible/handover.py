"""Input of one Ansible run: a private folder in memory, an inventory, and a clean environment.

The folder holds passwords, so it has mode 0700, is kept in memory if possible, and is always removed; the
next run removes a folder that a killed controller left behind. Connection settings in a user's ansible.cfg
and ANSIBLE_* variables have already become host variables (ansible_settings.py). Apart from these, Ansible
gets only a file named by ANSIBLE_CONFIG, so that the inventory decides what happens.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision import paths

_PREFIX = "gpuprov-"
_LOCK = "lock"
# Skip tag for Ansible's validation of roles' variables against their argument specs, if it was done earlier.
# It costs 0.1 s of CPU per role and node, and no tag of Ansible's own skips it.
ARGUMENT_SPECS = "argument_specs"
_ORPHAN_AGE = 3600.0  # seconds until a folder without a lock file counts as orphaned

# The variables of our environment that Ansible gets. LD_LIBRARY_PATH: a Python from environment modules
# needs it to start.
KEPT = ("HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KRB5CCNAME", "LD_LIBRARY_PATH", "TZ")

# Keepalives of ssh detect a dead node, which would otherwise take 15 minutes.
SSH_ARGS = (
    "-C -o ControlMaster=auto -o ControlPersist=60s -o ServerAliveInterval=15 -o ServerAliveCountMax=4 "
    "-o ConnectionAttempts=1"
)

# Interval at which Ansible's main process polls all hosts; its default of a thousand times a second takes a
# fifth of a core for 20 nodes that build a driver, half a core for 100. No environment variable sets it.
_SETTINGS = "[defaults]\ninternal_poll_interval = 0.02\n"


# Runs before Ansible's command line. A killed controller takes its Ansible with it, which would otherwise go
# on changing nodes unobserved (1 is PR_SET_PDEATHSIG, on Linux). Ansible forks a process per task, in which
# garbage collection would only copy shared memory; in Ansible itself, which keeps nearly all objects,
# collection takes a tenth of its time.
ANSIBLE = (
    sys.executable,
    *("-P", "-c"),
    "import gc, os, signal, sys\n"
    "try:\n"
    "    import ctypes\n"
    "    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))\n"
    "except (ImportError, AttributeError, OSError):\n"
    "    pass\n"
    "if os.getppid() != int(sys.argv[1]):\n"
    "    sys.exit(143)\n"
    "gc.set_threshold(20000, 20, 50)\n"
    "os.register_at_fork(after_in_child=gc.disable)\n"
    "sys.argv = sys.argv[2:]\n"
    "from ansible.cli.playbook import main\n"
    "sys.exit(main())\n",
)


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Create a temporary 0700 folder, with a path short enough for ssh's control sockets (108 bytes)."""
    base = memory_folder()
    remove_orphans(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    try:
        making = folder / f"{_LOCK}.new"
        with making.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            making.rename(folder / _LOCK)  # atomic, so that concurrent runs always find it locked
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def memory_folder() -> Path:
    """Return /dev/shm, which is never written to disk, or else the folder for temporary files."""
    for candidate in (Path("/dev/shm"), Path(tempfile.gettempdir())):  # noqa: S108 (mkdtemp below makes it private)
        if candidate.is_dir() and os.access(candidate, os.W_OK | os.X_OK):
            return candidate
    return Path(tempfile.gettempdir())


def remove_orphans(base: Path | None = None) -> None:
    """Remove unlocked folders of killed controllers, and end their processes.
    Workers of a killed Ansible may be in the middle of a task."""
    for folder in (base or memory_folder()).glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if folder.is_symlink() or not folder.is_dir() or status.st_uid != os.getuid():
                continue
            if not (folder / _LOCK).exists():
                if time.time() - status.st_mtime > _ORPHAN_AGE:
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _end_processes(folder)
                shutil.rmtree(folder, ignore_errors=True)


def _end_processes(folder: Path) -> None:
    """Kill Ansible's own processes that use this folder.
    Programs that tasks run here (a package manager, if the controller provisions itself) end on their own."""
    mark = f"ANSIBLE_HOME={folder}/home".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # of another user, or already gone
            ours = mark in (entry / "environ").read_bytes().split(b"\0")
            if ours and f"{folder}/".encode() in (entry / "cmdline").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


@dataclass(frozen=True)
class Around:
    """The inventory around the played hosts, for templates: all hosts' variables, and groups."""

    hosts: Mapping[str, Mapping[str, Any]]
    groups: Mapping[str, Sequence[str]]


def inert(value: Any) -> Any:
    """Mark texts that look like templates as data, since facts come from untrusted nodes.
    Rendered values must not be rendered again."""
    if isinstance(value, str):
        return {"__ansible_unsafe": value} if "{{" in value or "{%" in value or "{#" in value else value
    if isinstance(value, Mapping):
        return {str(key): inert(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [inert(inner) for inner in value]
    return value


def write_inventory(
    folder: Path, hosts: Mapping[str, Mapping[str, Any]], around: Around | None = None
) -> Path:
    """Write the hosts as an inventory, in which variables named `gpuprov_…` are never templates."""
    whole = {**around.hosts, **hosts} if around else hosts
    entries = {
        name: {key: inert(value) if key.startswith("gpuprov_") else value for key, value in variables.items()}
        for name, variables in whole.items()
    }
    groups = {
        name: {"hosts": dict.fromkeys(members)}
        for name, members in (around.groups.items() if around else ())
        if name not in ("all", "ungrouped")
    }
    return _write(folder / "inventory" / "hosts.json", {"all": {"hosts": entries, "children": groups}})


def write_limit(folder: Path, hosts: Collection[str]) -> Path:
    """Write a file for `--limit @FILE` with the hosts to play."""
    file = folder / "limit"
    file.write_text("".join(f"{name}\n" for name in hosts), encoding="utf-8")
    return file


def write_playbook(folder: Path, playbook: Path, skip_tags: Collection[str]) -> Path:
    """Write the playbook without the parts that `skip_tags` exclude, and return its path.

    Ansible would load a role before skipping it: 70 ms each, a second for an `up` that needs one role. The
    playbook's files and roles must not be relative. With ARGUMENT_SPECS, roles are imported by tasks, the
    only way to skip that validation."""
    skip = set(skip_tags)
    if not skip:
        return playbook
    from provision import yamlfile  # imported here, since a worker that only observes does not need it

    plays = yamlfile.load(playbook)
    for play in plays:
        for section in {"pre_tasks", "roles", "tasks", "post_tasks"} & play.keys():
            play[section] = [entry for entry in play[section] if skip.isdisjoint(_tags(entry))]
        if ARGUMENT_SPECS in skip:
            roles = [_imported(entry) for entry in play.pop("roles", [])]
            play["tasks"] = [*roles, *play.get("tasks", [])]
    file = folder / playbook.name
    file.write_text(json.dumps(plays), encoding="utf-8")  # JSON is also valid YAML
    return file


def _imported(role: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an entry of a play's `roles` to a task without validation of argument specs."""
    rest = {key: value for key, value in role.items() if key != "role"}
    return {
        "name": f"Apply {role['role']}",
        "ansible.builtin.import_role": {"name": role["role"], "rolespec_validate": False},
        **rest,
    }


def _tags(entry: Mapping[str, Any]) -> list[str]:
    tags = entry.get("tags", [])
    return [tag.strip() for tag in tags.split(",")] if isinstance(tags, str) else tags


def write_extra_vars(folder: Path, extra_vars: Mapping[str, Any]) -> None:
    """Write the variables to ansible-runner's file, since any local user can read an argument list."""
    _write(folder / "env" / "extravars", extra_vars)


def _write(path: Path, document: Mapping[str, Any]) -> Path:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(document, file)
    return path


def environment(folder: Path, forks: int) -> dict[str, str]:
    """Return Ansible's whole environment; ansible-runner writes it to a file, so it holds nothing else."""
    config = folder / "ansible.cfg"
    config.touch(mode=0o600)
    config.write_text(_SETTINGS)
    scripts = str(Path(sys.executable).parent)  # has ansible-playbook, even if the venv is not activated
    chosen = os.environ.get("ANSIBLE_CONFIG")
    settings = {
        "PATH": os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)]),
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
        "ANSIBLE_CONFIG": str(Path(chosen).absolute()) if chosen else str(config),
        "ANSIBLE_HOME": str(folder / "home"),
        "ANSIBLE_LOCAL_TEMP": str(folder / "tmp"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
        "ANSIBLE_ROLES_PATH": str(paths.ROLES),
        "ANSIBLE_LIBRARY": str(paths.MODULES),
        "ANSIBLE_FORKS": str(forks),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_SSH_ARGS": SSH_ARGS,
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_TIMEOUT": "30",  # the default of 10 s is too short for sudo on a busy node
        "ANSIBLE_PYTHON_INTERPRETER": "auto_silent",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        "ANSIBLE_DEVEL_WARNING": "False",
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "ANSIBLE_DISPLAY_ARGS_TO_STDOUT": "False",
        "ANSIBLE_DISPLAY_OK_HOSTS": "False",
        "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "False",
        # ansible-runner silently drops larger results; ours are limited on the node.
        "MAX_EVENT_RES": "64000000",
    }
    return {name: os.environ[name] for name in KEPT if name in os.environ} | settings
