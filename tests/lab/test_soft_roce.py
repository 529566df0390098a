"""Real RDMA: two virtual machines with Debian's kernel, its RoCE in software and its perftest.
Tests check only that it works, never its speed: emulation is nothing like a real card.
"""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from gpuprov_lab.command import PATH
from provision.desired import inventory
from provision.errors import ExitCode
from provision.remote.reach.observe import observe
from tests.lab import soft_roce
from tests.lab.gpuprov_up import Operator, said
from tests.lab.soft_roce import DEVICE, MTU, NAMES, Machine

PORT = f"rdma.{DEVICE}/1"
TRIES = 3  # a probe has 8 s, which may be too few for a busy emulated machine
TIMEOUT = "30"  # seconds for a node to answer, and for ib_write_bw to end
Report = dict[str, Any]
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="SOFT-ROCE TESTS DID NOT RUN: no x86_64 here"),
]


@pytest.fixture(scope="module")
def machines() -> Iterator[Sequence[Machine]]:
    if shutil.which("qemu-system-x86_64", path=PATH) is None:
        pytest.fail("qemu-system-x86_64 is not installed: apt install qemu-system-x86")
    with soft_roce.two_machines() as running:
        yield running


@pytest.fixture(scope="module")
def operator(machines: Sequence[Machine], tmp_path_factory: pytest.TempPathFactory) -> Operator:
    folder = tmp_path_factory.mktemp("soft-roce")
    ports = [{"device": DEVICE, "link_layer": "Ethernet", "rate": 2}]
    declared = soft_roce.inventory(
        machines,
        folder / "nodes.yml",
        gpuprov_roles=["rdma"],
        gpuprov_expected_gpus=0,
        rdma_expected_ports=ports,
        rdma_roce_gid_index=1,
        rdma_roce_netdev_mtu=MTU,
    )
    return Operator(declared, folder / "runs")


