"""RDMA devices and their ports, from /sys/class/infiniband, or from tools if the kernel has no file.

`rdma.DEVICE/PORT.attribute` is about a port (`rdma.mlx5_0/1.state`), `rdma.DEVICE.attribute` about a device.
The link layer of a port, InfiniBand or Ethernet (RoCE), determines which attributes are meaningful.
"""

from provision.node.observe.files import ReadError, names_in, read_bytes, read_line
from provision.node.observe.probe import FAMILIES, Family, Probe, answered, attribute_of, item_of, single

INFINIBAND = "/sys/class/infiniband"
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
IPV4 = "0000:0000:0000:0000:0000:ffff:"  # prefix of a GID that is an IPv4 address
VPD_LIMIT = 65536
BRIDGES = {}  # PCI function -> whether it is one; cached, since product data is slow to read
PEER_MODULES = ["nvidia-peermem", "nvidia-current-peermem", "nvidia-current-open-peermem"]


def manages_switches(function):
    """Return whether a PCI card is a ConnectX bridge to NVLink 5 switches, not for network traffic.

    HGX B200 and B300 have two to four of them, with InfiniBand ports that are up. Only they have SMDL=SW_MNG
    in their product data (NVIDIA's Fabric Manager User Guide); their device ID is that of network cards."""
    if function not in BRIDGES:
        try:
            mellanox = (read_line(function + "/vendor") or "").lower() == "0x15b3"
            data = read_bytes(function + "/vpd", VPD_LIMIT) if mellanox else None
        except ReadError:
            data = None  # not every card has product data
        BRIDGES[function] = data is not None and b"SW_MNG" in data
    return BRIDGES[function]


def network_devices():
    """Return the RDMA devices that connect machines."""
    return [
        name for name in names_in(INFINIBAND) if not manages_switches("%s/%s/device" % (INFINIBAND, name))
    ]


def port_folder(item):
    device, slash, port = item.partition("/")
    return "%s/%s/ports/%s/" % (INFINIBAND, device, port if slash else "1")


def read_or_none(path):
    """Read a line; also return None if the kernel gives an error, as for an empty entry of a table."""
    try:
        return read_line(path)
    except ReadError:
        return None


def after_colon(path):
    """Return the text after the colon (4: ACTIVE -> ACTIVE)."""
    text = read_line(path)
    return None if text is None else text.partition(":")[2].strip()


def leading_number(text):
    """Return the leading number of a text (400 Gb/sec (4X NDR) -> 400; 0x1a -> 26)."""
    if text is None:
        return None
    word = (text.split() or [""])[0]
    digits = word[2:] if word[:2] == "0x" else word.partition(".")[0]
    try:
        return int(digits, 16 if word[:2] == "0x" else 10)
    except ValueError:
        raise ReadError("%r is not a number" % text) from None


def table_of(folder):
    """Return {index: text} of a table in sysfs that has a file per entry."""
    entries = {int(name): read_or_none(folder + name) for name in names_in(folder) if name.isdigit()}
    return {index: entries[index] for index in sorted(entries) if entries[index]}


def partition_keys(item):
    return sorted(set(table_of(port_folder(item) + "pkeys/").values()) - {"0x0000"})


def gid_table(item):
    """Return {index: GID}. A card has 256 entries, a software device 1024, each with a file."""
    return table_of(port_folder(item) + "gids/")


def roce_v2_ipv4(item, gids=None):
    """Return the indexes of IPv4 addresses for RoCE v2 in the GID table, for NCCL_IB_GID_INDEX.
    The table is read unless it is given."""
    folder = port_folder(item)
    gids = gid_table(item) if gids is None else gids
    own = [index for index in gids if gids[index][: len(IPV4)] == IPV4]
    return [index for index in own if read_or_none("%sgid_attrs/types/%d" % (folder, index)) == "RoCE v2"]


def netdev_of(item):
    """Return the network interface of a port."""
    first = read_or_none(port_folder(item) + "gid_attrs/ndevs/0")
    if first:
        return first
    interfaces = names_in("%s/%s/device/net" % (INFINIBAND, item.partition("/")[0]))
    return interfaces[0] if interfaces else None


def netdev_mtu(item):
    name = netdev_of(item)
    return None if name is None else leading_number(read_line("/sys/class/net/%s/mtu" % name))


