"""The rdma family, on trees modelled on /sys/class/infiniband with an InfiniBand and a RoCE port."""

from __future__ import annotations

from typing import Any

import pytest

from tests.node.machine import Tree
from tests.node.ports import IPV4_GID, LINK_LOCAL_GID, ZERO_GID, port

IB, ROCE = "/sys/class/infiniband/mlx5_0", "/sys/class/infiniband/mlx5_bond_0"
DEVINFO = """\
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t28.39.1002
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tsm_lid:\t\t\t1
\t\t\tport_lid:\t\t42
\t\t\tlink_layer:\t\tInfiniBand

hca_id:\tmlx5_bond_0
\ttransport:\t\t\tInfiniBand (0)
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tlink_layer:\t\tEthernet

"""


@pytest.fixture
def tree(tree: Tree) -> Tree:
    for device in (IB, ROCE):
        tree.lines(device, fw_ver="28.39.1002")
        port(tree, device, roce=device == ROCE, pkeys=("0x7fff", "0x8001", "0x0000", "0x0000"))
    kinds = ("IB/RoCE v1", "RoCE v2")
    gids = [(gid, kind) for gid in (LINK_LOCAL_GID, IPV4_GID) for kind in kinds]
    for index, (gid, kind) in enumerate(gids):
        tree.lines(f"{ROCE}/ports/1/gids", **{str(index): gid})
        tree.lines(f"{ROCE}/ports/1/gid_attrs/types", **{str(index): kind})
    tree.lines(f"{ROCE}/ports/1/gids", **{"4": ZERO_GID})  # the kernel does not return its type
    tree.lines(f"{ROCE}/ports/1/gid_attrs/ndevs", **{"0": "eth2"})
    tree.lines("/sys/class/net/eth2", mtu=9000)
    return tree


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("devices", ["mlx5_0", "mlx5_bond_0"]),
        ("mlx5_0/1.state", "ACTIVE"),
        ("mlx5_0/1.phys_state", "LinkUp"),
        ("mlx5_0/1.link_layer", "InfiniBand"),
        ("mlx5_0/1.rate", 400),
        ("mlx5_0/1.lid", 42),
        ("mlx5_0/1.sm_lid", 1),
        ("mlx5_0/1.sm_seen", True),
        ("mlx5_0/1.pkeys", ["0x7fff", "0x8001"]),
        ("mlx5_0/1.netdev", None),
        ("mlx5_0/1.roce_v2_ipv4", []),
        ("mlx5_0.firmware", "28.39.1002"),
        ("mlx5_0.board_id", "MT_0000000838"),
        ("mlx5_bond_0/1.link_layer", "Ethernet"),
        ("mlx5_bond_0/1.sm_seen", False),
        ("mlx5_bond_0/1.netdev", "eth2"),
        ("mlx5_bond_0/1.netdev_mtu", 9000),
        ("mlx5_bond_0/1.roce_v2_ipv4", [3]),
        ("mlx5_bond_0/1.roce_tos", None),
        ("mlx5_bond_0/1.traffic_class", None),
        ("mlx5_9/1.state", None),
        ("mlx5_9/1.sm_seen", False),
        ("mlx5_9/1.pfc", None),
    ],
)
def test_ports_and_devices(tree: Tree, fact: str, value: Any) -> None:
    found = tree.value(f"rdma.{fact}")
    assert found == value
    assert type(found) is type(value)


def test_a_machine_without_devices_has_empty_lists(bare: Tree) -> None:
    assert (bare.value("rdma.devices"), bare.value("rdma.ports")) == ([], [])


def test_all_ports_at_once(tree: Tree) -> None:
    assert tree.value("rdma.ports")[1] == {
        **{"device": "mlx5_bond_0", "port": "1", "link_layer": "Ethernet", "state": "ACTIVE"},
        **{"phys_state": "LinkUp", "rate": 200, "netdev": "eth2"},
    }


def test_a_port_in_trouble(tree: Tree) -> None:
    tree.file(f"{IB}/ports/1/state", "2: INIT\n")
    tree.file(f"{IB}/ports/1/sm_lid", "0x0\n")
    assert tree.value("rdma.mlx5_0/1.state") == "INIT"
    assert tree.value("rdma.mlx5_0/1.sm_seen") is False
    tree.file(f"{IB}/ports/1/rate", "fast\n")
    assert "not a number" in tree.problem("rdma.mlx5_0/1.rate")


