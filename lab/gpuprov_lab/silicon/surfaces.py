"""The kernel's files about the hardware: PCI devices, sys/module, proc/modules, proc/driver/nvidia.

The state's folders are mounted over the node's, and proc_modules over a file, so it is rewritten in place.
"""

import shutil
import struct
import time
from pathlib import Path

import bridges
import host
import nics
import noise
from amd import sysfs as amd
from small_files import put

SPEEDS = {
    1: "2.5 GT/s PCIe",
    2: "5.0 GT/s PCIe",
    3: "8.0 GT/s PCIe",
    4: "16.0 GT/s PCIe",
    5: "32.0 GT/s PCIe",
    6: "64.0 GT/s PCIe",
}
SIZES = {
    "nvidia": 60710912,
    "nvidia_uvm": 4956160,
    "nvidia_modeset": 1736704,
    "nvidia_drm": 131072,
    "nvidia_peermem": 16384,
    "nouveau": 3137536,
    "amdgpu": 20271104,
    "ib_umad": 40960,
    "ib_uverbs": 217088,
    "rdma_ucm": 36864,
}


def make_folders(folder: Path) -> None:
    """Create the files and folders that are mounted into a node, empty."""
    for name in ("proc_driver", "sys_pci", "sys_module", "run"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    # Tools of any user leave markers here. Not sticky, since the kernel would deny root a user's file.
    (folder / "run").chmod(0o777)
    for name in ("proc_modules", "kmsg", "counter"):
        (folder / name).touch()
    (folder / "proc_cpuinfo").write_text(bridges.cpuinfo())
    (folder / "counter").chmod(0o666)


def write_all(node) -> None:
    """Write the kernel's view of all hardware according to the faults."""
    write_pci(node)
    if node.vendor == "amd":
        amd.write(node)
    nics.write(node)
    host.write(node)


def write_pci(node) -> None:
    """Write the PCI devices according to the faults."""
    devices = node.folder / "sys_pci"
    lost = [gpu["address"] for gpu in node.present() if node.lost(gpu)]
    functions = dict(amd.pci(node) if node.vendor == "amd" else _gpus(node))
    functions.update(_switches(node))
    functions.update(nics.pci(node))
    above = dict(bridges.wanted(node))
    own = (
        {bridge: gpu for gpu in node.on_bus() for bridge in amd.bridges_of(gpu)}
        if node.vendor == "amd"
        else {}
    )
    functions.update(above)
    for known in devices.iterdir():
        if known.is_symlink() and known.name not in functions:
            known.unlink()
        elif known.name not in (*functions, amd.TREE):
            shutil.rmtree(str(known))
    if node.vendor == "amd":
        amd.lay_out(node)
    for address, files in functions.items():
        (devices / address).mkdir(exist_ok=True)
        put(devices / address, {**files, "irq": "0", "resource": "\n".join(["0x0 0x0 0x0"] * 13)})
        if address in above:
            bridges.write_config(node, devices / address, address)
            continue
        if address in own:
            amd.write_bridge(devices / address, own[address])
            continue
        (devices / address / "config").write_bytes(b"\xff" * 64 if address in lost else _config(files))


def _config(files: dict) -> bytes:
    """Return the first 64 bytes of PCI configuration space, which lspci reads."""
    word = {name: int(files[name], 16) for name in ("vendor", "device", "class", "revision")}
    ours = [int(files[name], 16) for name in ("subsystem_vendor", "subsystem_device")]
    head = struct.pack(
        "<HHHHI", word["vendor"], word["device"], 0x0406, 0x0010, word["class"] << 8 | word["revision"]
    )
    return head + b"\0" * 32 + struct.pack("<HH", *ours) + b"\0" * 16


def _gpus(node):
    for gpu in node.on_bus():
        lanes = node.given("pcie_wired", "width", 16)
        width = min(node.given("pcie_width", "width", lanes, gpu=gpu["slot"]), lanes)
        yield (
            gpu["address"],
            {
                "vendor": "0x10de",
                "device": "0x" + node.sku["device"],
                "subsystem_vendor": "0x10de",
                "subsystem_device": "0x" + node.sku["subsystem"],
                "class": "0x030200",
                "revision": "0xa1",
                "numa_node": str(gpu["numa"]),
                "local_cpulist": gpu["cpus"],
                "max_link_width": str(lanes),
                "current_link_width": str(width),
                "max_link_speed": SPEEDS[node.sku["pcie"]],
                "current_link_speed": SPEEDS[1],
                "enable": "1",
            },
        )


def _switches(node):
    common = {"numa_node": "0", "enable": "1", "revision": "0xa1"}
    for i, device in enumerate(node.sku["switches"]):
        yield (
            f"0000:{0xE8 + i:02x}:00.0",
            dict(
                common,
                vendor="0x10de",
                device="0x" + device,
                subsystem_vendor="0x10de",
                subsystem_device="0x1796",
                max_link_width="2",
                current_link_width="2",
                max_link_speed=SPEEDS[4],
                current_link_speed=SPEEDS[4],
                **{"class": "0x068000"},
            ),
        )
    if node.sku["fabric"] == "nvlink5":
        # The switches of this generation are behind a ConnectX-7, identified by its product data.
        yield (
            "0000:05:00.0",
            dict(
                common,
                vendor="0x15b3",
                device="0x1021",
                subsystem_vendor="0x15b3",
                subsystem_device="0x0021",
                vpd="NVIDIA ConnectX-7 HHHL SW_MNG",
                max_link_width="2",
                current_link_width="2",
                max_link_speed=SPEEDS[5],
                current_link_speed=SPEEDS[5],
                **{"class": "0x020700"},
            ),
        )


def load_module(folder: Path, name: str, version: str = "", depends=()) -> None:
    """Show a module as loaded; `depends` must be loaded already."""
    place = folder / "sys_module" / name
    (place / "holders").mkdir(parents=True, exist_ok=True)
    (place / "refcnt").write_text("0\n")
    (place / "coresize").write_text(f"{SIZES.get(name, 32768)}\n")
    (place / "taint").write_text("OE\n" if name.startswith(("nvidia", "amd")) else "\n")
    if version:
        (place / "version").write_text(version + "\n")
    for other in depends:
        (folder / "sys_module" / other / "holders" / name).mkdir(parents=True, exist_ok=True)
    (place / "initstate").write_text("live\n")
    if name == "amdgpu":
        (place / "drivers/pci:amdgpu").mkdir(parents=True, exist_ok=True)
    _write_list(folder)


def unload_module(folder: Path, name: str) -> None:
    """Remove a module from the loaded ones."""
    shutil.rmtree(str(folder / "sys_module" / name), ignore_errors=True)
    for place in (folder / "sys_module").iterdir():
        held = place / "holders" / name
        if held.exists():
            held.rmdir()
    if name == "nvidia":
        shutil.rmtree(str(folder / "proc_driver/nvidia"), ignore_errors=True)
        if (folder / "run/settings.json").exists():
            (folder / "run/settings.json").unlink()  # the driver's memory of the GPUs
    _write_list(folder)


def holders(folder: Path, name: str) -> list:
    """Return the loaded modules that use this one."""
    place = folder / "sys_module" / name / "holders"
    return sorted(one.name for one in place.iterdir()) if place.is_dir() else []


def unload_everything(folder: Path) -> None:
    """Remove all modules, as after a reset."""
    for place in list((folder / "sys_module").iterdir()):
        shutil.rmtree(str(place), ignore_errors=True)
    shutil.rmtree(str(folder / "proc_driver/nvidia"), ignore_errors=True)
    _write_list(folder)


def _write_list(folder: Path) -> None:
    lines = []
    for place in sorted((folder / "sys_module").iterdir(), key=lambda one: one.stat().st_mtime, reverse=True):
        if not (place / "initstate").exists():
            continue
        using = holders(folder, place.name)
        (place / "refcnt").write_text(f"{len(using)}\n")
        users = "".join(user + "," for user in using) or "-"
        size = (place / "coresize").read_text().strip()
        taint = " (POE)" if place.name.startswith("nvidia") else ""
        lines.append(f"{place.name} {size} {len(using)} {users} Live 0x0000000000000000{taint}\n")
    with (folder / "proc_modules").open("r+") as stream:
        stream.write("".join(lines))
        stream.truncate()


def write_driver(node, version: str, flavour: str) -> None:
    """Write /proc/driver/nvidia of a loaded driver."""
    if node.fault("gpudirect_absent"):
        flavour = "proprietary"
    place = node.folder / "proc_driver/nvidia"
    (place / "gpus").mkdir(parents=True, exist_ok=True)
    there = {gpu["address"] for gpu in node.present()}
    for known in (place / "gpus").iterdir():
        if known.name not in there:
            shutil.rmtree(str(known))
    for gpu in node.present():
        device = place / "gpus" / gpu["address"]
        device.mkdir(exist_ok=True)
        (device / "information").write_text(_information(node, gpu, version))
    (place / "params").write_text("ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: 1\n")
    (place / "version").write_text(version_text(version, flavour))


def version_text(version: str, flavour: str) -> str:
    """Return /proc/driver/nvidia/version; its first line differs between the two kinds of module."""
    made = 1735689600 + int(noise.fraction("built", version) * 40000000)
    built = time.strftime("%a %b %e %H:%M:%S UTC %Y", time.gmtime(made))
    if flavour == "open":
        builder = "(dvs-builder@U22-I3-AM02-24-3)"
        named = f"NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  {builder}  {built}"
    else:
        named = f"NVIDIA UNIX x86_64 Kernel Module  {version}  {built}"
    return f"NVRM version: {named}\nGCC version:  gcc version 14.2.0 (Debian 14.2.0-19) \n"


def _information(node, gpu, version: str) -> str:
    rows = [
        ("Model: \t\t", node.sku["name"]),
        ("IRQ:   \t\t", str(120 + gpu["slot"])),
        ("GPU UUID: \t", gpu["uuid"]),
        ("Video BIOS: \t", gpu["vbios"]),
        ("Bus Type: \t", "PCIe"),
        ("DMA Size: \t", "52 bits"),
        ("DMA Mask: \t", "0xfffffffffffff"),
        ("Bus Location: \t", gpu["address"]),
        ("Device Minor: \t", str(gpu["slot"])),
        ("GPU Firmware: \t", version),
        ("GPU Excluded:\t", "No"),
    ]
    return "".join(f"{label} {value}\n" for label, value in rows)
