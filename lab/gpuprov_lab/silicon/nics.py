"""The RDMA cards of a node in the kernel's view: sys/class/infiniband, sys/class/net.

Files and their forms: Documentation/ABI/stable/sysfs-class-infiniband, drivers/infiniband/core/sysfs.c. A
port's `rate` is the number of lanes times the speed of one; an empty entry in the GID table is all zeros.
"""

import os
import shutil

import noise
from small_files import put

# board -> PCI device, PSID, firmware, hca_type
BOARDS = {
    "connectx7": ("1021", "MT_0000000838", "28.41.1000", "MT4129"),
    "connectx6": ("101b", "MT_0000000223", "20.41.1000", "MT4123"),
    "storage": ("101d", "MT_0000000359", "22.41.1000", "MT4125"),
}
LANE = {"NDR": 100, "HDR": 50, "EDR": 25, "FDR": 14}  # Gb/s of one lane
DOWN = {  # how -> state, phys_state (include/rdma/ib_verbs.h, ib_port_phys_state)
    "polling": ("1: DOWN", "2: Polling"),
    "training": ("1: DOWN", "4: PortConfigurationTraining"),
    "recovery": ("1: DOWN", "6: LinkErrorRecovery"),
    "no_sm": ("2: INIT", "5: LinkUp"),
}
ERRORS = (
    *("VL15_dropped", "excessive_buffer_overrun_errors", "link_downed", "link_error_recovery"),
    *("local_link_integrity_errors", "port_rcv_constraint_errors", "port_rcv_errors"),
    *("port_rcv_remote_physical_errors", "port_rcv_switch_relay_errors", "port_xmit_constraint_errors"),
    *("port_xmit_discards", "symbol_error"),
)
HW_ERRORS = (
    *(
        "duplicate_request",
        "implied_nak_seq_err",
        "local_ack_timeout_err",
        "out_of_buffer",
        "out_of_sequence",
    ),
    *("packet_seq_err", "req_cqe_error", "resp_cqe_error", "rnr_nak_retry_err", "rx_icrc_encapsulated"),
)
# The other counters of mlx5, as on a ConnectX-7 of an H100 machine: all are zero.
HW_OTHERS = (
    *("req_cqe_flush_error", "req_remote_access_errors", "req_remote_invalid_request"),
    *("resp_cqe_flush_error", "resp_local_length_error", "resp_remote_access_errors", "roce_adp_retrans"),
    *("roce_adp_retrans_to", "roce_slow_restart", "roce_slow_restart_cnps", "roce_slow_restart_trans"),
    *("rx_atomic_requests", "rx_dct_connect"),
)
HW_ROCE = ("np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored")
# The kernel shows no larger number, and a full counter stays full: InfiniBand Architecture Specification,
# volume 1, PortCounters; drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR (4, 8 or 16 bits).
MOST = {
    **dict.fromkeys(ERRORS, 2**16 - 1),
    **dict.fromkeys(("link_error_recovery", "link_downed"), 2**8 - 1),
    **dict.fromkeys(("port_rcv_constraint_errors", "port_xmit_constraint_errors"), 2**8 - 1),
    **dict.fromkeys(("local_link_integrity_errors", "excessive_buffer_overrun_errors"), 2**4 - 1),
}
NO_GID = ":".join(["0000"] * 8)
FOLDER = "sys/class/infiniband"
NETDEVS = "sys/class/net"


def fitted(gpus: list, architecture: str, network: str) -> list:
    """Return a new node's cards: one per GPU between nodes, on the next free bus, and one for storage."""
    if network == "none":
        return []
    older = architecture in ("Ampere", "Ada", "cdna2")
    board, speed = ("connectx6", "HDR") if older else ("connectx7", "NDR")
    cards = []
    # The two buses below a GPU's own may belong to its bridges.
    taken = {int(gpu["bus"], 16) - below for gpu in gpus for below in (0, 1, 2)} | {0x2A}
    for gpu in gpus:
        bus = next(number for number in range(int(gpu["bus"], 16) + 1, 256) if number not in taken)
        taken.add(bus)
        address = f"0000:{bus:02x}:00.0"
        cards.append(
            {"board": board, "speed": speed, "layer": network, "address": address, "numa": gpu["numa"]}
        )
    cards.append({"board": "storage", "speed": "HDR", "layer": "roce", "address": "0000:2a:00.0", "numa": 0})
    return [dict(card, number=number) for number, card in enumerate(cards)]


def all_of(node) -> list:
    """Return the cards that the node was created with."""
    return node.data.get("nics", [])


def on_bus(node) -> list:
    """Return the cards on the PCI bus."""
    return [card for card in all_of(node) if not node.fault("nic_missing", nic=card["number"])]


def working(node) -> list:
    """Return the cards with a driver, each with its device `name`, which the kernel numbers in order."""
    with_driver = [card for card in on_bus(node) if not node.fault("nic_driver", nic=card["number"])]
    return [dict(card, name=f"mlx5_{place}") for place, card in enumerate(with_driver)]


