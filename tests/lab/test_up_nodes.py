"""`gpuprov up` when things go wrong in the middle: a node dies, a user interrupts. One role only."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator
from tests.lab.images import FLEET, Images
from tests.lab.lab_nodes import Lab, running_lab

if TYPE_CHECKING:
    from tests.lab.lab_nodes import LabNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Yield gpu-01, which is bare, and the other nodes after `up`."""
    declared = {name: image for name, image in images.declared().items() if name != "gpu-01"}
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("upnodes", FLEET, inventory, images=declared) as running:
        yield running


@pytest.fixture
def operator(lab: Lab, tmp_path: Path) -> Operator:
    """Return an operator with a separate folder of runs for each test."""
    return Operator(lab.inventory, tmp_path / "runs")


ONLY_RDMA = ("up", "--set", "gpuprov_roles=[rdma]")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=900)
    return process.returncode, said


def wait_for_role(operator: Operator, node: str, process: subprocess.Popen[str]) -> None:
    """Wait until the role has started work on the node."""
    for _ in range(1200):
        assert process.poll() is None, process.communicate()[0]
        if list(operator.runs.glob("*-up")) and any(
            event["node"] == node and event["role"] for event in operator.records("events")
        ):
            return
        time.sleep(0.1)
    pytest.fail(f"nothing happened on {node}")


def make_wait(node: LabNode) -> None:
    """Remove a package and keep apt from installing it: the role will wait for the lock."""
    node.run("sudo apt-get remove -y perftest")
    node.hold_dpkg()


def test_a_bare_node_gets_one_role_and_a_second_run_does_nothing(operator: Operator) -> None:
    code, said = finish(operator.began(*ONLY_RDMA))
    assert code == ExitCode.OK, said
    code, said = finish(operator.began(*ONLY_RDMA))
    assert code == ExitCode.OK, said
    assert "3 nodes already as declared" in said
    assert operator.records("events") == []


def test_a_node_that_dies_in_the_middle_is_unreachable_and_the_others_are_finished(
    lab: Lab, operator: Operator
) -> None:
    dying = lab.node("gpu-02")
    make_wait(dying)
    lab.node("gpu-01").run("sudo apt-get remove -y perftest")
    process = operator.began(*ONLY_RDMA)
    try:
        wait_for_role(operator, "gpu-02", process)
        dying.power_off()
        code, said = finish(process)
    finally:
        dying.power_on()
    assert code == ExitCode.INCOMPLETE, said
    ended = {record["node"]: record["status"] for record in operator.records("outcomes")}
    assert ended == {"gpu-01": "done", "gpu-02": "unreachable", "gpu-03": "as declared"}, said
    code, said = finish(operator.began(*ONLY_RDMA))
    assert code == ExitCode.OK, said


def test_an_interrupt_can_be_resumed(lab: Lab, operator: Operator) -> None:
    node = lab.node("gpu-03")
    make_wait(node)
    process = operator.began(*ONLY_RDMA, "--nodes", "gpu-01,gpu-03")
    try:
        wait_for_role(operator, "gpu-03", process)
        process.send_signal(signal.SIGINT)
        code, said = finish(process)
    finally:
        node.release_dpkg()
    assert code == ExitCode.INTERRUPTED, said
    assert "gpuprov up --resume" in said
    ended = {record["node"]: record["status"] for record in operator.records("outcomes")}
    assert ended == {"gpu-01": "as declared", "gpu-03": "interrupted"}
    code, said = finish(operator.began("up", "--resume"))
    assert code == ExitCode.OK, said
    assert {record["node"] for record in operator.records("outcomes")} == {"gpu-01", "gpu-03"}
    assert node.run("dpkg-query -W -f '${Status}' perftest").stdout == "install ok installed"
