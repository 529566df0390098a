"""Whose GPUs are on the PCI bus: what tells a GPU from a display, by vendor. The only file of the observer's
base that knows vendors; what a vendor's driver says is in a family of its own (driver.py, amdgpu.py)."""

from provision.node.observe.files import link_target, read_line

AMD = "1002"
VENDORS = {"10de": "nvidia", AMD: "amd"}
# Processing accelerators (1200) are all of AMD's Instinct GPUs since the MI300s. Those before are display
# controllers (0380), as Radeon cards and the graphics of processors are: they are known by their device.
AMD_ACCELERATOR = "0x1200"
AMD_OLDER = ("738c", "738e", "7408", "740c", "740f", "7410")  # MI100, MI250X, MI250, MI210 and its function


def part_of(vendor: str, device: str, kind: str) -> "str | None":
    """What a function of the PCI bus is to us: `gpu`, `switch` (NVSwitch), or None. `vendor` and `device` as
    in 10de:2330, `kind` its class as sysfs has it."""
    if VENDORS.get(vendor) == "nvidia":
        return "gpu" if kind[:4] == "0x03" else "switch" if kind[:6] == "0x0680" else None
    if vendor == AMD and (kind[:6] == AMD_ACCELERATOR or device in AMD_OLDER):
        return "gpu"
    return None


def number_in(path):
    """A number in sysfs without its 0x."""
    return (read_line(path) or "").lower().replace("0x", "")


def gpu_part(folder):
    """`part_of` of the function whose folder in sysfs this is.

    A host that lends parts of its GPUs to guests sees those functions, too: they are no GPUs more."""
    vendor = number_in(folder + "vendor")
    if vendor not in VENDORS:
        return None
    part = part_of(vendor, number_in(folder + "device"), (read_line(folder + "class") or "").lower())
    return None if part and link_target(folder + "physfn") else part
