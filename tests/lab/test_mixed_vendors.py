"""One inventory with NVIDIA and AMD GPUs: the same commands, the same verdicts, one report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.desired.role import all_roles
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
NODES = (
    NodeSpec("gpu-01", "h100-sxm"),
    NodeSpec("amd-01", "mi300x", "ubuntu2404"),
    NodeSpec("amd-02", "mi250x", "rhel9"),
)
VENDORS = {"gpu-01": "nvidia", "amd-01": "amd", "amd-02": "amd"}
DEVICES = {"gpu-01": 8, "amd-01": 8, "amd-02": 8}  # each die of an MI250X counts as one


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab("mixed", NODES, tmp_path_factory.mktemp("lab") / "lab.yml", speed=20.0) as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    return Operator(lab.inventory, tmp_path_factory.mktemp("runs"))


def gpuprov(operator: Operator, verb: str, *words: str) -> str:
    done = operator.call(verb, *words, timeout=1800)
    assert done.returncode == ExitCode.OK, said(done)
    return said(done)


def told(findings: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(one["check"], one["device"]) for one in findings if one["verdict"] == "fail"}


def test_each_node_is_planned_with_the_roles_of_its_vendor(operator: Operator) -> None:
    of_vendors = {name: role.vendor for name, role in all_roles().items()}
    planned = json.loads(operator.call("plan", "--json").stdout)["nodes"]
    for name, vendor in VENDORS.items():
        named = {of_vendors[role] for role in planned[name]["roles"]} - {None, ""}
        assert named == {vendor}, name


def test_up_makes_all_of_them_what_is_declared_and_the_second_finds_nothing(operator: Operator) -> None:
    gpuprov(operator, "up", "--yes")
    assert "as declared" in gpuprov(operator, "up", "--yes")
    assert operator.records("events") == []
    found = json.loads(operator.call("drift", "--json").stdout)
    assert (found["nodes"], found["as_declared"], found["drifts"]) == (3, 3, [])


def test_one_report_finds_them_healthy(operator: Operator) -> None:
    done = operator.call("validate", "--json", timeout=1800)
    assert done.returncode == ExitCode.OK, said(done)
    nodes = {node["node"]: node for node in json.loads(done.stdout)["nodes"]}
    assert {name: len(node["gpus"]) for name, node in nodes.items()} == DEVICES
    assert nodes["gpu-01"]["verdict"] == "pass"
    for name, node in nodes.items():
        found = [one for check in node["checks"] for one in check["findings"]]
        warned = [one["message"] for one in found if one["verdict"] not in ("pass", "skip")]
        # For some measurements of AMD GPUs, no limit is published.
        assert [text for text in warned if "no limit is known for this GPU" not in text] == [], name
        measured = {check["check"] for check in node["checks"] if check["verdict"] in ("pass", "warn")}
        assert {"gpu_inventory", "p2p_bandwidth", "nccl_all_reduce", "gpu_burn"} <= measured, name
    ended = [line.partition("] ")[2].rpartition(": ")[0] for line in done.stderr.splitlines()]
    for name in NODES:  # the fast node finishes while the slow one is still in the middle
        mine = [line.partition(": ")[2] for line in ended if line.startswith(f"{name.name}: ")]
        assert mine == [check["check"] for check in nodes[name.name]["checks"]], name
    assert ended.index("gpu-01: gpu_burn") < ended.index("amd-02: nccl_alltoall")
    page = (operator.newest("validate") / "report.html").read_text()
    assert all(name in page for name in VENDORS)


def test_a_broken_gpu_of_either_vendor_is_named(operator: Operator, lab: Lab) -> None:
    lab.node("gpu-01").fault("burn_errors", gpu=5)
    lab.node("amd-01").fault("burn_errors", gpu=3)
    try:
        done = operator.call("validate", "--checks", "gpu_burn", "--json", timeout=900)
    finally:
        lab.node("gpu-01").heal()
        lab.node("amd-01").heal()
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert {
        node["node"]: told([one for check in node["checks"] for one in check["findings"]])
        for node in json.loads(done.stdout)["nodes"]
    } == {"gpu-01": {("gpu_burn", "gpu5")}, "amd-01": {("gpu_burn", "gpu3")}, "amd-02": set()}


def test_they_burn_in_together_with_one_record(operator: Operator) -> None:
    done = operator.call("burnin", "start", "--profile", "smoke", timeout=2400)
    assert done.returncode == ExitCode.OK, said(done)
    record = json.loads((operator.newest("burnin") / "record.json").read_text())
    assert {node["node"]: node["not_measured"] for node in record["nodes"]} == {name: [] for name in VENDORS}
    for node in record["nodes"]:
        assert node["load_by_segment"]["heat"]["gpu_burn"] >= 240, node["node"]
        assert len([name for name in node["telemetry"]["devices"] if name.startswith("gpu/")]) == 8
