"""The driver's files for MIG: /proc/driver/nvidia/capabilities, and device files for access rights."""

import os
import shutil
import stat
from pathlib import Path

import devices
from settings import Settings

from nvidia_smi.mig_profiles import usable

# The distances in /proc/driver/nvidia-caps/mig-minors between two GPUs, and between two GPU instances; each
# of these is followed by its first compute instance.
FIRST, PER_GPU, PER_INSTANCE = 3, 135, 9
MAJOR = 510


def minors(gpu, instance: dict) -> list:
    """Return the minor numbers of a GPU instance's file and of its compute instance's."""
    first = FIRST + PER_GPU * gpu["slot"] + PER_INSTANCE * instance["id"]
    return [first, first + 1]


def instances(node, gpu):
    """Return the MIG devices of a GPU in index order; None if it is not partitioned."""
    settings = Settings(node).of(gpu)
    return usable(settings) if settings["mig"] else None


def write(node) -> None:
    """Write the current partitions of every GPU."""
    place = node.folder / "proc_driver/nvidia/capabilities"
    shutil.rmtree(str(place), ignore_errors=True)
    numbers = set()
    if node.driver():
        for gpu in node.present():
            numbers.update(_show(place, gpu, instances(node, gpu)))
    if str(node.root) == "/":
        _make(Path("/dev/nvidia-caps"), numbers)


def _show(place: Path, gpu, found) -> list:
    if found is None:
        return []
    mig = place / f"gpu{gpu['slot']}" / "mig"
    mig.mkdir(parents=True)
    numbers = []
    for each in found:
        for folder, minor in zip([f"gi{each['id']}", f"gi{each['id']}/ci0"], minors(gpu, each)):  # noqa: B905
            (mig / folder).mkdir()
            text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
            (mig / folder / "access").write_text(text)
            numbers.append(minor)
    return numbers


def _make(place: Path, wanted: set) -> None:
    files = {f"nvidia-cap{minor}": minor for minor in wanted}
    try:
        for old in list(place.glob("nvidia-cap*")):
            if old.name not in files:
                old.unlink()
        for name, minor in files.items():
            place.mkdir(exist_ok=True)
            if not (place / name).exists():
                number = os.makedev(*devices.harmless((MAJOR, minor)))
                os.mknod(str(place / name), 0o444 | stat.S_IFCHR, number)
    except OSError:  # an unprivileged user, or a confined node
        return