def test_roce_settings_of_inbox_and_doca(tree: Tree) -> None:
    tree.file("/sys/kernel/config/rdma_cm/mlx5_bond_0/ports/1/default_roce_tos", "106\n")
    tree.file(f"{ROCE}/tc/1/traffic_class", "Global tclass=106\n")
    assert tree.value("rdma.mlx5_bond_0/1.roce_tos") == 106
    assert tree.value("rdma.mlx5_bond_0/1.traffic_class") == 106


def test_the_mtu_in_force_comes_from_ibv_devinfo(tree: Tree) -> None:
    assert "ibv_devinfo is not installed" in tree.problem("rdma.mlx5_0/1.active_mtu")
    tree.file("/devinfo", DEVINFO)
    tree.tool("ibv_devinfo", f"cat {tree.root}/devinfo")
    names = [f"rdma.{port}.active_mtu" for port in ("mlx5_0/1", "mlx5_bond_0/1", "mlx5_9/1")]
    assert list(tree.values(*names).values()) == [4096, 1024, None]
    tree.tool("ibv_devinfo", "echo 'Failed to get IB devices list: Function not implemented' >&2; exit 255")
    assert "Function not implemented" in tree.problem(names[0])
    tree.tool("ibv_devinfo", "echo 'No IB devices found'; exit 255")
    assert tree.value(names[0]) is None


def test_priorities_with_flow_control_come_from_dcb(tree: Tree) -> None:
    answer = "pfc-cap 8 macsec-bypass off delay 0\nprio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off\n"
    tree.file("/answer", answer)
    tree.tool("dcb", f'[ "$*" = "pfc show dev eth2" ] && cat {tree.root}/answer')
    fact = "rdma.mlx5_bond_0/1.pfc"
    assert tree.value(fact) == [3]
    tree.file("/answer", "Attribute not found: Operation not supported\n")
    assert tree.value(fact) == []
    tree.file("/answer", "what?\n")
    assert "what?" in tree.problem(fact)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("nvidia,ib_core", "ofed"),
        ("ib_uverbs,nvidia-current", "ofed"),
        ("nvidia", "plain"),
        ("modinfo: ERROR: Module nvidia-peermem not found.", "absent"),
    ],
)
def test_whether_peermem_was_built_with_ofed(tree: Tree, said: str, kind: str) -> None:
    tree.tool(
        "modinfo", f"echo '{said}'; echo 'modinfo: ERROR: Module nvidia-current-peermem not found.' >&2"
    )
    assert tree.value("rdma.peermem") == kind
    tree.tool("modinfo", "exit 1")
    assert "answered nothing" in tree.problem("rdma.peermem")


def test_another_core_in_memory_than_on_disk(tree: Tree) -> None:
    tree.tool("modinfo", "echo 5A3C1E9B7D")
    assert tree.value("rdma.core_stale") is False, "nothing is loaded"
    tree.file("/sys/module/ib_core/srcversion", "5A3C1E9B7D\n")
    assert tree.value("rdma.core_stale") is False
    tree.tool("modinfo", "echo 00112233")
    assert tree.value("rdma.core_stale") is True


QOS = """\
DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
\tprio:0 dscp:07,06,05,04,03,02,01,00,
"""


@pytest.mark.parametrize(
    ("tools", "trust"),
    [
        ({"mlnx_qos": f"printf '%s' '{QOS}'"}, "dscp"),
        ({"mlnx_qos": "exit 1", "dcb": "echo dscp-prio 26:3"}, "dscp"),
        ({"dcb": "true"}, "pcp"),
        ({"dcb": "exit 255"}, None),
        ({}, None),
    ],
)
def test_what_a_roce_port_trusts_and_where_it_notifies_of_congestion(
    tools: dict[str, str], trust: str | None, tree: Tree
) -> None:
    tree.tool("sh", f'PATH={tree.root}/usr/bin:$PATH exec /bin/sh "$@"')  # the tree's tools replace ours
    for name, script in tools.items():
        tree.tool(name, script)
    entry = {"device": "mlx5_bond_0", "port": "1", "trust": trust}
    assert tree.value("rdma.roce") == [{**entry, "ecn": None}]
    of_port = tuple(f"rdma.mlx5_bond_0/1.{name}" for name in ("roce_trust", "roce_ecn"))
    assert list(tree.values(*of_port).values()) == [trust, None]
    for part, others in (("roce_np", "1"), ("roce_rp", "0")):
        tree.lines(f"/sys/class/net/eth2/ecn/{part}/enable", **{"0": others, "3": "1"})
    assert tree.value("rdma.roce") == [{**entry, "ecn": "3"}]
    assert list(tree.values("rdma.roce", *of_port).values())[1:] == [trust, [3]]
    assert tree.value("rdma.mlx5_0/1.roce_trust") is None, "InfiniBand has none"
