"""`drift` on declared and validated nodes that lost a GPU: PCIe, NVSwitch and AMD."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
NVIDIA = ["nvidia_repository", "nvidia_driver"]
ROLES = {
    "gpu-01": NVIDIA,
    "gpu-02": [*NVIDIA, "nvlink"],
    "gpu-03": ["amd_repository", "amdgpu_driver", "rocm"],
}
GPU = 3
FACT = {"gpu-01": "nvidia_smi.silent", "gpu-02": "nvidia_smi.silent", "gpu-03": "amd_smi.silent"}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (
        NodeSpec("gpu-01", "l40s", "debian12"),
        NodeSpec("gpu-02", "h100-sxm"),
        NodeSpec("gpu-03", "mi300x", "ubuntu2404"),
    )
    with running_lab("driftlost", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", speed=50.0) as running:
        yield running


@pytest.fixture(scope="module")
def operator(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Return an operator of nodes after `up` and the checks of the quick stage."""
    one = Operator(lab.inventory, tmp_path_factory.mktemp("runs"))
    for node, roles in ROLES.items():
        done = one.call("up", "--nodes", node, "--yes", "--no-canary", gpuprov_roles=roles, timeout=1200)
        assert done.returncode == ExitCode.OK, said(done)
    one.call("validate", "--checks", "gpu_inventory")
    return one


def drift(operator: Operator, node: str, **variables: Any) -> tuple[int, dict[str, Any]]:
    done = operator.call(
        "drift", "--nodes", node, "--no-majority", "--json", gpuprov_roles=ROLES[node], **variables
    )
    assert done.stdout.strip(), done.stderr
    return done.returncode, json.loads(done.stdout)


def expired(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the standings of gpu_inventory that no longer hold."""
    return [one for one in found["validation"]["not_validated"] if one["check"] == "gpu_inventory"]


@pytest.mark.parametrize("node", ROLES)
@pytest.mark.parametrize("fault", ["gpu_off_bus", "gpu_silent", "gpu_off_bus_at_boot"])
@pytest.mark.parametrize("declared", [{}, {"gpuprov_expected_gpus": 8}])
def test_a_lost_gpu_is_drift_and_ends_its_proof(
    node: str, fault: str, declared: dict[str, Any], lab: Lab, operator: Operator
) -> None:
    if node == "gpu-03" and fault == "gpu_silent":
        pytest.skip("the error of NVIDIA's driver")
    code, before = drift(operator, node, **declared)
    assert (code, before["drifts"], expired(before)) == (ExitCode.OK, [], [])
    lab.node(node).fault(fault, gpu=GPU)
    try:
        code, found = drift(operator, node, **declared)
    finally:
        lab.node(node).heal()
    assert code == ExitCode.DRIFT, found
    lost = {one["fact"]: one for one in found["drifts"]}[FACT[node]]
    assert not lost["unknown"], lost
    assert len(lost["found"]) == 1, "the GPU that is lost, and no other"
    (proof,) = expired(found)
    assert [change["part"] for change in proof["changes"] if change["part"] == "gpu.silent"] == ["gpu.silent"]


def test_a_node_is_contacted_once_and_runs_its_tool_once(lab: Lab, operator: Operator) -> None:
    """The fabric's state and the GPUs' answers come from one call of nvidia-smi."""
    node = lab.node("gpu-02")
    node.as_root(
        "mv /usr/bin/nvidia-smi /usr/bin/nvidia-smi.real && "
        "printf '#!/bin/sh\\necho run >> /tmp/calls\\nexec /usr/bin/nvidia-smi.real \"$@\"\\n' "
        "> /usr/bin/nvidia-smi && chmod 0755 /usr/bin/nvidia-smi"
    )
    try:
        drift(operator, "gpu-02")
        assert node.run("cat /tmp/calls").stdout == "run\n"
    finally:
        node.as_root("mv /usr/bin/nvidia-smi.real /usr/bin/nvidia-smi; rm -f /tmp/calls")