def pci(node):
    """Yield (address, files) of the cards on the PCI bus."""
    for card in on_bus(node):
        yield (
            card["address"],
            {
                "vendor": "0x15b3",
                "device": "0x" + BOARDS[card["board"]][0],
                "subsystem_vendor": "0x15b3",
                "subsystem_device": "0x0026",
                "class": "0x020700" if card["layer"] == "ib" else "0x020000",
                "revision": "0x00",
                "numa_node": str(card["numa"]),
                "enable": "1",
                "max_link_width": "16",
                "current_link_width": str(node.given("nic_pcie_width", "width", 16, nic=card["number"])),
                "max_link_speed": "32.0 GT/s PCIe",
                "current_link_speed": "32.0 GT/s PCIe",
            },
        )


def write(node) -> None:
    """Write the devices according to the faults, in place, since folders may be mounted elsewhere."""
    folder = node.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    bus = node.folder / "sys/bus/pci"
    bus.mkdir(parents=True, exist_ok=True)
    if not (bus / "devices").is_symlink():
        (bus / "devices").symlink_to("../../../sys_pci")
    cards = working(node)
    names = {card["name"] for card in cards}
    for known in folder.iterdir():
        if known.name not in names:
            shutil.rmtree(str(known))
    for card in on_bus(node):
        shutil.rmtree(str(node.folder / "sys_pci" / card["address"] / "infiniband"), ignore_errors=True)
    for card in cards:
        place = folder / card["name"]
        link, target = place / "device", "../../../bus/pci/devices/" + card["address"]
        if not link.is_symlink() or os.readlink(str(link)) != target:  # noqa: PTH115 (came with 3.9)
            shutil.rmtree(str(place), ignore_errors=True)  # the name belonged to another card
            (place / "ports/1").mkdir(parents=True)
            link.symlink_to(target)
        infiniband = node.folder / "sys_pci" / card["address"] / "infiniband" / card["name"]
        infiniband.mkdir(parents=True, exist_ok=True)
        _, psid, firmware, kind = BOARDS[card["board"]]
        files = {"board_id": psid, "fw_ver": firmware, "hca_type": kind, "node_type": "1: CA", "hw_rev": "0"}
        guid = guid_of(node, card)
        put(place, {**files, "node_guid": guid, "sys_image_guid": guid})
        put(place / "ports/1", port_files(node, card))
        _write_netdev(node, card)


def link_of(node, card):
    """Return (state, phys_state, lanes, speed) of a card's port."""
    number = card["number"]
    lanes, speed = 4, card["speed"]
    if node.fault("cables_split") and card["board"] != "storage":
        lanes = 2
    slow = node.fault("port_slow", nic=number)
    if slow:
        lanes = int(slow["link"][0]) if slow["link"][0].isdigit() else lanes
        speed = speed if slow["link"][0].isdigit() else slow["link"]
    ethernet = card["layer"] == "roce"
    down = node.fault("port_down", nic=number)
    if _switched_off(node, card):
        return "1: DOWN", "3: Disabled", 4, "SDR"
    if down:
        state, physical = DOWN[down["how"]]
        # An Ethernet driver only knows whether there is a carrier.
        return state, "3: Disabled" if ethernet and state == "1: DOWN" else physical, lanes, speed
    return "4: ACTIVE", "5: LinkUp", lanes, speed


def _switched_off(node, card) -> bool:
    """Whether a port is Disabled: by `ibportstate disable`, `ip link set down` or an empty cage."""
    if card["board"] == "storage":
        return bool(node.fault("storage_port_down"))
    return bool(node.fault("ports_off") or node.fault("port_disabled", nic=card["number"]))


def rate_of(node, card) -> int:
    """Return the current Gb/s of a card's port."""
    _, _, lanes, speed = link_of(node, card)
    return lanes * LANE.get(speed, 2)


def port_files(node, card) -> dict:
    """Return name -> text of the files of a port."""
    state, physical, lanes, speed = link_of(node, card)
    ethernet = card["layer"] == "roce"
    managed = not ethernet and state == "4: ACTIVE"
    lid = 16 + int(noise.fraction(node.seed, node.name, "lid", card["number"]) * 4000)
    lost = node.fault("port_no_sm", nic=card["number"])
    rate = lanes * LANE.get(speed, 2)
    files = {
        "state": state,
        "phys_state": physical,
        "link_layer": "Ethernet" if ethernet else "InfiniBand",
        "rate": f"{rate} Gb/sec ({lanes}X {speed})" if speed != "SDR" else "10 Gb/sec (4X SDR)",
        "lid": f"0x{lid if managed else 0:x}" if not ethernet else "0x0",
        "sm_lid": "0x1" if managed and not lost else "0x0",
        "sm_sl": "0",
        "lid_mask_count": "0",
        "cap_mask": "0xa751e848" if not ethernet else "0x04010000",
    }
    keys = ["0x7fff"] + ([] if node.fault("port_pkey", nic=card["number"]) else ["0x8001"])
    for index in range(8):
        files[f"pkeys/{index}"] = (
            (keys[index] if index < len(keys) else "0x0000")
            if not ethernet
            else ("0xffff" if index == 0 else "0x0000")
        )
    files.update(_gids(node, card))
    files.update(_counters(node, card))
    return files


