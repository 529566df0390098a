"""A node with AMD GPUs in the shortest shipped profile, from `up` to the record; then it loses a GPU."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.burnins import LOOK_AND_BURN, Burnins, wait_until_over
from tests.lab.lab_nodes import running_lab

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
NODE = "amd-01"
SPEED = 20.0
# A burn of twenty minutes takes one minute here, and a GPU is lost in the middle of it.
LONGER = LOOK_AND_BURN.replace("minutes: 2, step_minutes: 2", "minutes: 20, step_minutes: 20").replace(
    "sample_seconds: 60", "sample_seconds: 2"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("burnin")
    (made / "longer.yml").write_text(LONGER)
    return made


@pytest.fixture(scope="module")
def lab(folder: Path) -> Iterator[Lab]:
    nodes = (NodeSpec(NODE, "mi300x", "ubuntu2404"),)
    with running_lab("burnamd", nodes, folder / "lab.yml", speed=SPEED) as running:
        yield running


@pytest.fixture(scope="module")
def burnins(lab: Lab, folder: Path) -> Burnins:
    made = Burnins(lab.inventory, folder, folder / "longer.yml")
    done = made.call("up", str(lab.inventory), "--yes", timeout=1800)
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    return made


def record_of(burnins: Burnins, name: str) -> dict[str, Any]:
    """Return the node's part of the record of a completed burn-in."""
    wait_until_over(burnins, name, patience=1500)
    done = burnins.call("burnin", "collect", name, "--remove", "--json")
    (node,) = json.loads(done.stdout)["nodes"]
    return dict(node)


def test_the_shortest_profile_accepts_a_healthy_node(burnins: Burnins) -> None:
    planned = burnins.call("burnin", "plan", str(burnins.inventory), "--profile", "smoke")
    assert planned.returncode == ExitCode.OK
    begun = burnins.call("burnin", "start", str(burnins.inventory), "--profile", "smoke", "--detach")
    assert begun.returncode == ExitCode.OK, begun.stderr
    again = burnins.call("burnin", "start", str(burnins.inventory), "--profile", "smoke", "--detach")
    assert again.returncode == ExitCode.ERROR
    assert f"{NODE}: the burn-in {burnins.first} by " in again.stderr
    node = record_of(burnins, burnins.first)
    assert [one for one in node["findings"] if one["verdict"] in ("fail", "error")] == []
    assert node["verdict"] in ("pass", "warn")
    assert node["not_measured"] == []
    assert node["steps"]["done"] == node["steps"]["planned"] > 0
    assert node["load_by_segment"]["heat"]["gpu_burn"] >= 240
    devices = {name: one for name, one in node["telemetry"]["devices"].items() if name.startswith("gpu/")}
    assert set(devices) == {f"gpu/gpu{number}" for number in range(8)}
    for one in devices.values():
        assert one["samples_under_load"] >= 3
        assert {"temperature_c", "memory_c", "power_w", "sm_mhz"} <= set(one["most"])


def test_a_gpu_that_is_lost_ends_it_with_its_name(burnins: Burnins, lab: Lab) -> None:
    begun = burnins.begin("--detach")
    assert begun.returncode == ExitCode.OK, begun.stderr
    time.sleep(30)
    before = time.time()
    lab.node(NODE).fault("gpu_off_bus", gpu=5)
    try:
        node = record_of(burnins, burnins.newest)
    finally:
        lab.node(NODE).heal()
    assert node["how_it_ended"] == "abort"
    bad = [one for one in node["findings"] if one["verdict"] == "fail"]
    assert {one["device"] for one in bad if one["device"].startswith("gpu")} == {"gpu5"}
    (stop,) = [one for one in bad if one["metric"] == "abort"]
    assert "the rule xids: device lost from bus on gpu5" in stop["message"]
    assert before - 15 <= stop["since_seconds"] <= before + 60


def test_nothing_is_left_on_the_node(lab: Lab) -> None:
    left = (
        lab.node(NODE)
        .as_root("ls -A /var/lib/gpuprov/burnin 2>/dev/null; pgrep -l 'amd-smi|rvs' || true")
        .stdout
    )
    assert left.strip() == ""
