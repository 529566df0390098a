"""The hca family: all RDMA ports of a machine at once, on trees modelled on its /sys."""

from __future__ import annotations

import json
from typing import Any

import pytest

from provision.checks.on_node import ports
from provision.remote import protocol
from tests.node.machine import Tree
from tests.node.ports import IPV4_GID, LINK_LOCAL_GID, ZERO_GID, port

IB, ROCE = "/sys/class/infiniband/mlx5_0", "/sys/class/infiniband/mlx5_1"


@pytest.fixture
def tree(tree: Tree) -> Tree:
    for device, number in ((IB, 0), (ROCE, 1)):
        address = f"/sys/bus/pci/devices/0000:1{number}:00.0"
        tree.lines(address, **{"class": "0x020000" if number else "0x020700", "vendor": "0x15b3"})
        tree.lines(address, device="0x1021", max_link_width=16)
        tree.lines(f"{address}/infiniband/mlx5_{number}", fw_ver="28.39.1002")
        tree.link(f"{device}/device", f"../../../bus/pci/devices/0000:1{number}:00.0")
        port(tree, device, roce=bool(number), pkeys=("0x7fff", "0x0000"))
        tree.lines(f"{device}/ports/1/counters", symbol_error=7, link_downed=1)
        tree.lines(f"{device}/ports/1/gids", **{"0": LINK_LOCAL_GID, "1": ZERO_GID})
    tree.lines(f"{ROCE}/ports/1/gids", **{"3": IPV4_GID})
    tree.lines(f"{ROCE}/ports/1/gid_attrs/types", **{"3": "RoCE v2"})
    tree.lines(f"{ROCE}/ports/1/gid_attrs/ndevs", **{"0": "eth2"})
    tree.lines("/sys/class/net/eth2", flags="0x1003", carrier_down_count=4)
    return tree


def test_every_port_with_what_it_is_and_how_it_is(tree: Tree) -> None:
    infiniband, roce = tree.value("hca.ports")
    assert infiniband == {
        **{"device": "mlx5_0", "port": "1", "link_layer": "InfiniBand", "state": "ACTIVE"},
        **{"phys_state": "LinkUp", "rate": 400, "link": "4X NDR", "lid": 42, "sm_lid": 1},
        **{"board_id": "MT_0000000838", "address": "0000:10:00.0", "pkeys": "0x7fff", "gids": 1},
        **{"roce_v2_ipv4": "", "netdev": None, "netdev_up": None, "carrier_downs": None},
    }
    assert (roce["roce_v2_ipv4"], roce["gids"], roce["netdev"], roce["netdev_up"]) == ("3", 2, "eth2", True)
    assert roce["carrier_downs"] == 4


def test_an_interface_that_is_switched_off_is_told_from_one_without_a_carrier(tree: Tree) -> None:
    tree.lines("/sys/class/net/eth2", flags="0x1002")
    assert tree.value("hca.ports")[1]["netdev_up"] is False


def test_counters_of_errors_and_null_for_those_a_port_does_not_have(tree: Tree) -> None:
    entry = tree.value("hca.counters")[0]
    assert (entry["device"], entry["symbol_error"], entry["link_downed"]) == ("mlx5_0", 7, 1)
    assert entry["local_link_integrity_errors"] is None
    assert entry["packet_seq_err"] is None
    tree.lines(f"{IB}/ports/1/hw_counters", packet_seq_err=3, np_cnp_sent=1333)
    tree.lines(f"{IB}/ports/1/counters", port_rcv_packets=971, port_xmit_packets=969)
    entry = tree.value("hca.counters")[0]
    assert (entry["packet_seq_err"], entry["np_cnp_sent"]) == (3, 1333)
    assert (entry["port_rcv_packets"], entry["port_xmit_packets"]) == (971, 969)
    tree.file(f"{IB}/ports/1/counters/symbol_error", "a few\n")
    assert tree.value("hca.counters")[0]["symbol_error"] is None


def test_a_card_on_the_bus_without_a_driver_is_seen(tree: Tree) -> None:
    pci = "/sys/bus/pci/devices"
    tree.lines(f"{pci}/0000:20:00.0", **{"class": "0x020700", "vendor": "0x15b3", "device": "0x1021"})
    tree.lines(f"{pci}/0000:21:00.0", **{"class": "0x020000", "vendor": "0x8086"})  # an ordinary network card
    assert tree.value("hca.functions") == [
        {"address": "0000:10:00.0", "device_id": "1021", "device": "mlx5_0", "link_width_max": 16},
        {"address": "0000:11:00.0", "device_id": "1021", "device": "mlx5_1", "link_width_max": 16},
        {"address": "0000:20:00.0", "device_id": "1021", "device": None, "link_width_max": None},
    ]


def test_bridges_to_the_nvlink_switches_are_no_network(tree: Tree) -> None:
    # HGX B200 with RoCE cards: its bridges would be the only InfiniBand ports, and be taken for the network.
    tree.file("/sys/bus/pci/devices/0000:10:00.0/vpd", "\x82\x0dConnectX\x90V3\x0bSMDL=SW_MNG\x78")
    tree.file("/sys/bus/pci/devices/0000:11:00.0/vpd", "\x82\x0dConnectX\x90V3\x0bSMDL=MCX75310\x78")
    for fact in ("hca.ports", "hca.counters", "hca.functions", "rdma.ports"):
        assert [row["device"] for row in tree.value(fact)] == ["mlx5_1"], fact
    assert tree.value("rdma.devices") == ["mlx5_1"]


