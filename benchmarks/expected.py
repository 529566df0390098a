"""The forty expectations that all contenders check, with values read from a node first.

They are of the kinds that declare a GPU node: package versions, file contents, kernel modules and parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from benchmarks.nodes import FailedError, Nodes

PACKAGES = (
    *(
        "bash",
        "coreutils",
        "dash",
        "debianutils",
        "diffutils",
        "dpkg",
        "findutils",
        "grep",
        "gzip",
        "hostname",
    ),
    *("libc6", "openssh-server", "sed", "tar", "util-linux", "base-files", "perl-base", "sysvinit-utils"),
)
MODULES = ("nouveau", "nvidia_peermem", "pcspkr", "floppy", "lp", "joydev")
SYSCTLS = (
    *("vm.swappiness", "vm.overcommit_memory", "vm.max_map_count", "vm.zone_reclaim_mode"),
    *("kernel.pid_max", "kernel.panic", "fs.protected_hardlinks", "fs.protected_symlinks"),
)
WANTED = {"package": 14, "file": 12, "module": 6, "sysctl": 8}


@dataclass(frozen=True)
class Expected:
    """One expectation; the meaning of `name` and `value` depends on `kind`.
    package: `name` has the version `value`. file: the path `name` has the content `value`. module: `name` is
    loaded ("yes") or not ("no"). sysctl: the parameter `name` is `value`."""

    kind: str
    name: str
    value: str

    @property
    def proc(self) -> str:
        """The kernel's file for a parameter."""
        return f"/proc/sys/{self.name.replace('.', '/')}"

    @property
    def initstate(self) -> str:
        """The file that exists while a module is loaded."""
        return f"/sys/module/{self.name}/initstate"


def prepared(nodes: Nodes, folder: str) -> list[Expected]:
    """Put the files into `folder` on the nodes, read the other values there, and return the expectations."""
    files = [Expected("file", f"{folder}/settings-{i:02}.conf", _content(i)) for i in range(WANTED["file"])]
    modules = [Expected("module", name, "no") for name in MODULES]
    sysctls = [Expected("sysctl", name, "") for name in SYSCTLS]
    script = [f"mkdir -p {folder}", *(f"cat > {one.name} <<'END'\n{one.value}END" for one in files)]
    script += [f"[ -e {one.initstate} ] && echo module {one.name}" for one in modules]
    script += [f"echo sysctl {one.name} `cat {one.proc}`" for one in sysctls]
    script += ["dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'"]
    rows = [line.split(maxsplit=2) for line in _sh(nodes, *script).splitlines()]
    versions = {row[1]: row[2] for row in rows if row[0] == "installed"}
    values = {row[1]: row[2] for row in rows if row[0] == "sysctl"}
    loaded = {row[1] for row in rows if row[0] == "module"}
    packages = [Expected("package", name, versions[name]) for name in PACKAGES if name in versions]
    modules = [replace(one, value="yes") if one.name in loaded else one for one in modules]
    sysctls = [replace(one, value=values[one.name]) for one in sysctls]
    found = [*packages[: WANTED["package"]], *files, *modules, *sysctls]
    if {kind: sum(one.kind == kind for one in found) for kind in WANTED} != WANTED:
        raise SystemExit("this machine lacks packages that are asked about: see benchmarks/expected.py")
    return found


def _sh(nodes: Nodes, *script: str) -> str:
    return nodes.run(nodes.names[0], "sh", "-s", given="\n".join([*script, ""]))


def _content(number: int) -> str:
    lines = [f"# Settings {number} of the benchmark: about what a file of a role is long.", "[settings]"]
    return "\n".join([*lines, *(f"option_{number}_{i} = value {i * number}" for i in range(30))]) + "\n"


def with_differences(expected: Sequence[Expected]) -> list[Expected]:
    """Return the expectations with one wrong value for each kind except files (`plant` changes a file)."""
    wrong = {"package": "0.0.1-1", "module": "", "sysctl": "4242"}
    found = []
    for one in expected:
        if (value := wrong.pop(one.kind, None)) is not None:
            found.append(replace(one, value=value or {"yes": "no", "no": "yes"}[one.value]))
        else:
            found.append(one)
    return found


def plant(nodes: Nodes, expected: Sequence[Expected]) -> None:
    """Change a file on the nodes."""
    file = next(one for one in expected if one.kind == "file")
    _sh(nodes, f"echo changed = by hand >> {file.name}")


def heal(nodes: Nodes, expected: Sequence[Expected]) -> None:
    file = next(one for one in expected if one.kind == "file")
    _sh(nodes, f"cat > {file.name} <<'END'\n{file.value}END")


def removed(nodes: Nodes, folder: str) -> None:
    """Remove the files; an unreachable node keeps them, so as not to hide the original error."""
    with suppress(FailedError):
        _sh(nodes, f"rm -rf {folder}")
