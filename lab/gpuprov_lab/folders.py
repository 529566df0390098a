"""Removes folders that may contain mount points, without ever deleting mounted content."""

from __future__ import annotations

import shutil
from pathlib import Path

from gpuprov_lab.command import attempt
from provision.errors import LabError


def mounts(folder: Path, mountinfo: str | None = None) -> list[str]:
    """List mount points in or below `folder` in this mount namespace, innermost first."""
    text = Path("/proc/self/mountinfo").read_text() if mountinfo is None else mountinfo
    points = [line.split()[4].replace("\\040", " ") for line in text.splitlines()]
    return sorted((p for p in points if Path(p).is_relative_to(folder)), key=len, reverse=True)


def remove_tree(folder: Path) -> None:
    """Unmount everything below `folder`, then delete it; a no-op if it is missing.

    Raises LabError when a mount stays, since deleting would reach through it.
    """
    for point in mounts(folder):
        attempt("umount", point)
    still = mounts(folder)
    if still:
        raise LabError(f"{still[0]} is busy and stays mounted", f"see who uses it: fuser -vm {still[0]}")
    if folder.exists():
        shutil.rmtree(folder)
