"""Boot actions of kernel and udev: a new log, modules for the hardware, modules listed by name."""

import platform
from pathlib import Path

import bridges
import kernel_log
import modprobe
import settings as gpu_settings
import surfaces
from module_file import Settings, find

COLDPLUG = ("nvidia", "nvidia_modeset", "nvidia_drm", "nvidia_uvm")


def boot(node, arguments: list) -> int:
    """Run `boot`: once, early, as root."""
    del arguments
    for marker in (node.folder / "run").iterdir():
        marker.unlink()
    gpu_settings.after_boot(node)
    for fault in node.faults:
        fault.pop("struck", None)
    node.save()
    kernel_log.begin(node.folder)
    surfaces.unload_everything(node.folder)
    bridges.reset(node)
    surfaces.write_all(node)
    kernel_log.append(node.folder, _kernel_lines(node), at=0.0)
    settings = Settings(node.root)
    for name in _wanted(node, settings):
        # If one of NVIDIA's modules failed, its dependents fail as well.
        if not _try(node, name) and name in modprobe.NVIDIA:
            break
    for name in _listed(node.root):
        if name in modprobe.SIMULATED and not settings.never_loads(name):
            _try(node, name)
    return 0


def _wanted(node, settings) -> list:
    if not node.on_bus():
        return []
    refused = settings.blacklisted | {name for name in modprobe.SIMULATED if settings.never_loads(name)}
    if node.vendor == "amd":
        return ["amdgpu"] if find(node.root, "amdgpu") and "amdgpu" not in refused else []
    names = []
    if node.data.get("nouveau_in_kernel") and "nouveau" not in refused:
        names.append("nouveau")
    if find(node.root, "nvidia") and "nvidia" not in refused:
        names += [name for name in COLDPLUG if name not in refused and find(node.root, name)]
    return names


def _try(node, name: str) -> bool:
    try:
        modprobe.load(node, name)
        return True
    except (modprobe.RefusedError, FileNotFoundError) as why:
        kernel_log.append(node.folder, [f"systemd-udevd[312]: Failed to insert module '{name}': {why}"])
        return False


def _listed(root: Path) -> list:
    """Return the module names in modules-load.d, which systemd does not load in a container."""
    names = []
    for place in ("usr/lib/modules-load.d", "run/modules-load.d", "etc/modules-load.d"):
        for path in sorted((root / place).glob("*.conf")):
            lines = path.read_text(errors="replace").splitlines()
            names += [
                line.strip().replace("-", "_") for line in lines if line.strip() and line[0] not in "#;"
            ]
    return names


def _kernel_lines(node) -> list:
    lines = [
        f"Linux version {platform.release()} (gcc (Debian 14.2.0-19) 14.2.0, GNU ld (GNU Binutils) 2.44) "
        "#1 SMP",
        f"Command line: BOOT_IMAGE=/boot/vmlinuz-{platform.release()} root=/dev/md0 ro quiet",
        "BIOS-provided physical RAM map:",
        "ACPI: PCI Root Bridge [PC00] (domain 0000 [bus 00-16])",
    ]
    maker, kind = ("1002", node.sku["class"]) if node.vendor == "amd" else ("10de", "0x030200")
    for gpu in node.on_bus():
        lines.append(
            f"pci {gpu['address']}: [{maker}:{node.sku['device']}] type 00 class {kind} PCIe Endpoint"
        )
    lines.append("systemd[1]: Inserted module 'autofs4'")
    return lines
