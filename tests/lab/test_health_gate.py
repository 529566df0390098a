"""`up --gate quick` on lab nodes: good ones return to service, bad ones stay drained, also on resume."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ROLE: dict[str, Any] = {"gpuprov_roles": ["host_settings"], "host_settings_time_sync": "none"}
HOOKS: dict[str, Any] = {"gpuprov_drain_hook": "drain", "gpuprov_undrain_hook": "undrain"}
GPU = 3


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = (NodeSpec("gpu-01", "h100-sxm"), NodeSpec("gpu-02", "h100-sxm"))
    declared = {node.name: images.h100() for node in nodes}
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("gate", nodes, inventory, images=declared) as running:
        for hook, command in (("drain", 'touch "drained-$1"'), ("undrain", 'rm "drained-$1"')):
            program = inventory.parent / hook
            program.write_text(f"#!/bin/sh\n{command}\n")
            program.chmod(0o755)
        yield running


@pytest.fixture(autouse=True)
def _changeable(lab: Lab) -> Iterator[None]:
    """Give the role work on each node; afterwards every GPU answers, and no node is drained."""
    for node in lab.nodes:
        node.as_root("rm -f /etc/sysctl.d/*gpuprov*")
    yield
    for node in lab.nodes:
        node.heal()
    for file in lab.inventory.parent.glob("drained-*"):
        file.unlink()


def drained(lab: Lab) -> list[str]:
    return sorted(file.name.removeprefix("drained-") for file in lab.inventory.parent.glob("drained-*"))


def ends(operator: Operator) -> dict[str, str]:
    return {record["node"]: record["status"] for record in operator.records("outcomes")}


def up(operator: Operator, *words: str) -> subprocess.CompletedProcess[str]:
    return operator.call("up", "--gate", "quick", "--no-canary", *words, **ROLE, **HOOKS)


def test_a_good_node_returns_and_a_bad_one_stays_drained(lab: Lab, operator: Operator) -> None:
    lab.node("gpu-02").fault("pcie_width", gpu=GPU, width=4)
    done = up(operator)
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert ends(operator) == {"gpu-01": "done", "gpu-02": "unhealthy"}
    assert drained(lab) == ["gpu-02"]
    assert f"gpu{GPU}" in done.stdout
    (gate,) = [record for record in operator.records("waves") if record["what"] == "gate"]
    assert sorted(gate["nodes"]) == ["gpu-01", "gpu-02"]
    assert (Path(gate["run"]) / "report.json").exists()

    done = operator.call("up", "--resume")
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert drained(lab) == ["gpu-02"]
    assert f"gpu{GPU}" in done.stdout

    lab.node("gpu-02").heal()
    done = operator.call("up", "--resume")
    assert done.returncode == ExitCode.OK, said(done)
    assert ends(operator)["gpu-02"] == "done"
    assert drained(lab) == []


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_ended_in_its_gate_is_resumed_with_the_gate(
    lab: Lab, operator: Operator, how: signal.Signals
) -> None:
    before = set(operator.runs.glob("*-up"))
    words = ("--gate", "quick", "--nodes", "gpu-01", "--no-canary")
    with operator.began("up", *words, **ROLE, **HOOKS) as process:
        until = time.monotonic() + 300
        while not any(
            '"gate"' in file.read_text()
            for run in set(operator.runs.glob("*-up")) - before
            for file in run.glob("waves.jsonl")
        ):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(how)
        text, _ = process.communicate(timeout=120)
    assert drained(lab) == ["gpu-01"], text
    if how == signal.SIGTERM:
        assert process.returncode == ExitCode.INTERRUPTED, text
        assert "gpuprov up --resume" in text

    lab.node("gpu-01").fault("pcie_width", gpu=GPU, width=4)
    done = operator.call("up", "--resume")
    assert done.returncode == ExitCode.UNHEALTHY, said(done)
    assert ends(operator) == {"gpu-01": "unhealthy"}
    assert drained(lab) == ["gpu-01"]

    lab.node("gpu-01").heal()
    done = operator.call("up", "--resume")
    assert done.returncode == ExitCode.OK, said(done)
    assert ends(operator) == {"gpu-01": "done"}
    assert drained(lab) == []