def measure(operator: Operator, *arguments: str) -> tuple[int, Report, list[Report], Report]:
    """Run `gpuprov validate` on pairs: exit status, report, measurements, and the entry in run.json."""
    done = operator.call("validate", "--json", "--checks", "pair_bandwidth", *arguments)
    assert done.stdout.strip(), said(done)
    folder = max(operator.runs.glob("*-validate*"), key=lambda path: path.stat().st_mtime_ns)
    rows = folder / "pairs.jsonl"
    results = [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    noted = json.loads((folder / "run.json").read_text())["pairs"]["pair_bandwidth"]
    return done.returncode, json.loads(done.stdout), results, noted


def findings(report: Report, name: str) -> list[Report]:
    (node,) = [node for node in report["nodes"] if node["node"] == name]
    return [finding for check in node["checks"] for finding in check["findings"]]


@contextlib.contextmanager
def without_device(machine: Machine) -> Iterator[None]:
    machine.run(f"rdma link delete {DEVICE}")
    try:
        yield
    finally:
        machine.run(f"rdma link add {DEVICE} type rxe netdev eth0")


@contextlib.contextmanager
def dropping(machines: Sequence[Machine], what: str) -> Iterator[None]:
    """Drop matching incoming packets on all machines."""
    rules = f"table inet cut {{ chain in {{ type filter hook input priority 0; {what} drop; }}; }}"
    try:
        for machine in machines:
            machine.run(f"nft '{rules}'")
        yield
    finally:
        for machine in machines:
            machine.run("nft flush ruleset")


def assert_nothing_runs(machines: Sequence[Machine]) -> None:
    for machine in machines:
        left = machine.run("pgrep --exact --list-full ib_write_bw", check=False)
        assert left.stdout == "", f"{machine.name}: {left.stdout}"


def test_the_port_is_active(machines: Sequence[Machine]) -> None:
    for machine in machines:
        said = machine.run("ibv_devinfo").stdout.split()
        assert said[said.index("hca_id:") + 1] == DEVICE
        assert said[said.index("state:") + 1] == "PORT_ACTIVE"
        assert said[said.index("link_layer:") + 1] == "Ethernet"


def test_the_facts_of_the_rdma_role(operator: Operator) -> None:
    nodes = inventory.load(operator.inventory).nodes
    about = ["state", "phys_state", "link_layer", "rate", "netdev", "netdev_mtu", "active_mtu"]
    asked = ["rdma.devices", "rdma.ports", "hca.ports", "hca.counters", "hca.mtus"]
    asked += [f"{PORT}.{name}" for name in (*about, "roce_v2_ipv4")]
    for _ in range(TRIES):
        seen = observe(nodes.values(), dict.fromkeys(nodes, asked))
        if not any(seen[name].problems for name in NAMES):
            break
    for name in NAMES:
        assert not seen[name].error, seen[name].error
        facts = seen[name].facts
        assert not set(asked) - set(facts), seen[name].problems
        assert facts["rdma.devices"] == [DEVICE]
        assert [facts[f"{PORT}.{one}"] for one in about] == [
            *("ACTIVE", "LinkUp", "Ethernet", 2, "eth0", MTU, 4096, [1])
        ]
        (port,) = facts["hca.ports"]
        assert (port["device"], port["port"], port["state"], port["rate"]) == (DEVICE, "1", "ACTIVE", 2)
        assert (port["address"], port["link"]) == (None, "1X SDR"), "no card is behind it"
        assert facts["hca.mtus"] == {f"{DEVICE}/1": 4096}


def test_what_the_rdma_role_expects_of_a_port(operator: Operator, machines: Sequence[Machine]) -> None:
    def drifts() -> dict[tuple[str, str], Any]:
        report = json.loads(operator.call("drift", "--json").stdout)
        assert (report["unreachable"], report["refused"]) == ({}, {})
        found = [one for one in report["drifts"] if one["fact"].startswith(f"{PORT}.")]
        # Its program is one of dozens, and 8 s may be too few for it here; the previous test has read it.
        unread = {one["fact"] for one in found if one["unknown"]}
        assert unread <= {f"{PORT}.active_mtu"}, unread
        known = [one for one in found if not one["unknown"]]
        return {(one["node"], one["fact"].removeprefix(f"{PORT}.")): one["found"] for one in known}

    assert drifts() == {}
    with without_device(machines[0]):
        gone = drifts()
    assert {node for node, _ in gone} == {NAMES[0]}
    assert gone[NAMES[0], "state"] is None


def test_a_pair_is_measured(operator: Operator, machines: Sequence[Machine]) -> None:
    """The pair is slow for the port's stated rate, so a device is reported; the real cause is the CPU."""
    code, report, results, noted = measure(operator)
    assert results, report["not_compared"]
    for one in results:
        assert (one["outcome"], one["rail"], one["unit"]) == ("measured", DEVICE, "Gb/s"), one["said"]
        assert sorted(one["nodes"]) == list(NAMES)
        assert one["value"] > 0
    assert noted["left_out"] == {}
    version = machines[0].run("ib_write_bw --version", check=False).stdout.split()[-1]
    assert noted["versions"] == dict.fromkeys(NAMES, version)
    verdicts = {finding["verdict"] for name in NAMES for finding in findings(report, name)}
    assert "error" not in verdicts, report
    assert code in (ExitCode.OK, ExitCode.UNHEALTHY)
    assert_nothing_runs(machines)


def test_a_node_whose_device_is_gone_is_left_out(operator: Operator, machines: Sequence[Machine]) -> None:
    with without_device(machines[1]):
        code, report, results, noted = measure(operator)
    assert (code, results) == (ExitCode.INCOMPLETE, [])
    assert noted["left_out"] == {NAMES[1]: "no RDMA port of it is up"}
    (skipped,) = findings(report, NAMES[1])
    assert (skipped["verdict"], skipped["message"]) == ("skip", "no RDMA port of it is up")
    (alone,) = findings(report, NAMES[0])
    assert alone["verdict"] == "error"


def test_packets_that_do_not_arrive(operator: Operator, machines: Sequence[Machine]) -> None:
    """Drop RDMA's own packets: the programs connect over TCP, but transfer nothing."""
    with dropping(machines, "udp dport 4791"):
        began = time.monotonic()
        code, _, results, _ = measure(operator, "--timeout", TIMEOUT)
        took = time.monotonic() - began
    assert results
    for one in results:
        assert one["outcome"] in ("hang", "error")
        assert one["said"]
        assert one["value"] is None
    assert code == ExitCode.UNHEALTHY
    assert took < 400, "each program has its own deadline"
    assert_nothing_runs(machines)
