"""One control group per node. Without, all nodes' systemds share one tree and stop each other's services."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpuprov_lab import process
from provision.errors import LabError


def mount_point(mountinfo: str | None = None) -> Path:
    """Where this host has the version 2 hierarchy: nodes are given that one, also on a host that uses both.

    Raises LabError when there is none.
    """
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    for line in text.splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(fields.split()[4])
    raise LabError("this host has no cgroup2 hierarchy", "mount -t cgroup2 none /sys/fs/cgroup/unified")


def folder(namespace: str) -> Path:
    """The control group of a node; it is named as its network namespace."""
    return mount_point() / namespace


def find(prefix: str) -> list[str]:
    """Control groups whose name starts with `prefix`."""
    with contextlib.suppress(LabError):
        return sorted(path.name for path in mount_point().glob(f"{prefix}*") if path.is_dir())
    return []


def members(name: str) -> list[int]:
    """All processes in a control group and below it."""
    found = []
    for listing in folder(name).rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in listing.read_text().split()]
    return [pid for pid in found if pid > 0]


def remove(name: str) -> None:
    """Remove an empty control group with all below it; what dies in it right now is waited for."""
    top = folder(name)
    process.wait_until(lambda: _try_remove(top), 5)


def _try_remove(top: Path) -> bool:
    groups = [path for path in top.rglob("*") if path.is_dir()] if top.is_dir() else []
    for path in [*sorted(groups, reverse=True), top]:  # a child sorts after its parent
        with contextlib.suppress(OSError):
            path.rmdir()
    return not top.is_dir()
