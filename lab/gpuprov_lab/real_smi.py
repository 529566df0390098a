"""NVIDIA's own nvidia-smi on lab nodes: Debian's packages of it, and the library below it.

silicon/nvidia_smi/real.py lists which calls on a node it answers, and which it does not.
"""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from gpuprov_lab import debian, nvml_library
from provision.errors import LabError

# Driver → Debian's package, its suite, and the program's folder in it.
_CURRENT = "usr/lib/nvidia/current"
RELEASES = {
    "470.256.02": ("nvidia-tesla-470-smi", "bookworm", "usr/lib/nvidia/tesla-470"),
    "535.261.03": ("nvidia-smi", "bookworm", _CURRENT),
    "550.163.01": ("nvidia-smi", "trixie", _CURRENT),
    "555.58.02": ("nvidia-smi", "experimental", _CURRENT),
}
_HEADER = ("libnvidia-ml-dev", "trixie", "non-free")  # package, suite and component of nvml.h
_FOLDER = "real"  # of a node's state


def missing() -> str | None:
    """Return why this host cannot have the programs; None if it can."""
    if platform.machine() != "x86_64":
        return f"Debian has it for x86_64, and this host is {platform.machine()}"
    return debian.missing() or (None if shutil.which("gcc") else "this host has no gcc")


def library() -> Path:
    """Return the library's folder for LD_LIBRARY_PATH, built if not cached. Raises LabError."""
    return nvml_library.built(debian.unpacked(*_HEADER) / "usr/include/nvml.h", debian.CACHE)


def program(driver: str) -> Path:
    """Return the program of a release, fetched if not cached. Raises LabError."""
    package, suite, folder = RELEASES[driver]
    return debian.unpacked(package, suite, "non-free") / folder / "nvidia-smi"


def install(state: Path) -> str:
    """Copy the programs into a node's state; returns why any of them is missing, or ""."""
    folder, why = state / _FOLDER, missing()
    if why:
        return why
    try:
        folder.mkdir(exist_ok=True)
        shutil.copy(library() / nvml_library.NAME, folder)
        for driver in RELEASES:
            branch = folder / driver.partition(".")[0]
            branch.mkdir(exist_ok=True)
            shutil.copy(program(driver), branch)
    except LabError as error:
        return error.what
    return ""


def printer(state: Path) -> str:
    """Return who prints nvidia-smi on a node now: `real`, or `simulated: ` and the reason."""
    branches = [path.parent.name for path in sorted((state / _FOLDER).glob("*/nvidia-smi"))]
    try:
        version = (state / "proc_driver/nvidia/version").read_text()
    except OSError:
        return "simulated: no driver is loaded"
    if any(f" {branch}." in version for branch in branches):
        return "real"
    return f"simulated: the real one is there for {', '.join(branches) or 'no driver'}"
