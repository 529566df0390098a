"""`gpuprov up` when things go wrong in the middle: a node dies, somebody interrupts. One role only."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from provision.errors import ExitCode
from provision.lab.spec import DEFAULT_NODES
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab

if TYPE_CHECKING:
    from tests.lab.lab_nodes import LabNode

ROOT = Path(__file__).resolve().parents[2]
HOLD_DPKG = (
    "import fcntl, time; lock = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(lock, fcntl.LOCK_EX);"
    "print('held', flush=True); time.sleep(300)"
)
pytestmark = pytest.mark.timeout(1200)

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """gpu-01 is bare, the others are as `up` leaves them."""
    declared = {name: image for name, image in images.declared().items() if name != "gpu-01"}
    inventory = tmp_path_factory.mktemp("lab") / "lab.yml"
    with running_lab("upnodes", DEFAULT_NODES, inventory, images=declared) as running:
        yield running


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def start(lab: Lab, runs: Path) -> Start:
    def begin(*arguments: str, inventory: bool = True) -> subprocess.Popen[str]:
        where = [str(lab.inventory)] if inventory else []
        return subprocess.Popen(
            [sys.executable, "-m", "provision.cli", "up", *where, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(runs)},
        )

    return begin


ONLY_RDMA = ("--set", "gpuprov_roles=[rdma]")


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=900)
    return process.returncode, said


def records(runs: Path, name: str) -> list[dict[str, Any]]:
    newest = max(runs.glob("*-up"))
    path = newest / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_role(runs: Path, node: str, process: subprocess.Popen[str]) -> None:
    """Until the role has done something on the node."""
    for _ in range(1200):
        assert process.poll() is None, process.communicate()[0]
        folders = list(runs.glob("*-up"))
        if folders and any(e["node"] == node and e["role"] for e in records(runs, "events")):
            return
        time.sleep(0.1)
    pytest.fail(f"nothing happened on {node}")


def hold_dpkg(node: LabNode) -> None:
    """Take a package away and keep apt from bringing it back: the role will wait for the lock."""
    node.run("sudo apt-get remove -y perftest")
    node.run(f"echo {shlex.quote(HOLD_DPKG)} > /tmp/hold.py; rm -f /tmp/held")
    node.run(
        "sudo setsid python3 /tmp/hold.py </dev/null > /tmp/held 2>&1 &"
        " until grep -qx held /tmp/held; do sleep 0.1; done"
    )


def release_dpkg(node: LabNode) -> None:
    node.run("sudo pkill -f /tmp/hold.py", check=False)


def test_a_bare_node_gets_one_role_and_a_second_run_does_nothing(start: Start, runs: Path) -> None:
    code, said = finish(start(*ONLY_RDMA))
    assert code == ExitCode.OK, said
    code, said = finish(start(*ONLY_RDMA))
    assert code == ExitCode.OK, said
    assert "3 nodes already as declared" in said
    assert records(runs, "events") == []


def test_a_node_that_dies_in_the_middle_is_unreachable_and_the_others_are_finished(
    lab: Lab, start: Start, runs: Path
) -> None:
    dying = lab.node("gpu-02")
    hold_dpkg(dying)
    lab.node("gpu-01").run("sudo apt-get remove -y perftest")
    process = start(*ONLY_RDMA)
    try:
        wait_for_role(runs, "gpu-02", process)
        dying.power_off()
        code, said = finish(process)
    finally:
        dying.power_on()
    assert code == ExitCode.INCOMPLETE, said
    ended = {record["node"]: record["status"] for record in records(runs, "outcomes")}
    assert ended == {"gpu-01": "done", "gpu-02": "unreachable", "gpu-03": "as declared"}, said
    code, said = finish(start(*ONLY_RDMA))
    assert code == ExitCode.OK, said


def test_an_interrupt_can_be_resumed(lab: Lab, start: Start, runs: Path) -> None:
    node = lab.node("gpu-03")
    hold_dpkg(node)
    process = start(*ONLY_RDMA, "--nodes", "gpu-01,gpu-03")
    try:
        wait_for_role(runs, "gpu-03", process)
        process.send_signal(signal.SIGINT)
        code, said = finish(process)
    finally:
        release_dpkg(node)
    assert code == ExitCode.INTERRUPTED, said
    assert "gpuprov up --resume" in said
    ended = {record["node"]: record["status"] for record in records(runs, "outcomes")}
    assert ended == {"gpu-01": "as declared", "gpu-03": "interrupted"}
    code, said = finish(start("--resume", inventory=False))
    assert code == ExitCode.OK, said
    assert {record["node"] for record in records(runs, "outcomes")} == {"gpu-01", "gpu-03"}
    assert node.run("dpkg-query -W -f '${Status}' perftest").stdout == "install ok installed"