def test_the_mtu_of_every_port_comes_from_one_call(tree: Tree) -> None:
    assert "ibv_devinfo is not installed" in tree.problem("hca.mtus")
    block = "hca_id:\\tmlx5_0\\n\\t\\tport:\\t1\\n\\t\\t\\tactive_mtu:\\t4096 (5)\\n"
    tree.tool("ibv_devinfo", f"printf '{block}'")
    assert tree.value("hca.mtus") == {"mlx5_0/1": 4096}
    tree.tool("ibv_devinfo", "echo 'Failed to get IB devices list: Function not implemented' >&2; exit 255")
    assert "Function not implemented" in tree.problem("hca.mtus")


@pytest.mark.parametrize(
    ("fact", "nothing"), [("ports", []), ("counters", []), ("functions", []), ("mtus", {})]
)
def test_a_machine_without_such_cards(bare: Tree, fact: str, nothing: Any) -> None:
    assert bare.value(f"hca.{fact}") == nothing


def test_how_long_a_machine_has_run_since_its_first_process(bare: Tree) -> None:
    tree = bare
    assert tree.value("clock.uptime_s") is None
    tree.file("/proc/uptime", "100000.25 799123.11\n")
    assert tree.value("clock.uptime_s") == 100000
    # A container's first process is younger than the kernel; a name may contain spaces and brackets.
    tree.file("/proc/1/stat", "1 (my (init) d) S 0 1 1 0 -1 4194560 " + "0 " * 12 + "9000000 0 0\n")
    assert tree.value("clock.uptime_s") == 100000 - 9000000 // 100


BOOT = "5f0a6c1e-0000-4000-8000-000000000001"
MESSAGES = (
    *("mlx5_core 0000:11:00.0 eth2: Link down", "mlx5_core 0000:11:00.0 eth2: Link up"),
    *("mlx5_core 0000:11:00.0 eth2: Link down", "mlx5_core 0000:11:00.0 eth2: Link up"),
    *("mlx5_core 0000:11:00.0 eth2: Link down", "mlx5_core 0000:12:00.0 eth3: Link down"),
    "x[11176]: segfault at 0 in x\nmlx5_core 0000:11:00.0 eth2: Link up",
    "x[11176]: segfault at 0 in x\nmlx5_core 0000:11:00.0 eth2: Link down",
)


def test_link_losses_of_the_kernel_log_begin_with_a_link_that_was_up(tree: Tree) -> None:
    lines = [json.dumps({"MESSAGE": message}) for message in MESSAGES]
    tree.file("/journal", "\n".join([*lines, '{"MESSAGE": [1, 2]}', "-- No entries --", ""]))
    tree.tool("journalctl", f"cat {tree.root}/journal")
    assert tree.value("hca.link_downs") == {"eth2": 2}


def test_the_counters_stored_by_the_health_program_are_of_a_day_ago_and_of_this_boot(tree: Tree) -> None:
    assert tree.value("hca.earlier") is None
    tree.file("/proc/sys/kernel/random/boot_id", f"{BOOT}\n")
    folder = tree.root / "var/lib/gpuprov/node-health"
    folder.mkdir(parents=True)
    for hour in range(40):
        tree.file(f"{IB}/ports/1/counters/link_downed", f"{hour}\n")
        facts = tree.values("hca.ports", "hca.counters")
        for minutes in (0, 10) if hour in (0, 39) else (0,):  # a second run within the hour adds nothing
            ports.keep(folder, facts, BOOT, 1000.5 + hour * 3600 + minutes * 60)
    found = tree.value("hca.earlier")
    answer = protocol.unframed(tree.run("hca.earlier", "hca.counters"))
    facts_of, _ = protocol.facts_of(answer, ["hca.earlier", "hca.counters"])
    assert facts_of["hca.earlier"] == found, "a form that the controller accepts from a node"
    infiniband, roce = found
    assert (infiniband["uptime"], infiniband["link_downed"]) == (1000 + 15 * 3600, 15)
    assert (infiniband["carrier_downs"], roce["carrier_downs"]) == (None, 4)
    assert len(json.loads((folder / ports.FILE).read_text())["samples"]) == 25
    tree.file("/proc/sys/kernel/random/boot_id", "another\n")
    assert tree.value("hca.earlier") is None
    ports.keep(folder, facts, "another", 60.0)
    assert tree.value("hca.earlier")[0]["uptime"] == 60, "the counters of the boot before are forgotten"
    tree.file("/var/lib/gpuprov/node-health/ports.json", "{")
    assert "is damaged" in tree.problem("hca.earlier")
    ports.keep(folder, facts, "another", 120.0)
    assert tree.value("hca.earlier")[0]["uptime"] == 120


def test_stored_counters_have_the_uptime_that_their_age_is_taken_from(tree: Tree) -> None:
    folder = tree.root / "var/lib/gpuprov/node-health"
    folder.mkdir(parents=True)
    tree.file("/proc/sys/kernel/random/boot_id", f"{BOOT}\n")
    facts = {**tree.values("hca.ports", "hca.counters"), "clock.uptime_s": 500}
    ports.keep(folder, facts, BOOT, 90000.0)  # the kernel is older than this container
    assert {row["uptime"] for row in tree.value("hca.earlier")} == {500}
