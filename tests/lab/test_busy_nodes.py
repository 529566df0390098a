"""A node that another run works on is refused by those that would change, measure or load it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from provision.errors import ExitCode
from provision.lab.spec import NodeSpec
from tests.lab.burnins import Burnins
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import running_lab
from tests.support.processes import until

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab

PROFILE = """\
summary: an hour, for tools that are simulated
minutes: 62
sample_seconds: 80
space_mib: 64
abort: {gpu_celsius: 120, failed_steps: 50}
segments:
  - {name: heat, kind: soak, checks: [gpu_burn], minutes: 60, step_minutes: 2}
"""
OTHER = "r570-cuda12.8"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, images: Images) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "h100-sxm"))
    declared = {node.name: images.h100() for node in nodes}
    folder = tmp_path_factory.mktemp("busy")
    with running_lab("busynodes", nodes, folder / "lab.yml", speed=20.0, images=declared) as running:
        yield running


@pytest.fixture
def operator(lab: Lab, tmp_path: Path) -> Operator:
    return Operator(lab.inventory, tmp_path / "runs")


@pytest.fixture
def burnins(lab: Lab, tmp_path: Path) -> Burnins:
    (tmp_path / "hour.yml").write_text(PROFILE)
    return Burnins(lab.inventory, tmp_path, tmp_path / "hour.yml")


def state(lab: Lab) -> tuple[str, str]:
    """The driver that is loaded on gpu-01, and its boot."""
    node = lab.node("gpu-01")
    return node.run("cat /sys/module/nvidia/version").stdout, node.run(
        "cat /proc/sys/kernel/random/boot_id"
    ).stdout


def test_a_node_that_burns_in_is_neither_changed_nor_measured_until_it_is_told(
    lab: Lab, operator: Operator, burnins: Burnins
) -> None:
    before = state(lab)
    begun = burnins.begin("--detach", "--nodes", "gpu-01")
    assert begun.returncode == ExitCode.OK, begun.stderr
    for refused in (
        operator.call("up", gpuprov_stack=OTHER),
        operator.call("up", "--yes", gpuprov_stack=OTHER),
        operator.call("validate", "--stage", "quick"),
        burnins.begin("--detach"),
    ):
        words = said(refused)
        assert refused.returncode == ExitCode.ERROR, words
        assert f"gpu-01: the burn-in {burnins.first} by root@" in words
        assert f"`gpuprov burnin stop {burnins.first} -i {lab.inventory}` ends it" in words
        assert "--nodes 'all:!gpu-01' leaves these nodes out" in words
    assert state(lab) == before
    assert "burning" in burnins.call("burnin", "status", burnins.first).stdout

    spared = operator.call("validate", "--stage", "quick", "--nodes", "all:!gpu-01")
    assert spared.returncode == ExitCode.OK, spared.stdout + spared.stderr
    assert operator.call("validate", "--stage", "quick", "--break-lock").stdout
    stopped = burnins.call("burnin", "stop", burnins.first, "-i", str(lab.inventory))
    assert stopped.returncode == ExitCode.OK, stopped.stderr
    quick = operator.call("validate", "--stage", "quick")
    assert quick.returncode == ExitCode.OK, quick.stdout + quick.stderr


def test_a_node_that_is_measured_is_neither_changed_nor_burned_in(
    lab: Lab, operator: Operator, burnins: Burnins
) -> None:
    before = state(lab)
    measuring = operator.began("validate", "--checks", "gpu_burn", "--burn-seconds", "3000")
    try:
        held = lab.node("gpu-02")
        until(lambda: "validate" in held.run("cat /run/gpuprov/lock", check=False).stdout, 120)
        for refused in (operator.call("up", gpuprov_stack=OTHER), burnins.begin("--detach")):
            words = said(refused)
            assert refused.returncode == ExitCode.ERROR, words
            assert "gpu-[01-02]: gpuprov validate by root@" in words
            assert f"(process {measuring.pid})" in words
            assert "press Ctrl-C where it runs" in words
    finally:
        measuring.send_signal(signal.SIGTERM)
        printed = measuring.communicate(timeout=300)[0]
    assert measuring.returncode == ExitCode.INTERRUPTED, printed
    assert state(lab) == before
    assert held.run("cat /run/gpuprov/lock", check=False).stdout == ""
