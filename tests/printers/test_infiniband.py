"""The real infiniband-diags and rdma-core programs against the shipped readers, on simulated cards.

They read the lab's cards, and the program for nodes reads hosts of ibsim. So simulator and readers cannot
agree on something wrong.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.checks.check import CheckNode
from provision.checks.judge import Finding
from provision.checks.network import network_ports
from tests.lab_silicon.look import look_of
from tests.lab_silicon.silicon import Silicon
from tests.node.machine import Tree
from tests.printers import infiniband, root
from tests.printers.root import Root

LONG = pytest.mark.long
RELEASES = ("trixie", pytest.param("bookworm", marks=LONG))  # rdma-core 56.1 and 44.0
# port_state of the kernel → ibstat's name for it (rdma-core, infiniband-diags/ibstat.c, port_state_str)
STATES = {"DOWN": "Down", "INIT": "Initializing", "ARMED": "Armed", "ACTIVE": "Active"}
FAULTS = (
    *("port_down nic=1", "port_down nic=2 how=training", "port_down nic=3 how=recovery"),
    *("port_down nic=4 how=no_sm", "port_slow nic=5 link=2X", "port_slow nic=6 link=EDR", "port_no_sm nic=7"),
    *("port_mtu nic=0 mtu=1024", "storage_port_down"),
)
# Kernel counter (drivers/infiniband/core/sysfs.c, PORT_PMA_ATTR) → field of PortCounters in perfquery
COUNTERS = {
    "symbol_error": "SymbolErrorCounter",
    "link_error_recovery": "LinkErrorRecoveryCounter",
    "link_downed": "LinkDownedCounter",
    "port_rcv_errors": "PortRcvErrors",
    "port_rcv_remote_physical_errors": "PortRcvRemotePhysicalErrors",
    "port_rcv_switch_relay_errors": "PortRcvSwitchRelayErrors",
    "port_xmit_discards": "PortXmitDiscards",
    "port_xmit_constraint_errors": "PortXmitConstraintErrors",
    "port_rcv_constraint_errors": "PortRcvConstraintErrors",
    "local_link_integrity_errors": "LocalLinkIntegrityErrors",
    "excessive_buffer_overrun_errors": "ExcessiveBufferOverrunErrors",
    "VL15_dropped": "VL15Dropped",
}


@pytest.fixture
def programs(request: pytest.FixtureRequest, tmp_path: Path) -> Root:
    return root.make(tmp_path / "programs", "infiniband", request.param, *infiniband.PACKAGES)


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., Silicon]:
    """Make a node of the lab with cards of this kind and these faults."""

    def make(network: str, *faults: str) -> Silicon:
        node = Silicon(tmp_path / "node/state", tmp_path / "node/root")
        (node.root / "usr/share/gpu-burn").mkdir(parents=True)  # the working directory of tools
        words = ["--sku", "h100-sxm", "--name", "gpu-01", "--seed", "7", "--speed", "2000"]
        words += ["--network", network]
        done = node.run("new", "--dir", str(node.state), *words)
        assert done.returncode == 0, done.stderr
        node.break_(*faults)
        return node

    return make


def sysfs(node: Silicon) -> Path:
    return node.state / "sys"


@pytest.mark.parametrize("programs", RELEASES, indirect=True)
@pytest.mark.parametrize(
    ("network", "faults"),
    [("ib", FAULTS), ("roce", FAULTS[:1]), pytest.param("ib", ("ports_off",), marks=LONG)],
)
def test_ibstat_reads_the_labs_cards_as_the_look_does(
    network: str, faults: tuple[str, ...], programs: Root, simulated: Callable[..., Silicon]
) -> None:
    node = simulated(network, *faults)
    done = programs.run("ibstat", sys=sysfs(node))
    assert (done.returncode, done.stderr) == (0, "")
    printed = infiniband.fields(done.stdout)
    ports = look_of(node, ["hca.ports"]).facts["hca.ports"]
    assert len(ports) == 9
    assert printed.keys() == {port["device"] for port in ports}
    for port in ports:
        files = sysfs(node) / "class/infiniband" / port["device"]
        guid = "0x" + (files / "node_guid").read_text().strip().replace(":", "")
        assert printed[port["device"]] == {
            **{"CA type": (files / "hca_type").read_text().strip(), "Number of ports": "1"},
            **{"Firmware version": (files / "fw_ver").read_text().strip(), "Hardware version": "0"},
            **{"Node GUID": guid, "System image GUID": guid, "Port GUID": guid, "LMC": "0"},
            **{"State": STATES[port["state"]], "Physical state": port["phys_state"]},
            **{"Rate": str(port["rate"]), "Base lid": str(port["lid"]), "SM lid": str(port["sm_lid"])},
            **{"Capability mask": (files / "ports/1/cap_mask").read_text().strip()},
            **{"Link layer": port["link_layer"]},
        }


@pytest.mark.parametrize("programs", RELEASES, indirect=True)
@pytest.mark.parametrize("network", ["ib", pytest.param("roce", marks=LONG)])
def test_the_real_ibv_devinfo_prints_what_the_labs_prints(
    network: str, programs: Root, simulated: Callable[..., Silicon], tmp_path: Path
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("this host has no gcc")
    node = simulated(network, *FAULTS)
    look = look_of(node, ["hca.mtus"]).facts["hca.mtus"]
    assert set(look.values()) == {1024, 4096}
    shutil.copy(infiniband.verbs(tmp_path), programs.own / "tmp")
    mtus = "".join(f"{port.partition('/')[0]} {mtu}\n" for port, mtu in look.items())
    (programs.own / "tmp/mtus").write_text(mtus, encoding="utf-8")
    done = programs.run("ibv_devinfo", sys=sysfs(node), environment={"LD_PRELOAD": "/tmp/verbs.so"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == node.printed("ibv_devinfo")


def judged(host: infiniband.Host, folder: Path) -> list[Finding]:
    """Judge the ports of an ibsim host from one observation of its files."""
    host.write(folder)
    facts, problems = Tree(folder).ask(*network_ports.FACTS)
    node = CheckNode("gpu-01", {"gpu": {"count": 8, "sku": "h100-sxm"}}, {}, facts, problems)
    return network_ports.judge(node, network_ports.parse(node, {}), {})


@pytest.mark.parametrize("programs", RELEASES, indirect=True)
def test_hosts_of_a_simulated_fabric_are_judged_as_they_are(programs: Root, tmp_path: Path) -> None:
    orders = ['Unlink "unplugged"[1]']
    hosts = infiniband.fabric(programs, ("good", "unplugged"), orders, first="ibnetdiscover")
    for name, host in hosts.items():
        (printed,) = infiniband.fields(host.ibstat).values()
        findings = judged(host, tmp_path / name)
        (port,) = Tree(tmp_path / name).ask("hca.ports")[0]["hca.ports"]
        assert printed["State"] == STATES[port["state"]]
        assert printed["Physical state"] == port["phys_state"]
        assert printed["Base lid"] == str(port["lid"]) != "0"
        assert printed["Rate"] == str(port["rate"])
        loud = {(one.verdict.value, one.metric) for one in findings if one.metric == "state"}
        assert (("fail", "state") in loud) == (name == "unplugged"), loud
    topology = hosts["good"].printed  # output of ibnetdiscover
    assert '"good"' in topology
    assert '"unplugged"' not in topology


@LONG
@pytest.mark.parametrize("programs", RELEASES, indirect=True)
def test_a_fabric_without_a_subnet_manager_is_named(programs: Root, tmp_path: Path) -> None:
    host = infiniband.fabric(programs, ("gpu-01",), manager=False)["gpu-01"]
    (printed,) = infiniband.fields(host.ibstat).values()
    assert (printed["State"], printed["Base lid"], printed["SM lid"]) == ("Initializing", "0", "0")
    assert any("no subnet manager has configured it" in one.message for one in judged(host, tmp_path))


@pytest.mark.parametrize("programs", RELEASES, indirect=True)
def test_a_full_counter_is_as_large_in_the_lab_as_in_perfquery(
    programs: Root, simulated: Callable[..., Silicon]
) -> None:
    orders = [f'PerformanceSet "gpu-01"[1] PortCounters.{field}=1000000' for field in COUNTERS.values()]
    host = infiniband.fabric(programs, ("gpu-01",), orders, first="perfquery")["gpu-01"]
    real = infiniband.counters(host.printed)
    assert len({real[field] for field in COUNTERS.values()}) > 2, real
    node = simulated("ib")
    state = json.loads((node.state / "state.json").read_text())
    state["faults"] = [{"id": "port_errors", "nic": 0, "counter": name, "count": 10**6} for name in COUNTERS]
    (node.state / "state.json").write_text(json.dumps(state))
    node.fault("set", "port_mtu", "nic=1", "mtu=1024")  # rewrites the surfaces
    folder = sysfs(node) / "class/infiniband/mlx5_0/ports/1/counters"
    found: dict[str, Any] = {name: int((folder / name).read_text()) for name in COUNTERS}
    assert found == {name: real[field] for name, field in COUNTERS.items()}
