"""The faults of network cards and their ports; see catalogue.py. `nic`: mlx5_<nic> on a healthy node."""

from faults.parameters import REQUIRED, choice, factor, number, telling, text

COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "port_rcv_remote_physical_errors",
)


def nic():
    return number("nic", REQUIRED, 0, 7, "which RDMA card between nodes")


def _later():
    return dict(factor(4.0, 1.0, 1000.0), meaning="how many times the healthy latency")


# id -> (meaning, parameters)
FAULTS = {
    "nic_missing": ("an RDMA card is not on the PCI bus", [nic()]),
    "nic_driver": ("an RDMA card is on the PCI bus, and its driver gave it up", [nic()]),
    "nic_pcie_width": (
        "an RDMA card's PCIe link trained narrow",
        [nic(), choice("width", 8, [1, 2, 4, 8], "lanes")],
    ),
    "port_down": (
        "a port is not up",
        [
            nic(),
            choice(
                "how", "polling", ["polling", "training", "recovery", "no_sm"], "what it is doing instead"
            ),
        ],
    ),
    "ports_off": (
        "every port between nodes is switched off, or without a transceiver",
        [],
    ),
    "port_slow": (
        "a port's link came up with fewer lanes, or at an older speed",
        [nic(), choice("link", "1X", ["1X", "2X", "EDR", "FDR"], "lanes, or the speed of its four")],
    ),
    "port_flaps": (
        "a port's link goes down and comes back",
        [nic(), number("count", 12, 2, 10**6, "times since boot")],
    ),
    "port_errors": (
        "a port counts errors of its link",
        [
            nic(),
            telling(choice("counter", "symbol_error", COUNTERS, "which")),
            number("count", 10**7, 1, 10**15, "errors since boot"),
        ],
    ),
    "port_mtu": (
        "the subnet manager, or the interface, gives a port a small MTU",
        [nic(), choice("mtu", 2048, [256, 512, 1024, 2048], "bytes")],
    ),
    "port_pkey": ("a port is not a member of its nodes' partition", [nic()]),
    "port_gid": (
        "a RoCE port's address stands elsewhere in the GID table",
        [nic(), choice("how", "elsewhere", ["elsewhere", "absent"], "where")],
    ),
    "port_no_sm": ("a port lost its subnet manager and is still active", [nic()]),
    "link_slow": (
        "RDMA between this node and one other is slow, with all others it is not",
        [text("peer", REQUIRED, "the other node's name"), factor(0.4)],
    ),
    "link_hang": (
        "RDMA between this node and one other connects, and nothing ever arrives",
        [text("peer", REQUIRED, "the other node's name")],
    ),
    "link_late": (
        "RDMA between this node and one other has a high latency and its usual rate",
        [text("peer", REQUIRED, "the other node's name"), _later()],
    ),
    "peers_late": ("RDMA to every other node has a high latency and its usual rate", [_later()]),
    "peers_slow": ("RDMA to every other node is slow, a loopback is not", [factor(0.4)]),
    "peers_hang": ("RDMA to every other node connects, and nothing ever arrives", []),
    "port_disabled": ("look-alike: an administrator has switched a port off", [nic()]),
    "port_errors_old": (
        "look-alike: a port's counters have errors of months",
        [
            nic(),
            telling(choice("counter", "symbol_error", COUNTERS, "which")),
            number("count", 15, 1, 200, "errors"),
        ],
    ),
    "port_flap_boot": ("look-alike: a port's link went down once, at boot", [nic()]),
    "storage_port_down": ("look-alike: nobody uses the card that is there for storage", []),
    "cables_split": ("look-alike: all ports run at half their rate, for each cable is split in two", []),
}
