"""Segments between nodes in a burn-in of three lab nodes, run in the order written, on one lab.
They are measured if a controller is attached, otherwise reported as not measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab import gpu_programs
from tests.lab.burnins import Burnins, wait_until_over
from tests.lab.lab_nodes import running_lab

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab

NODES = ("n1", "n2", "n3")
RAILS = ["mlx5_0", "mlx5_3"]  # two of eight, since each takes time
# The nodes wait in real minutes; burns are compressed.
PROFILE = """\
summary: a burn, what lies between the nodes, another burn
minutes: 30
sample_seconds: 60
space_mib: 64
ramp_steps: 1
abort: {{gpu_celsius: 120, xids: fatal}}
segments:
  - {{name: heat, kind: soak, checks: [gpu_burn], minutes: 2, step_minutes: 2}}
  - {{name: between, kind: fleet, checks: [pair_bandwidth, nccl_pair], minutes: {minutes}, attended: only}}
  - {{name: again, kind: soak, checks: [gpu_burn], minutes: 2, step_minutes: 2}}
"""
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = tuple(NodeSpec(name, "h100-sxm", network="ib") for name in NODES)
    with running_lab("bbetw", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", speed=20.0) as running:
        gpu_programs.bring(running, "nvidia-fabricmanager", "gpu-burn", "perftest", "openmpi-bin")
        for node in running.nodes:
            node.as_root("systemctl enable --now nvidia-fabricmanager")
        yield running


@pytest.fixture(scope="module")
def inventory(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    declared = yaml.safe_load(lab.inventory.read_text())
    declared["gpu_nodes"]["vars"]["gpuprov_expected_nics"] = RAILS
    path = tmp_path_factory.mktemp("inventory") / "nodes.yml"
    path.write_text(yaml.safe_dump(declared))
    return path


def burnins(inventory: Path, folder: Path, minutes: float) -> Burnins:
    profile = folder / "between.yml"
    profile.write_text(PROFILE.format(minutes=minutes))
    return Burnins(inventory, folder, profile)


def checks(record: dict[str, Any], name: str) -> dict[str, str]:
    """Return check → verdict on a node."""
    return {node["node"]: node["checks"] for node in record["nodes"]}[name]  # type: ignore[no-any-return]


def test_who_attends_has_pairs_measured_and_the_nodes_go_on(
    lab: Lab, inventory: Path, tmp_path: Path
) -> None:
    lab.node("n2").fault("nic_slow", nic=3, factor=0.5)
    ours = burnins(inventory, tmp_path, 10)
    done = ours.begin("--json")
    lab.node("n2").heal()
    assert done.returncode == ExitCode.UNHEALTHY, done.stderr
    collected = ours.call("burnin", "collect", ours.first, "--json", "--remove")
    record = json.loads(collected.stdout)
    assert {name: checks(record, name)["pair_bandwidth"] for name in NODES} == {
        "n1": "pass", "n2": "fail", "n3": "pass",
    }  # fmt: skip
    assert {checks(record, name)["gpu_burn"] for name in NODES} == {"pass"}
    (slow,) = [one for one in record["nodes"][1]["findings"] if one["verdict"] == "fail"]
    assert (slow["check"], slow["device"]) == ("pair_bandwidth", "mlx5_3")
    assert slow["message"].startswith("between: ")
    measured = (ours.run(ours.first) / "fleet" / "between" / "pairs.jsonl").read_text()
    assert {json.loads(line)["check"] for line in measured.splitlines()} == {"pair_bandwidth", "nccl_pair"}
    for node in record["nodes"]:
        assert node["not_measured"] == []
        assert {row["what"] for row in node["course"] if "between" in row["what"]} != set()
        assert node["steps"] == {"done": 2, "planned": 2}


def test_where_nobody_attends_it_is_told_and_no_error(lab: Lab, inventory: Path, tmp_path: Path) -> None:
    del lab
    ours = burnins(inventory, tmp_path, 0.2)
    begun = ours.begin("--detach")
    assert begun.returncode == ExitCode.OK, begun.stderr
    attach = f"gpuprov burnin attach {ours.first} (for the checks between nodes)"
    assert attach in begun.stdout
    wait_until_over(ours, ours.first)
    collected = ours.call("burnin", "collect", ours.first, "--json", "--remove")
    assert collected.returncode == ExitCode.OK, collected.stdout
    record = json.loads(collected.stdout)
    said = "between of n[1-3]: not measured, because no controller was attached"
    assert [line for line in record["not_compared"] if line.startswith(said)] != []
    assert said in (ours.run(ours.first) / "record.html").read_text()
    for node in record["nodes"]:
        assert node["verdict"] == "pass"
        assert [line.partition(":")[0] for line in node["not_measured"]] == ["pair_bandwidth", "nccl_pair"]
        assert {node["checks"][name] for name in ("pair_bandwidth", "nccl_pair")} == {"skip"}


def test_a_node_that_burns_alone_skips_it_and_the_plan_says_so(inventory: Path, tmp_path: Path) -> None:
    planned = burnins(inventory, tmp_path, 10).begin("--nodes", "n1", verb="plan")
    assert planned.returncode == ExitCode.OK, planned.stderr
    assert "not measured: between of n1, because no other node is in its batch" in planned.stdout
