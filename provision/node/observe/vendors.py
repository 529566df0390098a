"""Whose GPUs are on the PCI bus: what tells a GPU from a display, by vendor. The only file of the observer's
base that knows vendors; what a vendor's driver says is in a family of its own (driver.py, amdgpu.py)."""

from provision.node.observe.files import link_target, read_line

AMD = "1002"
# Processing accelerators (1200) are all of AMD's Instinct GPUs since the MI300s. Those before are display
# controllers (0380), as Radeon cards and the graphics of processors are: they are known by their device.
AMD_ACCELERATOR = "0x1200"
AMD_OLDER = ("738c", "738e", "7408", "740c", "740f", "7410")  # MI100, MI250X, MI250, MI210 and its function


def nvidia_part(_folder, kind):
    """Of an NVIDIA function whether it is a `gpu` or a `switch` (NVSwitch), by its class; else None."""
    if kind[:4] == "0x03":
        return "gpu"
    return "switch" if kind[:6] == "0x0680" else None


def amd_part(folder, kind):
    """Whether a function of AMD's is an Instinct `gpu`; else None.

    A host that lends parts of its GPUs to guests sees those functions, too: they are no GPUs more."""
    device = (read_line(folder + "device") or "").lower().replace("0x", "")
    if kind[:6] != AMD_ACCELERATOR and device not in AMD_OLDER:
        return None
    return None if link_target(folder + "physfn") else "gpu"


# PCI vendor -> (its name here, what tells its parts)
VENDORS = {"10de": ("nvidia", nvidia_part), AMD: ("amd", amd_part)}


def gpu_part(folder):
    """What a function of the PCI bus (its folder in sysfs) is to us: `gpu`, `switch`, or None."""
    vendor = (read_line(folder + "vendor") or "").lower().replace("0x", "")
    if vendor not in VENDORS:
        return None
    return VENDORS[vendor][1](folder, (read_line(folder + "class") or "").lower())
