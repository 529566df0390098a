"""Mounts hardware that a lab node's kernel has no driver for: RDMA cards, drives, memory controllers.

Folders cannot be created in sysfs. If the kernel lacks a folder, the parent folder is covered by an empty
one, into which the kernel's entries are mounted again. Network interfaces are links, copied at boot; one
created later is not in /sys/class/net.
"""

import os
import subprocess
from pathlib import Path

import nics
from amd.sysfs import DRM, KFD

# Below the state folder on one side and / on the other.
FOLDERS = (
    "sys/class/infiniband",
    "sys/class/nvme",
    "sys/devices/system/edac",
    "sys/devices/system/cpu/cpufreq",
    "sys/devices/system/memory",
)
FILES = ("sys/devices/system/cpu/online",)
ASIDE = "/run/silicon-covered"


def mounts(node, arguments: list) -> int:
    """Run `mounts`: once at boot, as root. A node without cards keeps its kernel's folders."""
    del arguments
    if node.vendor == "amd":
        for name in (KFD, DRM):
            show(node.folder / name, node.root / name)
    if not nics.all_of(node):
        return 0
    ethernet = [card for card in nics.all_of(node) if card["layer"] == "roce"]
    interfaces = [f"{nics.NETDEVS}/{nics.netdev(card)}" for card in ethernet]
    for name in (*FOLDERS, *interfaces):
        show(node.folder / name, node.root / name)
    for name in FILES:
        _mount("--bind", node.folder / name, node.root / name)
    # A card's errors are judged by the duration of counting.
    _mount("--bind", node.folder / "proc_uptime", node.root / "proc/uptime")
    return 0


def show(ours: Path, place: Path, aside: str = ASIDE) -> None:
    """Mount the folder `ours` at `place`, which may or may not exist."""
    try:
        place.mkdir(exist_ok=True)
    except OSError:
        _cover(place.parent, Path(aside))
        place.mkdir()
    _mount("--bind", ours, place)


def _cover(folder: Path, aside: Path) -> None:
    """Replace a kernel folder by one in which folders can be created."""
    aside.mkdir(exist_ok=True)
    _mount("--bind", folder, aside)
    # Otherwise mounts on the folder would appear here as well.
    _mount("--make-private", aside)
    _mount("-t", "tmpfs", "-o", "mode=0755", "silicon", folder)
    for known in sorted(aside.iterdir()):
        shown = folder / known.name
        if known.is_symlink():
            shown.symlink_to(os.readlink(str(known)))  # noqa: PTH115 (came with 3.9)
            continue
        if known.is_dir():
            shown.mkdir()
        else:
            shown.touch()
        _mount("--bind", known, shown)
    subprocess.run(["umount", "--lazy", str(aside)], check=True)
    aside.rmdir()


def _mount(*words) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)
