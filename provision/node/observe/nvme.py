"""NVMe drives, as the kernel shows their controllers. What they say of their wear only nvme-cli asks them."""

from provision.node.observe.files import link_target, names_in, read_line
from provision.node.observe.probe import FAMILIES, whole_family

DRIVES = "/sys/class/nvme"


def nvme_drives():
    """One entry for each controller on PCIe: those of a fabric (RDMA, TCP) are no drives of ours."""
    found = []
    for name in names_in(DRIVES):
        folder = "%s/%s/" % (DRIVES, name)
        if (read_line(folder + "transport") or "pcie") != "pcie":
            continue
        found.append(
            {
                "drive": name,
                "model": read_line(folder + "model"),
                "serial": read_line(folder + "serial"),
                "firmware": read_line(folder + "firmware_rev"),
                "state": read_line(folder + "state"),
                "address": read_line(folder + "address")
                or (link_target(folder + "device") or "").rpartition("/")[2]
                or None,
            }
        )
    return found


FAMILIES["nvme"] = whole_family({"drives": nvme_drives})
