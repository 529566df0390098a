"""The hca family: every RDMA port of a machine at once, over trees that look like its /sys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.node.tree import Tree

ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
IB, ROCE = "/sys/class/infiniband/mlx5_0", "/sys/class/infiniband/mlx5_1"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "root")
    for device, layer, link, lids in (
        (IB, "InfiniBand", "400 Gb/sec (4X NDR)", ("0x2a", "0x1")),
        (ROCE, "Ethernet", "200 Gb/sec (4X HDR)", ("0x0", "0x0")),
    ):
        name = device.rpartition("/")[2]
        address = f"0000:1{name[-1]}:00.0"
        tree.file(
            f"/sys/bus/pci/devices/{address}/class", "0x020700\n" if layer == "InfiniBand" else "0x020000\n"
        )
        tree.file(f"/sys/bus/pci/devices/{address}/vendor", "0x15b3\n")
        tree.file(f"/sys/bus/pci/devices/{address}/device", "0x1021\n")
        tree.file(f"/sys/bus/pci/devices/{address}/infiniband/{name}/fw_ver", "28.39.1002\n")
        tree.file(f"/sys/bus/pci/devices/{address}/max_link_width", "16\n")
        tree.link(f"{device}/device", f"../../../bus/pci/devices/{address}")
        tree.file(f"{device}/board_id", "MT_0000000838\n")
        port = f"{device}/ports/1"
        tree.file(f"{port}/state", "4: ACTIVE\n")
        tree.file(f"{port}/phys_state", "5: LinkUp\n")
        tree.file(f"{port}/link_layer", layer + "\n")
        tree.file(f"{port}/rate", link + "\n")
        tree.file(f"{port}/lid", lids[0] + "\n")
        tree.file(f"{port}/sm_lid", lids[1] + "\n")
        tree.file(f"{port}/counters/symbol_error", "7\n")
        tree.file(f"{port}/counters/link_downed", "1\n")
        tree.file(f"{port}/pkeys/0", "0x7fff\n")
        tree.file(f"{port}/pkeys/1", "0x0000\n")
        tree.file(f"{port}/gids/0", "fe80:0000:0000:0000:bace:f6ff:fe12:3456\n")
        tree.file(f"{port}/gids/1", ZERO + "\n")
    tree.file(f"{ROCE}/ports/1/gids/3", "0000:0000:0000:0000:0000:ffff:0a00:0107\n")
    tree.file(f"{ROCE}/ports/1/gid_attrs/types/3", "RoCE v2\n")
    tree.file(f"{ROCE}/ports/1/gid_attrs/ndevs/0", "eth2\n")
    tree.file("/sys/class/net/eth2/flags", "0x1003\n")
    tree.file("/sys/class/net/eth2/carrier_down_count", "4\n")
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
    tree.file("/sys/class/net/eth2/flags", "0x1002\n")
    assert tree.value("hca.ports")[1]["netdev_up"] is False


def test_counters_of_errors_and_null_for_those_a_port_does_not_have(tree: Tree) -> None:
    entry = tree.value("hca.counters")[0]
    assert (entry["device"], entry["symbol_error"], entry["link_downed"]) == ("mlx5_0", 7, 1)
    assert entry["local_link_integrity_errors"] is None
    tree.file(f"{IB}/ports/1/counters/symbol_error", "a few\n")
    assert tree.value("hca.counters")[0]["symbol_error"] is None


def test_a_card_on_the_bus_without_a_driver_is_seen(tree: Tree) -> None:
    tree.file("/sys/bus/pci/devices/0000:20:00.0/class", "0x020700\n")
    tree.file("/sys/bus/pci/devices/0000:20:00.0/vendor", "0x15b3\n")
    tree.file("/sys/bus/pci/devices/0000:20:00.0/device", "0x1021\n")
    tree.file("/sys/bus/pci/devices/0000:21:00.0/class", "0x020000\n")  # an ordinary network card
    tree.file("/sys/bus/pci/devices/0000:21:00.0/vendor", "0x8086\n")
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
    blocks = "".join(
        f"hca_id:\\t{name}\\n\\t\\tport:\\t1\\n\\t\\t\\tactive_mtu:\\t4096 (5)\\n" for name in ("mlx5_0",)
    )
    tree.tool("ibv_devinfo", f"printf '{blocks}'")
    assert tree.value("hca.mtus") == {"mlx5_0/1": 4096}
    tree.tool("ibv_devinfo", "echo 'Failed to get IB devices list: Function not implemented' >&2; exit 255")
    assert "Function not implemented" in tree.problem("hca.mtus")


@pytest.mark.parametrize(
    ("fact", "nothing"), [("ports", []), ("counters", []), ("functions", []), ("mtus", {})]
)
def test_a_machine_without_such_cards(tmp_path: Path, fact: str, nothing: Any) -> None:
    assert Tree(tmp_path / "root").value(f"hca.{fact}") == nothing


def test_how_long_a_machine_has_run_since_its_first_process(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root")
    assert tree.value("clock.uptime_s") is None
    tree.file("/proc/uptime", "100000.25 799123.11\n")
    assert tree.value("clock.uptime_s") == 100000
    # A container's first process is younger than the kernel; a name may hold spaces and brackets.
    tree.file("/proc/1/stat", "1 (my (init) d) S 0 1 1 0 -1 4194560 " + "0 " * 12 + "9000000 0 0\n")
    assert tree.value("clock.uptime_s") == 100000 - 9000000 // 100
