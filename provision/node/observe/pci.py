"""PCI settings that affect transfers between GPUs and network cards, by access control and the IOMMU.

If a bridge's ACS (access control) redirects requests or completions, its devices' transfers go up to the root
complex: GPUDirect and peer-to-peer become slow, hang, or (with a translating IOMMU) corrupt data. That is
wrong only on bare metal; a hypervisor needs it to isolate virtual machines. Facts come from configuration
space, as in lspci, which is complete only for root; the offsets are from the PCI Express base specification.
"""

from provision.node.observe.files import (
    ReadError,
    labelled,
    link_target,
    names_in,
    read_bytes,
    read_line,
    read_text,
)
from provision.node.observe.probe import FAMILIES, whole_family
from provision.node.observe.vendors import gpu_part

PCI_DEVICES = "/sys/bus/pci/devices"
DMI_NAMES = ("sys_vendor", "product_name")
VIRTUAL = (
    "qemu",
    "kvm",
    "vmware",
    "virtual",
    "xen",
    "bochs",
    "openstack",
    "compute engine",
    "bhyve",
    "parallels",
)
BRIDGE = 1  # header type of a bridge, without the bit for several functions
SECONDARY_BUS = 0x19  # the next byte has the last bus below the bridge
EXTENDED = 0x100  # where the list of extended capabilities begins
ACS = 0x000D
ACS_CONTROL = 6  # offset of its control register
REQUEST_REDIRECT, COMPLETION_REDIRECT = 0x04, 0x08


def word_at(config, offset):
    return config[offset] | config[offset + 1] << 8


def acs_control(config):
    """Return the ACS control register; None if the device has none.
    Raises ReadError if too little of the configuration space is readable."""
    if len(config) < 256:
        raise ReadError("the configuration space of PCI devices is whole for root alone")
    offset = EXTENDED
    for _ in range(64):  # a corrupt list must not be followed forever
        if offset < EXTENDED or offset + 8 > len(config):
            return None  # conventional PCI, or the end of the list
        kind, after = word_at(config, offset), word_at(config, offset + 2) >> 4
        if kind == ACS:
            return word_at(config, offset + ACS_CONTROL)
        offset = after
    return None


def buses_below(address, config):
    """Return the buses below a bridge, as (domain, first, last); None for other devices."""
    if len(config) < 64 or config[14] & 0x7F != BRIDGE or config[SECONDARY_BUS] == 0:
        return None
    return address[:-8], config[SECONDARY_BUS], config[SECONDARY_BUS + 1]


def is_endpoint_of_interest(folder):
    """Return whether a PCI function is a GPU, or a network card with RDMA."""
    if gpu_part(folder) == "gpu":
        return True
    kind = (read_line(folder + "class") or "").lower()
    return kind[:6] == "0x0207" or (kind[:4] == "0x02" and bool(names_in(folder + "infiniband")))


def redirecting_bridges():
    """Return the redirecting bridges above GPUs and RDMA cards, in address order."""
    bridges = []
    endpoints = []
    for address in names_in(PCI_DEVICES):
        folder = "%s/%s/" % (PCI_DEVICES, address)
        if is_endpoint_of_interest(folder):
            endpoints.append((address[:-8], int(address[-7:-5], 16)))
        elif (read_line(folder + "class") or "")[:6] == "0x0604":
            config = read_bytes(folder + "config") or b""
            below = buses_below(address, config)
            if below:
                bridges.append((address, below, config))
    redirecting = []
    for address, (domain, first, last), config in bridges:
        if any(where == domain and first <= bus <= last for where, bus in endpoints):
            control = acs_control(config) or 0
            if control & (REQUEST_REDIRECT | COMPLETION_REDIRECT):
                redirecting.append(address)
    return redirecting


def hypervisor():
    """Return the hypervisor's name according to the firmware; None on bare metal."""
    names = " ".join(read_line("/sys/class/dmi/id/" + name) or "" for name in DMI_NAMES).strip()
    flags = labelled(read_text("/proc/cpuinfo", 4 * 1024 * 1024), "flags")
    if flags is not None:  # only on x86, where every hypervisor sets the flag and no bare metal has it
        return (names or "unknown") if "hypervisor" in flags.split() else None
    return names if any(word in names.lower() for word in VIRTUAL) else None


def iommu_state():
    """Return `off`, `passthrough` (devices see untranslated memory), `translated` or `mixed`.
    This describes the groups of GPUs and RDMA cards, or all groups on a machine without any."""
    groups = set()
    for address in names_in(PCI_DEVICES):
        folder = "%s/%s/" % (PCI_DEVICES, address)
        group = (link_target(folder + "iommu_group") or "").rpartition("/")[2]
        if group and is_endpoint_of_interest(folder):
            groups.add(group)
    every = names_in("/sys/kernel/iommu_groups")
    if not every:
        return "off"
    kinds = {read_line("/sys/kernel/iommu_groups/%s/type" % group) for group in groups or every}
    if kinds == {"identity"}:
        return "passthrough"
    return "mixed" if "identity" in kinds else "translated"


def iommu_parameters():
    words = (read_line("/proc/cmdline") or "").split()
    names = ("iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict", "pci")
    return [word for word in words if word.partition("=")[0] in names]


PCI = {
    "acs_redirecting": redirecting_bridges,
    "acs_harmful": lambda: [] if hypervisor() else redirecting_bridges(),
    "iommu": iommu_state,
    "iommu_parameters": iommu_parameters,
    "hypervisor": hypervisor,
}


FAMILIES["pci"] = whole_family(PCI)
