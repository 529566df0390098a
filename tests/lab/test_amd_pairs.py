"""RCCL and NCCL within each vendor's lab nodes (three MI300X, two H100), in one inventory.
They use real OpenMPI over the nodes' own ssh. Also the first node's cards against their GPUs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab import silicon_state
from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, running_lab

INSTINCT, HOPPER = ("a1", "a2", "a3"), ("h1", "h2")
MPI = {"amd_validation_tools_mpi": True, "validation_tools_mpi": True}
Report = dict[str, Any]
pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = [NodeSpec(name, "mi300x", "ubuntu2404", network="ib") for name in INSTINCT]
    nodes += [NodeSpec(name, "h100-sxm", network="ib") for name in HOPPER]
    with running_lab("amdpairs", tuple(nodes), tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Return an operator of nodes with all programs from the roles, including OpenMPI."""
    made = Operator(lab.inventory, tmp_path_factory.mktemp("runs"))
    done = made.call("up", "--yes", timeout=1800, **MPI)
    assert done.returncode == ExitCode.OK, said(done)
    return made


@pytest.fixture(autouse=True)
def healed(lab: Lab) -> Iterator[None]:
    yield
    for node in lab.nodes:
        if silicon_state.faults(node.place):
            node.heal()


def measure(operator: Operator, checks: str, *words: str) -> tuple[int, Report, str]:
    done = operator.call("validate", "--json", "--checks", checks, *words, timeout=900, **MPI)
    assert done.stdout.strip(), said(done)
    return done.returncode, json.loads(done.stdout), done.stderr


def verdicts(report: Report) -> dict[str, str]:
    return {node["node"]: node["verdict"] for node in report["nodes"]}


def findings(report: Report, node: str) -> set[tuple[str, str, str]]:
    (found,) = [one for one in report["nodes"] if one["node"] == node]
    every = [finding for check in found["checks"] for finding in check["findings"]]
    return {(one["verdict"], one["device"], one["metric"]) for one in every}


def test_each_vendors_nodes_are_measured_among_themselves(operator: Operator) -> None:
    code, report, told = measure(operator, "nccl_group")
    assert code == ExitCode.OK, report
    assert verdicts(report) == dict.fromkeys((*INSTINCT, *HOPPER), "pass")
    line = "3 nodes with AMD GPUs and 2 nodes with NVIDIA GPUs are measured apart"
    assert [one for one in report["between"] if line in one] != []
    assert line in told
    measured = (operator.newest("validate") / "pairs.jsonl").read_text().splitlines()
    groups = {frozenset(json.loads(one)["nodes"]) for one in measured}
    assert groups == {frozenset(INSTINCT), frozenset(HOPPER)}
    raw = (operator.newest("validate") / "raw" / "a1" / "nccl_group.group.json").read_text()
    assert "rccl-tests: Version" in raw


def test_a_slow_link_between_two_of_them_is_named(operator: Operator, lab: Lab) -> None:
    lab.node("a1").fault("link_slow", peer="a3", factor=0.4)
    code, report, _ = measure(operator, "nccl_pair", "--pairs", "all")
    assert code == ExitCode.UNHEALTHY
    assert [(one["verdict"], one["device"]) for one in report["fabric"]] == [("fail", "link a1-a3")]
    assert verdicts(report) == {"a1": "warn", "a2": "pass", "a3": "warn", "h1": "pass", "h2": "pass"}


def test_a_build_without_mpi_is_named_by_its_own_variable(operator: Operator, lab: Lab) -> None:
    for name in INSTINCT:
        lab.node(name).fault("nccl_tests_without_mpi")
    code, report, _ = measure(operator, "nccl_pair")
    assert code == ExitCode.INCOMPLETE
    assert verdicts(report) == {**dict.fromkeys(INSTINCT, "error"), **dict.fromkeys(HOPPER, "pass")}
    assert "amd_validation_tools_mpi: true builds it with MPI" in json.dumps(report)


def test_a_slow_way_from_a_card_to_its_gpu_is_named(operator: Operator, lab: Lab) -> None:
    lab.node("a2").fault("gpudirect_slow", nic=3, factor=0.5)
    lab.node("a3").fault("perftest_without_cuda")
    _, report, _ = measure(operator, "rdma_loopback,nccl_network")
    assert ("fail", "mlx5_3", "gpu_share") in findings(report, "a2")
    assert ("skip", "node", "gpu") in findings(report, "a3")
    for name in INSTINCT:
        assert ("pass", "node", "host_share") in findings(report, name)
        bad = {one for one in findings(report, name) if one[0] in ("fail", "error")}
        assert bad == ({("fail", "mlx5_3", "gpu_share")} if name == "a2" else set())
    assert verdicts(report)["h1"] == "pass"
