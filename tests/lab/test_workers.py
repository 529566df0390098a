"""A fleet done by two workers, each its half, is as one done by one controller; and workers on a bad day."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from provision.errors import ExitCode
from provision.lab import network
from provision.lab.spec import NodeSpec
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import running_lab
from tests.lab.worker_machines import (
    UNDO,
    Worker,
    begin,
    halves,
    interpreter,
    newest,
    operator,
    outcomes,
    rows,
    two_workers,
    wait_for,
)

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NODES = tuple(NodeSpec(f"gpu-{number:02d}", "h100-sxm") for number in range(1, 5))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab("workers", NODES, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def workers(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Worker]]:
    with two_workers(lab, tmp_path_factory.mktemp("workers")) as both:
        yield both


@pytest.fixture
def one(lab: Lab, tmp_path: Path) -> Operator:
    """The controller alone."""
    return operator(lab, tmp_path, "one", {}, {})


@pytest.fixture
def two(lab: Lab, tmp_path: Path, workers: list[Worker]) -> Operator:
    """The same fleet with a worker for each half."""
    python = interpreter(tmp_path, "python")
    return operator(
        lab, tmp_path, "two", halves(lab, workers), {w.name: w.variables(python) for w in workers}
    )


def events(run: Path) -> Counter[tuple[str, ...]]:
    names = ("node", "role", "task", "kind")
    return Counter(tuple(str(row[name]) for name in names) for row in rows(run, "events"))


def test_up_by_two_workers_is_up_by_one_controller(
    lab: Lab, one: Operator, two: Operator, workers: list[Worker]
) -> None:
    first = one.call("up", "--yes")
    assert first.returncode == ExitCode.OK, said(first)
    for node in lab.nodes:
        node.as_root(UNDO)
    marks = {node.name: node.run("date +%s.%6N").stdout.strip() for node in lab.nodes}
    second = two.call("up", "--yes")
    assert second.returncode == ExitCode.OK, said(second)

    alone, shared = newest(one.runs, "up"), newest(two.runs, "up")
    assert any(event[3] == "changed" for event in events(alone))
    assert events(shared) == events(alone)
    assert outcomes(shared) == outcomes(alone)
    assert rows(shared, "drifts")[0]["fact"] == rows(alone, "drifts")[0]["fact"]
    # Each node was reached by its worker, and by nobody else.
    addresses = {worker.name: worker.address for worker in workers}
    for node in lab.nodes:
        log = node.as_root(f"journalctl --no-pager -q -u ssh -S @{marks[node.name]} | grep Accepted").stdout
        logins = Counter(re.findall(r"from (\S+) port", log))
        assert logins.pop(addresses[halves(lab, workers)[node.name]]) > 2
        assert logins.pop(network.bridge_address(lab.record.octet)) == 1, "who but this look came from here?"
        assert not logins


def timeless(run: Path) -> dict[str, Any]:
    """A report without its times, its name and the inventory's, and how long its nodes are up."""
    report = json.loads((run / "report.json").read_text())
    for name in ("started", "finished", "run_id", "inventory"):
        del report[name]
    for node in report["nodes"]:
        for check in node["checks"]:
            del check["seconds"]
            check["measurements"] = [m for m in check["measurements"] if m["metric"] != "uptime"]
    return dict(report)


def test_validate_by_two_workers_is_validate_by_one_controller(one: Operator, two: Operator) -> None:
    for stands in (one, two):
        done = stands.call("validate", "--stage", "quick")
        assert done.returncode in (ExitCode.OK, ExitCode.UNHEALTHY), said(done)
    alone, shared = timeless(newest(one.runs, "validate")), timeless(newest(two.runs, "validate"))
    assert len(alone["nodes"]) == len(NODES)
    assert all(len(node["checks"]) > 2 and not node["error"] for node in alone["nodes"])
    assert shared == alone


def test_nodes_of_a_killed_worker_are_failed_and_the_others_go_on(
    lab: Lab, two: Operator, workers: list[Worker]
) -> None:
    for node in lab.nodes:
        node.as_root(UNDO)
    process = begin(two, "--no-canary", "--max-failures", "100%")
    wait_for(workers[1], "ansible-playbook")
    workers[1].kill_work()
    text, _ = process.communicate(timeout=400)
    assert process.returncode == ExitCode.UNHEALTHY, text
    ended = outcomes(newest(two.runs, "up"))
    for name, worker in halves(lab, workers).items():
        if worker == "worker-a":
            assert ended[name]["status"] == "done", text
        else:
            assert ended[name]["status"] == "failed", text
            assert "worker worker-b: the connection ended too early" in ended[name]["message"]
    wait_for(workers[1], "ansible-playbook", running=False)  # nothing goes on without its controller

    again = two.call("up", "--yes")
    assert again.returncode == ExitCode.OK, said(again)


def test_an_interrupt_here_ends_ansible_there(lab: Lab, two: Operator, workers: list[Worker]) -> None:
    for node in lab.nodes:
        node.as_root(UNDO)
    process = begin(two, "--no-canary")
    for worker in workers:
        wait_for(worker, "ansible-playbook")
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED, text
    for worker in workers:
        wait_for(worker, "ansible-playbook", running=False, seconds=30)
        wait_for(worker, "provision.remote.workers.worker_entry", running=False, seconds=30)


def test_a_worker_of_another_version_or_with_another_host_key_is_not_used(
    lab: Lab, tmp_path: Path, workers: list[Worker]
) -> None:
    older = tmp_path / "older"
    older.mkdir()
    (older / "sitecustomize.py").write_text("import provision\nprovision.__version__ = '0.0.1'\n")
    pythons = [interpreter(tmp_path, "old", f"{older}:"), interpreter(tmp_path, "python")]
    workers[1].know((workers[0].folder / "host_key.pub").read_text())
    try:
        found = {w.name: w.variables(python) for w, python in zip(workers, pythons, strict=True)}
        stands = operator(lab, tmp_path, "wrong", halves(lab, workers), found)
        done = stands.call("validate", "--stage", "quick")
    finally:
        workers[1].know((workers[1].folder / "host_key.pub").read_text())
    assert done.returncode == ExitCode.INCOMPLETE, said(done)
    assert "worker worker-a: it has gpuprov 0.0.1, and this controller has" in said(done)
    assert f"{pythons[0]} -m pip install gpuprov==" in said(done)
    assert f"worker worker-b: the host key of {workers[1].address} CHANGED" in said(done)
