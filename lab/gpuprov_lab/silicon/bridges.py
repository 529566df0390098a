"""The root ports above the GPUs: PCI bridges with a writable ACS register that firmware sets.

sysfs only has their configuration space; a bridge's bus numbers show which devices are below it.
"""

import struct
from pathlib import Path

from amd import sysfs as amd

EXPRESS = 0x60  # the PCI Express capability, without which no tool reads extended ones
AER, ACS = 0x100, 0x148  # the offsets of the two extended capabilities
REDIRECTING = 0x1D  # source validation, request and completion redirect, upstream forwarding
FIRMWARE = 0xF0  # an unused offset that records the firmware's setting


def wanted(node):
    """Yield (address, sysfs files) of each bridge, without its configuration space."""
    for slot, gpu in enumerate(node.gpus):
        yield (
            f"{gpu['address'][:4]}:00:{slot + 1:02x}.0",
            {
                "vendor": "0x8086",
                "device": "0x352a",
                "subsystem_vendor": "0x8086",
                "subsystem_device": "0x0000",
                "class": "0x060400",
                "revision": "0x04",
                "numa_node": str(gpu["numa"]),
                "enable": "1",
            },
        )


def write_config(node, folder: Path, address: str) -> None:
    """Write the configuration space of the bridge at `address`.
    Later writes to its register are kept until the firmware's setting changes or the machine boots."""
    setting = REDIRECTING if node.fault("acs_on") else 0
    file = folder / "config"
    if file.exists() and file.read_bytes()[FIRMWARE] == setting:
        return
    gpu = node.gpus[int(address[8:10], 16) - 1]
    first, last = amd.buses_of(gpu) if node.vendor == "amd" else [int(gpu["bus"], 16)] * 2
    space = bytearray(4096)
    struct.pack_into("<HHHHI", space, 0, 0x8086, 0x352A, 0x0547, 0x0010, 0x060400 << 8 | 0x04)
    space[0x0E] = 0x01
    space[0x18:0x1B] = bytes((0, first, last))
    space[0x34] = EXPRESS
    struct.pack_into("<BBH", space, EXPRESS, 0x10, 0, 0x0142)  # a root port, version 2
    space[FIRMWARE] = setting
    struct.pack_into("<I", space, AER, 0x0001 | 2 << 16 | ACS << 20)
    struct.pack_into("<IHH", space, ACS, 0x000D | 1 << 16, 0x005F, setting)
    file.write_bytes(space)


def reset(node) -> None:
    """Reset the bridges to the firmware's boot state."""
    for address, _ in wanted(node):
        file = node.folder / "sys_pci" / address / "config"
        if file.exists():
            file.unlink()


def cpuinfo() -> str:
    """Return this machine's /proc/cpuinfo as on bare metal; a server with eight GPUs is not a guest."""
    text = Path("/proc/cpuinfo").read_text(errors="replace")
    return text.replace(" hypervisor ", " ")
