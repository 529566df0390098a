"""Shows on a lab node the hardware its kernel has no driver for: RDMA cards, drives, memory controllers.

Nobody can make a folder in sysfs. Where the kernel has no place for ours, the folder above is covered by an
empty one, in which everything the kernel has there is shown again. Network interfaces are links, copied as
they are at boot: one made later is not in /sys/class/net.
"""

import os
import subprocess
from pathlib import Path

import nics
from amd.sysfs import DRM, KFD

# Below the state's folder on the one side and / on the other.
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
    """`mounts`: run once at boot, as root. A node without cards keeps what its kernel has."""
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
    # A card's errors are judged by how long it has been counting.
    _mount("--bind", node.folder / "proc_uptime", node.root / "proc/uptime")
    return 0


def show(ours: Path, place: Path, aside: str = ASIDE) -> None:
    """Show our folder at this place, whether there is one or not."""
    try:
        place.mkdir(exist_ok=True)
    except OSError:
        _cover(place.parent, Path(aside))
        place.mkdir()
    _mount("--bind", ours, place)


def _cover(folder: Path, aside: Path) -> None:
    """Make of a folder of the kernel one in which folders can be made."""
    aside.mkdir(exist_ok=True)
    _mount("--bind", folder, aside)
    # Else what is mounted on the folder appears here as well.
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
