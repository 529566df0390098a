"""GPU vendors, and how to tell their GPUs from displays on the PCI bus.
Only this file of the observer's base knows vendors; drivers have families of facts (driver.py, amdgpu.py)."""

from provision.node.observe.files import link_target, read_line

AMD = "1002"
VENDORS = {"10de": "nvidia", AMD: "amd"}
# All AMD Instinct GPUs since the MI300s are processing accelerators (1200). Earlier ones are display
# controllers (0380), like Radeon cards and integrated graphics, and are recognised by their device.
AMD_ACCELERATOR = "0x1200"
AMD_OLDER = ("738c", "738e", "7408", "740c", "740f", "7410")  # MI100, MI250X, MI250, MI210 and its function


def part_of(vendor: str, device: str, kind: str) -> "str | None":
    """Classify a PCI function as `gpu`, `switch` (NVSwitch) or None.
    `vendor` and `device` as in 10de:2330, `kind` its class as in sysfs."""
    if VENDORS.get(vendor) == "nvidia":
        return "gpu" if kind[:4] == "0x03" else "switch" if kind[:6] == "0x0680" else None
    if vendor == AMD and (kind[:6] == AMD_ACCELERATOR or device in AMD_OLDER):
        return "gpu"
    return None


def number_in(path):
    """Return a hexadecimal number in sysfs as text without its 0x."""
    return (read_line(path) or "").lower().replace("0x", "")


def gpu_part(folder):
    """Return `part_of` for the PCI function with this folder in sysfs.

    A host that lends parts of its GPUs to guests also sees virtual functions, which are not counted."""
    vendor = number_in(folder + "vendor")
    if vendor not in VENDORS:
        return None
    part = part_of(vendor, number_in(folder + "device"), (read_line(folder + "class") or "").lower())
    return None if part and link_target(folder + "physfn") else part
