"""A node with AMD's GPUs under a real Slurm, which hands out its dies and drains it when it fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from provision.errors import ExitCode
from provision.lab.spec import NodeSpec
from tests.lab import slurm_cluster
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.support.processes import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
DRIVER = ["amd_repository", "amdgpu_driver", "rocm"]
SERVICE: dict[str, Any] = {
    "gpuprov_roles": [*DRIVER, "gpu_metrics", "node_health", "slurm_health"],
    "node_health_enabled": True,
    "slurm_health_enabled": True,
    "slurm_health_interval": 5,
    "gpu_metrics_enabled": True,
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("amd-01", "mi250x"),)
    with running_lab("amdserve", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


def up(operator: Operator, *words: str, **variables: Any) -> str:
    done = operator.call("up", "--yes", *words, timeout=1200, **variables)
    assert done.returncode == ExitCode.OK, said(done)
    return said(done)


@pytest.fixture(scope="module")
def node(lab: Lab, operator: Operator) -> LabNode:
    """In service, with the node exporter."""
    up(operator, gpuprov_roles=DRIVER)
    (made,) = lab.nodes
    slurm_cluster.start(lab.nodes, patience=60, files="/dev/dri/renderD[128-135]")
    up(operator, **SERVICE)
    return made


def state(node: LabNode) -> tuple[str, str]:
    """(state, reason) of it in Slurm."""
    text = node.as_root("scontrol show node amd-01").stdout
    reason = re.search(r"^ +Reason=(.*?)(?: \[\S+\])?$", text, re.MULTILINE)
    return re.findall(r"State=(\S+)", text)[0], reason[1] if reason else ""


def test_slurm_hands_out_each_die_and_drift_holds_it_to_that(node: LabNode, operator: Operator) -> None:
    line = node.run("grep ^NodeName= /etc/slurm/gpuprov-node.txt").stdout
    assert line.startswith("NodeName=amd-01 Gres=gpu:8 Feature=mi250x"), line
    node.as_root(
        "printf '# gpuprov\\nInclude gpuprov.conf\\n' >> /etc/slurm/slurm.conf && scontrol reconfigure"
    )
    until(lambda: state(node)[0] == "IDLE", 60)
    assert node.run("srun --gres=gpu:8 hostname").stdout == "amd-01\n"
    told = {**SERVICE, "slurm_health_include": True}
    assert operator.drifted(**told) == {}
    fewer = operator.drifted(**told, gpuprov_expected_gpus=8, amd_gpu_settings_compute_partition="DPX")
    assert fewer["slurm.gpus"]["found"] == 8, "of sixteen that would be declared"


def test_a_node_that_fails_is_drained_with_its_cause(node: LabNode) -> None:
    node.fault("ecc_uncorrectable", gpu=3, count=2)
    node.as_root("systemctl start gpuprov-node-health.service")
    until(lambda: "DRAIN" in state(node)[0], 30)
    cause = r"gpuprov: gpu3: .*uncorrectable hardware errors.* \(serial \S+\): reset GPU$"
    assert re.match(cause, state(node)[1]), state(node)
    node.heal()
    node.as_root("systemctl start gpuprov-node-health.service")
