"""AMD's acceptance guide on a real system with simulated GPUs: each measurement with a fault.
Look-alikes pass, and programs that no role installs are reported as not measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import Lab, LabNode, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
ROLES = ["amd_repository", "amdgpu_driver", "rocm", "amd_validation_tools"]
GUIDE = "gpu_inventory,p2p_bandwidth,amd_acceptance"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("amd-01", "mi300x", "ubuntu2404"),)
    with running_lab("amdguide", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", speed=40.0) as running:
        yield running


@pytest.fixture(scope="module")
def node(lab: Lab, operator: Operator) -> LabNode:
    done = operator.call("up", "--yes", timeout=1800, gpuprov_roles=ROLES)
    assert done.returncode == ExitCode.OK, said(done)
    (made,) = lab.nodes
    return made


def measured(operator: Operator) -> tuple[set[tuple[str, str, str]], dict[str, Any]]:
    """Return (verdict, device, metric) of each warning, failure or error, and the node's report."""
    done = operator.call("validate", "--checks", GUIDE, "--json", timeout=900)
    (seen,) = json.loads(done.stdout)["nodes"]
    every = [one for check in seen["checks"] for one in check["findings"]]
    bad = [one for one in every if one["verdict"] in ("warn", "fail", "error")]
    return {(one["verdict"], one["device"], one["metric"]) for one in bad}, seen


def test_a_healthy_node_is_accepted(node: LabNode, operator: Operator) -> None:
    assert node.name == "amd-01"
    found, seen = measured(operator)
    assert found == set()
    (check,) = [one for one in seen["checks"] if one["check"] == "amd_acceptance"]
    skipped = [one["message"] for one in check["findings"] if one["verdict"] == "skip"]
    assert skipped == ["not installed, so not measured: AGFHC, hip-stream, rocblas-bench"]


def test_faults_are_named_and_what_looks_like_them_is_not(node: LabNode, operator: Operator) -> None:
    faults: dict[str, dict[str, Any]] = {
        "two_way_slow": {"a": 2, "b": 5, "factor": 0.6},
        "power_short": {"gpu": 3, "factor": 0.8},
        "memory_pattern": {"gpu": 6, "test": 7},
        "pcie_fatal": {"gpu": 1},
    }
    try:
        for fault, parameters in faults.items():
            node.fault(fault, **parameters)
        found, _ = measured(operator)
        assert found == {
            *{("fail", "gpu2-gpu5", "p2p_both_ways"), ("fail", "gpu3", "power")},
            *{("fail", "gpu6", "memory_errors"), ("warn", "gpu1", "pcie_fatal")},
        }
        node.heal()
        node.fault("two_way_once", a=2, b=5)
        node.fault("pcie_unsupported", gpu=1)
        node.fault("ras_corrected_few", gpu=6)
        assert measured(operator)[0] == set()
    finally:
        node.heal()


def test_the_optional_programs_count_where_they_are_installed(node: LabNode, operator: Operator) -> None:
    """Stand-ins with the output in AMD's guide: BabelStream with a slow GPU 4, and AGFHC's failed recipe."""
    node.as_root(
        "mkdir -p /opt/amd/agfhc /root/agfhc/logs/agfhc_1 && touch /opt/amd/agfhc/agfhc && "
        'echo \'{"recipe": "hbm_lvl5", "overall_result": "FAIL", "tests": '
        '[{"name": "hbm_bw", "result": "FAIL"}]}\' > /root/agfhc/logs/agfhc_1/results.json'
    )
    node.as_root(
        "cat > /usr/local/bin/hip-stream <<'X'\n#!/bin/sh\n"
        "slow=$(cat /sys/bus/pci/devices/0000:85:00.0/unique_id | tr a-f A-F)\n"
        'rate=4255995.148; [ "$ROCR_VISIBLE_DEVICES" = "GPU-$slow" ] && rate=3900000.000\n'
        'echo "Copy        $rate 0.00101     0.00117     0.00106"\n'
        "for row in 'Mul 4115971.910' 'Add 3956389.991' 'Triad 3920853.000' 'Dot 3701229.000'; do\n"
        'echo "$row 0.00101 0.00117 0.00106"; done\nX\nchmod 755 /usr/local/bin/hip-stream'
    )
    found, _ = measured(operator)
    assert found == {("fail", "gpu4", "stream_copy"), ("fail", "node", "agfhc")}
