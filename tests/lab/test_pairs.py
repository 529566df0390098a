"""Pairs of nodes over RDMA on six lab nodes in two racks; a healthy fleet passes.
The report identifies a slow link, and nodes that hang, are gone or lack the program, over real TCP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from gpuprov_lab import silicon_state
from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import ROOT, Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab

RACKS = {"n1": "a", "n2": "a", "n3": "a", "n4": "b", "n5": "b", "n6": "b"}
RAILS = ["mlx5_0", "mlx5_3"]  # two of eight, since a hanging one takes its deadline on each
CABLE = "reseat or check cable"
Report = dict[str, Any]
pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = tuple(NodeSpec(name, "h100-sxm", network="ib") for name in RACKS)
    declared = dict.fromkeys(RACKS, images.h100())
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("pairs", nodes, inventory, images=declared) as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    declared = yaml.safe_load(lab.inventory.read_text())
    for name, rack in RACKS.items():
        declared["gpu_nodes"]["hosts"][name]["gpuprov_rack"] = rack
    declared["gpu_nodes"]["vars"]["gpuprov_expected_nics"] = RAILS
    inventory = tmp_path_factory.mktemp("inventory") / "nodes.yml"
    inventory.write_text(yaml.safe_dump(declared))
    return Operator(inventory, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def measure(operator: Operator, lab: Lab) -> Iterator[Callable[..., tuple[int, Report]]]:
    def run(*arguments: str) -> tuple[int, Report]:
        done = operator.call("validate", "--json", "--checks", "pair_bandwidth", *arguments)
        assert done.stdout.strip(), said(done)
        return done.returncode, json.loads(done.stdout)

    yield run
    for node in lab.nodes:
        if silicon_state.faults(node.place):
            node.heal()


def told(operator: Operator, *arguments: str) -> str:
    """Return the output of `gpuprov report` for the newest run."""
    program = [sys.executable, "-m", "provision.cli", "report", "--runs", str(operator.runs), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "4000"}
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == ExitCode.UNHEALTHY, done.stderr
    return done.stdout


def verdicts(report: Report) -> dict[str, str]:
    return {node["node"]: node["verdict"] for node in report["nodes"]}


def fabric(report: Report) -> list[tuple[str, str, str]]:
    return [(finding["verdict"], finding["device"], finding["action"]) for finding in report["fabric"]]


def findings(report: Report, name: str) -> list[Report]:
    (node,) = [node for node in report["nodes"] if node["node"] == name]
    return [finding for check in node["checks"] for finding in check["findings"]]


def test_a_healthy_fleet_passes_in_two_rounds(measure: Any) -> None:
    code, report = measure()
    assert (code, fabric(report)) == (ExitCode.OK, [])
    assert set(verdicts(report).values()) == {"pass"}
    rows = [row for node in report["nodes"] for check in node["checks"] for row in check["measurements"]]
    assert {row["device"].partition("->")[0] for row in rows} == set(RAILS)
    assert {row["device"].rpartition(" ")[2] for row in rows} == {"1", "2"}
    assert all(380 < row["value"] < 400 for row in rows)


def test_a_slow_link_is_named_and_neither_of_its_ends_is_accused(
    measure: Any, lab: Lab, operator: Operator
) -> None:
    lab.node("n2").fault("link_slow", peer="n5", factor=0.4)
    code, report = measure()
    assert code == ExitCode.UNHEALTHY
    assert fabric(report) == [("fail", "link n2-n5", CABLE)]
    assert verdicts(report) == {name: "warn" if name in ("n2", "n5") else "pass" for name in RACKS}
    assert json.loads(told(operator, "--rejudge", "--json"))["fabric"] == report["fabric"]
    shown = " ".join(told(operator).split())
    assert "link n2-n5 is slow" in shown
    assert "--nodes fabric" not in shown


def test_a_late_link_is_named_by_its_latency_alone(measure: Any, lab: Lab, operator: Operator) -> None:
    lab.node("n2").fault("link_late", peer="n5", factor=5)
    code, report = measure("--checks", "pair_bandwidth,pair_latency")
    assert (code, report["asked"]) == (ExitCode.UNHEALTHY, ["pair_bandwidth", "pair_latency"])
    assert fabric(report) == [("fail", "link n2-n5", "investigate")]
    assert report["fabric"][0]["check"] == "pair_latency"
    found = {
        check: {
            node["node"]
            for node in report["nodes"]
            for one in node["checks"]
            if one["check"] == check and one["verdict"] != "pass"
        }
        for check in report["asked"]
    }
    assert found == {"pair_bandwidth": set(), "pair_latency": {"n2", "n5"}}
    assert "link n2-n5 has a high latency" in " ".join(told(operator).split())


def test_a_slow_rail_of_one_node_is_that_nodes(measure: Any, lab: Lab) -> None:
    lab.node("n4").fault("nic_slow", nic=3, factor=0.5)
    code, report = measure()
    assert (code, fabric(report)) == (ExitCode.UNHEALTHY, [])
    assert verdicts(report) == {name: "fail" if name == "n4" else "pass" for name in RACKS}
    (finding,) = findings(report, "n4")
    assert (finding["device"], finding["action"]) == ("mlx5_3", CABLE)


def test_a_node_that_hangs_is_named_and_leaves_nothing_running(measure: Any, lab: Lab) -> None:
    lab.node("n6").fault("peers_hang")
    code, report = measure()
    assert (code, fabric(report)) == (ExitCode.UNHEALTHY, [])
    assert verdicts(report) == {name: "fail" if name == "n6" else "pass" for name in RACKS}
    (finding,) = findings(report, "n6")
    assert (finding["device"], finding["action"]) == ("node", "investigate")
    assert "hangs" in finding["message"]
    for name in RACKS:
        left = lab.node(name).run("pgrep --full --list-full ib_write_bw", check=False)
        assert left.stdout == "", f"{name}: {left.stdout}"


def test_a_node_without_the_program_is_named_with_what_to_do(measure: Any, lab: Lab) -> None:
    node = lab.node("n1")
    node.as_root("mv /usr/bin/ib_write_bw /usr/bin/ib_write_bw.away")
    try:
        code, report = measure()
    finally:
        node.as_root("mv /usr/bin/ib_write_bw.away /usr/bin/ib_write_bw")
    assert code == ExitCode.INCOMPLETE
    assert verdicts(report) == {name: "error" if name == "n1" else "pass" for name in RACKS}
    (finding,) = findings(report, "n1")
    assert "ib_write_bw is not installed: the role rdma installs it" in finding["message"]


def test_a_node_that_is_gone_is_not_measured_and_the_others_are(measure: Any, lab: Lab) -> None:
    lab.node("n3").power_off()
    try:
        code, report = measure()
    finally:
        lab.node("n3").power_on()
    assert code == ExitCode.INCOMPLETE
    assert verdicts(report) == {name: "error" if name == "n3" else "pass" for name in RACKS}
