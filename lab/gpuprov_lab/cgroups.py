"""One control group per node; in a shared tree the nodes' systemds would stop each other's services."""

from __future__ import annotations

import contextlib
from pathlib import Path

from gpuprov_lab import process
from provision.errors import LabError


def mount_point(mountinfo: str | None = None) -> Path:
    """Return the mount point of this host's version 2 hierarchy, also on a host that uses both versions.

    Raises LabError when there is none.
    """
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    for line in text.splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(fields.split()[4])
    raise LabError("this host has no cgroup2 hierarchy", "mount -t cgroup2 none /sys/fs/cgroup/unified")


def folder(namespace: str) -> Path:
    """Return the control group of a node, which has the name of its network namespace."""
    return mount_point() / namespace


def find(prefix: str) -> list[str]:
    """Find control groups by the prefix of their name."""
    with contextlib.suppress(LabError):
        return sorted(path.name for path in mount_point().glob(f"{prefix}*") if path.is_dir())
    return []


def members(name: str) -> list[int]:
    """List all processes in a control group and its descendants."""
    found = []
    for listing in folder(name).rglob("cgroup.procs"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in listing.read_text().split()]
    return [pid for pid in found if pid > 0]


def remove(name: str) -> None:
    """Remove an empty control group with its descendants; waits up to 5 s for exiting processes."""
    top = folder(name)
    process.wait_until(lambda: _try_remove(top), 5)


def _try_remove(top: Path) -> bool:
    groups = [path for path in top.rglob("*") if path.is_dir()] if top.is_dir() else []
    for path in [*sorted(groups, reverse=True), top]:  # a child sorts after its parent
        with contextlib.suppress(OSError):
            path.rmdir()
    return not top.is_dir()
