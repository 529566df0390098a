"""Network cards with RDMA, in facts about all cards, so that their names need not be known.

`hca.ports` and `hca.counters` have an entry for each port in /sys/class/infiniband; `hca.functions` has such
cards on the PCI bus, with or without a driver; `hca.mtus` the MTU in force of each `DEVICE/PORT`;
`hca.earlier` the counters of a day ago, stored by the node's health program; `hca.link_downs` the link losses
in the kernel log of the last day. Bridges to NVLink 5 switches, which are RDMA devices too, are left out.
"""

from provision.node.observe.files import ReadError, link_target, names_in, read_line, read_text
from provision.node.observe.probe import FAMILIES, Probe, single, whole_family
from provision.node.observe.rdma import (
    INFINIBAND,
    NO_GID,
    PORT,
    gid_table,
    manages_switches,
    netdev_of,
    network_devices,
    parse_devinfo,
    partition_keys,
    port_folder,
    read_or_none,
    roce_v2_ipv4,
)

PCI_FOLDER = "/sys/bus/pci/devices"
NETWORK, INFINIBAND_CLASS = "0x02", "0x0207"
MELLANOX = "0x15b3"
STORED_COUNTERS = "/var/lib/gpuprov/node-health/ports.json"  # written by provision/checks/on_node/ports.py
# netdev_info of mlx5e_update_carrier: linux, drivers/net/ethernet/mellanox/mlx5/core/en_main.c
LINK_CHANGE = r"mlx5_core [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (\S{1,15}): Link (up|down)\Z"
UP = 1  # IFF_UP, include/uapi/linux/if.h: the interface is administratively up
# Errors of the link and of packets (Documentation/ABI/stable/sysfs-class-infiniband).
COUNTERS = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_rcv_constraint_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
)
# Retransmissions and congestion, in hw_counters; those offered by mlx5 depend on the card and the link layer
# (linux, drivers/infiniband/hw/mlx5/counters.c).
HW_COUNTERS = (
    "packet_seq_err",
    "out_of_sequence",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "rnr_nak_retry_err",
    "rx_icrc_encapsulated",
    "roce_adp_retrans",
    "roce_slow_restart",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "rp_cnp_handled",
)
PACKETS = ("port_rcv_packets", "port_xmit_packets")  # how much traffic a port had
STORED = ("device", "port", "carrier_downs", *COUNTERS, *PACKETS, *HW_COUNTERS)


def items():
    """Return DEVICE/PORT of every port."""
    return [
        "%s/%s" % (device, port)
        for device in network_devices()
        for port in names_in("%s/%s/ports" % (INFINIBAND, device))
    ]


def link_words(item):
    """Return the link type of `400 Gb/sec (4X NDR)`; an old kernel or a port that is down may not have it."""
    text = read_or_none(port_folder(item) + "rate") or ""
    return text.partition("(")[2].partition(")")[0].strip() or None


def netdev_is_up(netdev):
    """Return whether the interface is administratively up, even without carrier; None without interface."""
    text = read_or_none("/sys/class/net/%s/flags" % netdev) if netdev else None
    return bool(int(text, 16) & UP) if text and text[:2] == "0x" else None


def carrier_downs(netdev):
    """Count how often the interface has lost its carrier since it was created, at boot."""
    text = read_or_none("/sys/class/net/%s/carrier_down_count" % netdev) if netdev else None
    return int(text) if text and text.isdigit() else None


def port_entry(item):
    device, _, port = item.partition("/")
    netdev = netdev_of(item)
    table = gid_table(item)
    gids = [gid for gid in table.values() if gid != NO_GID and gid[-19:] != NO_GID[-19:]]
    entry = {"device": device, "port": port}
    for attribute in ("link_layer", "state", "phys_state", "rate", "lid", "sm_lid"):
        entry[attribute] = PORT[attribute](item)
    entry.update(
        board_id=read_or_none("%s/%s/board_id" % (INFINIBAND, device)),
        address=(link_target("%s/%s/device" % (INFINIBAND, device)) or "").rpartition("/")[2] or None,
        link=link_words(item),
        pkeys=",".join(partition_keys(item)),
        gids=len(gids),
        roce_v2_ipv4=",".join(str(index) for index in roce_v2_ipv4(item, table)),
        netdev=netdev,
        netdev_up=netdev_is_up(netdev),
        carrier_downs=carrier_downs(netdev),
    )
    return entry