def guid_of(node, card) -> str:
    """Return the GUID of a card, of its only port, and of its image."""
    digits = noise.hexadecimal(16, node.seed, node.name, "guid", card["number"])
    return ":".join(digits[i : i + 4] for i in range(0, 16, 4))


def _gids(node, card) -> dict:
    words = (node.seed, node.name, "guid", card["number"])
    local = "fe80:0000:0000:0000:" + guid_of(node, card)
    if card["layer"] != "roce":
        return {"gids/0": local, "gids/1": NO_GID, "gid_attrs/types/0": "IB/RoCE v1"}
    octets = 10, 10 + card["number"], int(noise.fraction(*words) * 250), 7
    mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*octets)
    table = [(local, "IB/RoCE v1"), (local, "RoCE v2"), (mapped, "IB/RoCE v1"), (mapped, "RoCE v2")]
    wrong = node.fault("port_gid", nic=card["number"])
    if card["board"] == "storage" or (wrong and wrong["how"] == "absent"):
        table = table[:2]
    elif wrong:
        table = [*table[:2], (NO_GID, ""), (NO_GID, ""), *table[2:]]
    files = {}
    for index in range(8):
        gid, kind = table[index] if index < len(table) else (NO_GID, "")
        files[f"gids/{index}"] = gid
        files[f"gid_attrs/types/{index}"] = kind
    files["gid_attrs/ndevs/0"] = netdev(card)
    return files


def _counters(node, card) -> dict:
    number = card["number"]
    words = (node.seed, node.name, "counter", number)
    traffic = int(10**12 * (0.5 + noise.fraction("traffic", *words)))
    values = dict.fromkeys(ERRORS, 0)
    # A working port has seen a few bad packets since its card was reset, and came up once.
    values["port_rcv_errors"] = int(noise.fraction("rcv", *words) * 12)
    values["excessive_buffer_overrun_errors"] = int(noise.fraction("overrun", *words) * 12)
    values["symbol_error"] = int(noise.fraction("symbol", *words) * 30)
    values["link_downed"] = 1 if noise.fraction("downed", *words) < 0.2 else 0
    values.update(
        port_rcv_data=traffic * 250,
        port_xmit_data=traffic * 249,
        port_rcv_packets=traffic,
        port_xmit_packets=traffic - traffic // 400,
        unicast_rcv_packets=traffic,
        unicast_xmit_packets=traffic - traffic // 400,
        multicast_rcv_packets=0,
        multicast_xmit_packets=0,
        port_xmit_wait=traffic // 130,
    )
    for fault in node.faults:
        if fault.get("nic") != number:
            continue
        if fault["id"] in ("port_errors", "port_errors_old"):
            values[fault["counter"]] = fault["count"]
        elif fault["id"] == "port_flaps":
            values["link_downed"] = fault["count"] if card["layer"] == "ib" else 0
        elif fault["id"] == "port_flap_boot":
            values["link_downed"] = 1
    values.update({name: min(values[name], most) for name, most in MOST.items()})
    files = {f"counters/{name}": str(value) for name, value in values.items()}
    files.update({f"hw_counters/{name}": "0" for name in HW_ERRORS + HW_OTHERS})
    if card["layer"] == "roce":
        files.update({f"hw_counters/{name}": "0" for name in HW_ROCE})
    files["hw_counters/lifespan"] = "12"
    files["hw_counters/rx_write_requests"] = str(traffic // 90)
    files["hw_counters/rx_read_requests"] = str(traffic // 40000)
    return files


def netdev(card) -> str:
    """Return the network interface behind a RoCE port."""
    return "ens{}np0".format(20 + card["number"])


def _write_netdev(node, card) -> None:
    if card["layer"] != "roce":
        return
    place = node.folder / NETDEVS / netdev(card)
    place.mkdir(parents=True, exist_ok=True)
    (place / "flags").write_text("0x1002\n" if _switched_off(node, card) else "0x1003\n")
    downs = node.given("port_flaps", "count", 1, nic=card["number"])
    (place / "carrier_down_count").write_text(f"{downs}\n")
    (place / "mtu").write_text(f"{9000 if mtu_of(node, card) == 4096 else 1500}\n")


def mtu_of(node, card) -> int:
    """Return the active RDMA MTU in bytes."""
    return node.given("port_mtu", "mtu", 4096, nic=card["number"])
