"""NVMe drives, as the kernel lists their controllers. Only nvme-cli can read their wear."""

from provision.node.observe.files import link_target, names_in, read_line
from provision.node.observe.probe import FAMILIES, whole_family

DRIVES = "/sys/class/nvme"


def nvme_drives():
    """Return one entry per PCIe controller; fabric controllers (RDMA, TCP) are not local drives."""
    drives = []
    for name in names_in(DRIVES):
        folder = "%s/%s/" % (DRIVES, name)
        if (read_line(folder + "transport") or "pcie") != "pcie":
            continue
        drives.append(
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
    return drives


FAMILIES["nvme"] = whole_family({"drives": nvme_drives})