def default_tos(item):
    """Return the type of service of connections made through the connection manager.
    The file exists once cma_roce_tos, or our boot unit, has created its folder."""
    device, _, port = item.partition("/")
    path = "/sys/kernel/config/rdma_cm/%s/ports/%s/default_roce_tos"
    return leading_number(read_line(path % (device, port or "1")))


def global_traffic_class(item):
    """Return the traffic class that DOCA-OFED forces (Global tclass=106); None with the inbox driver."""
    device, _, port = item.partition("/")
    text = read_line("%s/%s/tc/%s/traffic_class" % (INFINIBAND, device, port or "1"))
    return None if text is None else leading_number(text.rpartition("=")[2] or "0")


PORT = {
    "state": lambda item: after_colon(port_folder(item) + "state"),
    "phys_state": lambda item: after_colon(port_folder(item) + "phys_state"),
    "link_layer": lambda item: read_line(port_folder(item) + "link_layer"),
    "rate": lambda item: leading_number(read_line(port_folder(item) + "rate")),
    "lid": lambda item: leading_number(read_line(port_folder(item) + "lid")),
    "sm_lid": lambda item: leading_number(read_line(port_folder(item) + "sm_lid")),
    "sm_seen": lambda item: bool(leading_number(read_line(port_folder(item) + "sm_lid"))),
    "pkeys": partition_keys,
    "netdev": netdev_of,
    "netdev_mtu": netdev_mtu,
    "roce_v2_ipv4": roce_v2_ipv4,
    "roce_tos": default_tos,
    "traffic_class": global_traffic_class,
    "firmware": lambda item: read_line("%s/%s/fw_ver" % (INFINIBAND, item)),
    "board_id": lambda item: read_line("%s/%s/board_id" % (INFINIBAND, item)),
}


def rdma_ports():
    ports = []
    for device in network_devices():
        for port in names_in("%s/%s/ports" % (INFINIBAND, device)):
            item = "%s/%s" % (device, port)
            entry = {"device": device, "port": port}
            for attribute in ("link_layer", "state", "phys_state", "rate", "netdev"):
                entry[attribute] = PORT[attribute](item)
            ports.append(entry)
    return ports


def parse_devinfo(names, output):
    """Parse ibv_devinfo, since the MTU in force is in no file. A port that it does not list has none."""
    if "hca_id:" not in output and "No IB devices found" not in output:
        raise answered("ibv_devinfo", output)
    mtus = {}
    device = port = ""
    for line in output.splitlines():
        key, _, value = line.strip().partition(":")
        if key == "hca_id":
            device = value.strip()
        elif key == "port":
            port = value.strip()
        elif key == "active_mtu":
            mtus["%s/%s" % (device, port)] = leading_number(value)
    return {name: mtus.get(item_of(name)) for name in names}


def parse_pfc(names, output):
    """Parse `dcb pfc show` into the priorities that are paused instead of dropped; none without support.

    prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off"""
    for line in output.splitlines():
        words = line.split()
        if "prio-pfc" in words:
            pairs = [word.partition(":") for word in words[words.index("prio-pfc") + 1 :]]
            return {names[0]: [int(one) for one, _, state in pairs if one.isdigit() and state == "on"]}
    if "not supported" in output or "not found" in output:
        return {names[0]: []}
    raise answered("dcb", output)


def ecn_priorities(netdev):
    """Return the priorities for which a card sends congestion notifications and reacts to them.
    None if the driver has no such files (only DOCA-OFED's has them)."""
    parts = []
    for part in ("roce_np", "roce_rp"):
        folder = "/sys/class/net/%s/ecn/%s/enable/" % (netdev, part)
        parts.append({name for name in names_in(folder) if read_or_none(folder + name) == "1"})
        if not names_in(folder):
            return None
    return sorted(int(name) for name in parts[0] & parts[1])


def ethernet_ports():
    """Return (device, port, interface) of each RDMA port with Ethernet and an interface."""
    rows = [row for row in rdma_ports() if row["link_layer"] == "Ethernet" and row["netdev"]]
    return [(row["device"], row["port"], row["netdev"]) for row in rows]