def counter_entry(item):
    device, _, port = item.partition("/")
    entry = {"device": device, "port": port}
    paths = [(name, "counters/") for name in (*COUNTERS, *PACKETS)] + [
        (name, "hw_counters/") for name in HW_COUNTERS
    ]
    for name, folder in paths:
        text = read_or_none(port_folder(item) + folder + name)
        # For a port without this counter (virtual function, other vendor), the file is missing or unreadable.
        entry[name] = int(text) if text and text.isdigit() and len(text) < 19 else None
    return entry


def earlier():
    """Return the rows of `hca.counters` that the health program stored in this boot, or None.
    They are at least a day old if it has run that long; `uptime` is the time of their reading in seconds."""
    import json

    text = read_text(STORED_COUNTERS, 1024 * 1024)
    if text is None:
        return None
    try:
        document = json.loads(text)
        if document["boot_id"] != read_line("/proc/sys/kernel/random/boot_id"):
            return None
        sample = document["samples"][0]
        rows = [{key: row[key] for key in row if key in STORED} for row in sample["counters"]]
        if not all(value is None or isinstance(value, (int, str)) for row in rows for value in row.values()):
            raise ValueError("a counter is no number")
        return [dict(row, uptime=int(sample["uptime"])) for row in rows]
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError):
        raise ReadError("%s is damaged" % STORED_COUNTERS) from None


def parse_link_downs(names, output):
    """Count by interface how often the link went from up to down.
    A message must match as a whole, because a user's text within one may have line feeds."""
    import json
    import re

    change = re.compile(LINK_CHANGE)
    up, downs = set(), {}
    for line in output.splitlines():
        try:
            match = change.match(json.loads(line)["MESSAGE"])
        except (ValueError, KeyError, TypeError):
            continue  # "-- No entries --", or a message that is not text
        if not match:
            continue
        netdev, state = match.groups()
        if state == "up":
            up.add(netdev)
        elif netdev in up:  # the driver also reports "down" for an interface that never was up
            up.remove(netdev)
            downs[netdev] = downs.get(netdev, 0) + 1
    return dict.fromkeys(names, downs)


def link_downs_probe(name):
    grep = ["--grep", "^mlx5_core .* Link (up|down)$", "--output-fields=MESSAGE"]
    command = ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "json", "--since=-24h", *grep]
    return Probe([name], command=command, parse=parse_link_downs)


def functions():
    """Return the PCI functions of network cards, by Mellanox or with the class InfiniBand."""
    cards = []
    for address in names_in(PCI_FOLDER):
        folder = "%s/%s/" % (PCI_FOLDER, address)
        kind = (read_line(folder + "class") or "").lower()
        ours = (read_line(folder + "vendor") or "").lower() == MELLANOX
        network = kind[:6] == INFINIBAND_CLASS or (ours and kind[:4] == NETWORK)
        if network and not manages_switches(folder[:-1]):
            width = read_or_none(folder + "max_link_width") or ""
            cards.append(
                {
                    "address": address,
                    "device_id": (read_line(folder + "device") or "").replace("0x", ""),
                    "device": (names_in(folder + "infiniband") or [None])[0],
                    "link_width_max": int(width) if width.isdigit() else None,
                }
            )
    return cards


def parse_mtus(names, output):
    # Not every version prints "0 HCAs found"; the parser of a single port's MTU knows the variants.
    every = ["rdma.%s.active_mtu" % item for item in items()]
    facts = parse_devinfo(every, output)
    mtus = {name[len("rdma.") : -len(".active_mtu")]: facts[name] for name in every}
    return {name: {item: mtus[item] for item in mtus if mtus[item]} for name in names}


def mtus_probe(name):
    if not names_in(INFINIBAND):
        return single(name, dict)
    return Probe([name], command=["ibv_devinfo"], parse=parse_mtus)


FAMILIES["hca"] = whole_family(
    {
        "ports": lambda: [port_entry(item) for item in items()],
        "counters": lambda: [counter_entry(item) for item in items()],
        "functions": functions,
        "earlier": earlier,
    },
    tools={"mtus": mtus_probe, "link_downs": link_downs_probe},
)
