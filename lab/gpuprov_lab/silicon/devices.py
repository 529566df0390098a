"""Device files /dev/nvidia* and /dev/kfd, with real names and numbers but nothing behind them.

Opening one fails as without a driver (ENXIO). If the host's own kernel has a driver with such a number, the
files are null devices, since no lab node may reach a GPU of the host.
"""

import os
import stat
from pathlib import Path

NVIDIA, DRM, UVM = 195, 226, 511
KFD = 508
CONTROL, MODESET = 255, 254
VIDEO = 44  # Debian's group video, which owns /dev/dri
RENDER = 105
NULL = (1, 3)


def make(node, module: str) -> None:
    """Create the files that appear when `module` is loaded, by udev or by nvidia-modprobe on first use."""
    if str(node.root) != "/" or not os.access("/dev", os.W_OK):
        return  # a test's machine or an unprivileged user gets no device files
    for path, numbers, mode, group in _files(node, module):
        place = Path(path)
        place.parent.mkdir(exist_ok=True)
        if place.exists():
            continue
        previous = os.umask(0)
        try:
            os.mknod(path, mode | stat.S_IFCHR, os.makedev(*harmless(numbers)))
            os.chown(path, 0, group)
        except PermissionError:  # the node may be confined; it gets no device files then
            return
        finally:
            os.umask(previous)


def _files(node, module: str) -> list:
    gpus = node.present()
    if module == "nvidia":
        files = [(f"/dev/nvidia{gpu['slot']}", (NVIDIA, gpu["slot"])) for gpu in gpus]
        return [
            (path, numbers, 0o666, 0) for path, numbers in [*files, ("/dev/nvidiactl", (NVIDIA, CONTROL))]
        ]
    if module == "nvidia_uvm":
        return [("/dev/nvidia-uvm", (UVM, 0), 0o666, 0), ("/dev/nvidia-uvm-tools", (UVM, 1), 0o666, 0)]
    if module == "nvidia_modeset":
        return [("/dev/nvidia-modeset", (NVIDIA, MODESET), 0o666, 0)]
    if module in ("nvidia_drm", "amdgpu"):
        compute = [("/dev/kfd", (KFD, 0), 0o660, RENDER)] if module == "amdgpu" else []
        cards = [(f"/dev/dri/card{gpu['slot']}", (DRM, gpu["slot"]), 0o660, VIDEO) for gpu in gpus]
        renders = [(f"/dev/dri/renderD{128 + gpu['slot']}", (DRM, 128 + gpu["slot"])) for gpu in gpus]
        return compute + cards + [(path, numbers, 0o660, RENDER) for path, numbers in renders]
    return []


def harmless(numbers: tuple) -> tuple:
    """Return these numbers, or the null device's if the host has a driver for them."""
    section = Path("/proc/devices").read_text().partition("Block devices:")[0]
    taken = {line.split()[0] for line in section.splitlines() if line[:3].strip().isdigit()}
    return NULL if str(numbers[0]) in taken else numbers


def confine(node) -> None:
    """Restrict a program in a container to the GPUs with device files in the container.

    A container is recognised by its own /proc, which lacks the simulated entries.
    """
    ours = str(node.root) == "/" and str(node.folder) == "/var/lib/silicon"
    if ours and node.driver() and not Path("/proc/driver/nvidia").exists():
        node.gpus = [gpu for gpu in node.gpus if Path(f"/dev/nvidia{gpu['slot']}").exists()]
    # A container has the host's /sys, without the simulated module.
    if ours and node.loaded("amdgpu") and not Path("/sys/module/amdgpu").exists():
        there = Path("/dev/kfd").exists()
        node.gpus = [
            gpu for gpu in node.gpus if there and Path(f"/dev/dri/renderD{128 + gpu['slot']}").exists()
        ]


def numbers(path: str):
    """Return (major, minor, permission bits, group) of a device file, or None."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return os.major(found.st_rdev), os.minor(found.st_rdev), stat.S_IMODE(found.st_mode), found.st_gid