def parse_roce(names, output):
    """Parse what each interface trusts for a packet's priority, `dscp` or `pcp`, from mlnx_qos or dcb:

    == ens20np0
    Priority trust state: dscp
    == ens21np0
    dscp-prio 26:3

    The inbox driver trusts DSCP once there is a rule for it (mlx5e_dcbnl_ieee_setapp, linux, drivers/net/
    ethernet/mellanox/mlx5/core/en_dcbnl.c). None if neither tool answers."""
    trusts = {}
    netdev = ""
    for line in output.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "==":
            netdev = rest
        elif word == "--":
            trusts.setdefault(netdev, "pcp")
        elif word == "dscp-prio":
            trusts[netdev] = "dscp"
        elif line.startswith("Priority trust state:"):
            trusts[netdev] = line.partition(":")[2].strip()
    found, ports = [], {}
    for device, port, netdev in ethernet_ports():
        trust, ecn = trusts.get(netdev), ecn_priorities(netdev)
        text = None if ecn is None else ",".join(map(str, ecn))
        found.append({"device": device, "port": port, "trust": trust, "ecn": text})
        ports[device + "/" + port] = {"roce_trust": trust, "roce_ecn": ecn}
    of_port = {name: ports.get(item_of(name), {}).get(attribute_of(name)) for name in names}
    return {name: found if name == "rdma.roce" else of_port[name] for name in names}


# dcb prints nothing for an interface without rules; its exit status shows whether the tool is missing.
ASK_TRUST = """for dev; do echo "== $dev"
mlnx_qos -i "$dev" 2>/dev/null || { dcb app show dev "$dev" 2>/dev/null && echo "-- $dev"; }; done"""


def roce_probe(names):
    netdevs = [netdev for _, _, netdev in ethernet_ports()]
    if not netdevs:
        return Probe(names, read=lambda: parse_roce(names, ""))
    # mlnx_qos is a Python program that is started for each interface
    return Probe(names, command=["sh", "-c", ASK_TRUST, "sh", *netdevs], parse=parse_roce, patience=2)


def parse_peermem(names, output):
    """Return `ofed`, `plain` or `absent`, by how the peer memory module was built.
    `ofed` has OFED's peer memory interface and needs its ib_core; `plain` fails with "Invalid argument"."""
    lines = [line for line in output.splitlines() if "not found" not in line]
    if len(lines) == len(output.splitlines()) and not lines:
        raise ReadError("modinfo answered nothing")
    needs = {word for line in lines for word in line.replace("_", "-").split(",")}
    kind = "absent" if not lines else "ofed" if needs & {"ib-core", "ib-uverbs"} else "plain"
    return dict.fromkeys(names, kind)


def parse_core(names, output):
    """Return whether the loaded ib_core differs from the one on disk, as after installing DOCA-OFED."""
    loaded = read_line("/sys/module/ib_core/srcversion")
    on_disk = output.split()[-1:] if "not found" not in output else []
    return dict.fromkeys(names, bool(loaded and on_disk and on_disk[0] != loaded))


TOOLS = {
    "rdma.peermem": Probe([], command=["modinfo", "-F", "depends", *PEER_MODULES], parse=parse_peermem),
    "rdma.core_stale": Probe([], command=["modinfo", "-F", "srcversion", "ib_core"], parse=parse_core),
}


def rdma_probes(names):
    probes = []
    mtus = []
    roce = []
    for name in names:
        attribute, item = attribute_of(name), item_of(name)
        if name in TOOLS:
            probes.append(Probe([name], command=TOOLS[name].command, parse=TOOLS[name].parse))
        elif name == "rdma.roce" or attribute in ("roce_trust", "roce_ecn"):
            roce.append(name)
        elif name == "rdma.devices":
            probes.append(single(name, network_devices))
        elif name == "rdma.ports":
            probes.append(single(name, rdma_ports))
        elif attribute == "active_mtu":
            mtus.append(name)
        elif attribute == "pfc":
            probes.append(pfc_probe(name))
        else:
            probes.append(single(name, PORT[attribute], item))
    if roce:
        probes.append(roce_probe(roce))
    if mtus:
        probes.append(Probe(mtus, command=["ibv_devinfo"], parse=parse_devinfo))
    return probes


def pfc_probe(name):
    netdev = netdev_of(item_of(name))
    if netdev is None:
        return single(name, lambda: None)
    return Probe([name], command=["dcb", "pfc", "show", "dev", netdev], parse=parse_pfc)


FAMILIES["rdma"] = Family(
    (*PORT, "active_mtu", "pfc", "roce_trust", "roce_ecn"),
    rdma_probes,
    whole=("devices", "ports", "roce", "peermem", "core_stale"),
)
