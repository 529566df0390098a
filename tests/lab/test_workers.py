"""A fleet run by workers of a Receptor mesh equals one run by a controller; workers fail, too."""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpuprov_lab import network
from gpuprov_lab.spec import NodeSpec
from provision.errors import ExitCode
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import running_lab
from tests.lab.worker_machines import (
    UNDO,
    Machines,
    begin,
    command,
    halves,
    newest,
    operator,
    outcomes,
    rows,
    wait_for,
    workers_of,
)

if TYPE_CHECKING:
    from tests.lab.lab_nodes import Lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

NODES = tuple(NodeSpec(f"gpu-{number:02d}", "h100-sxm") for number in range(1, 5))


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running_lab("mesh", NODES, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        yield running


@pytest.fixture(scope="module")
def workers(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with workers_of(lab, tmp_path_factory.mktemp("workers"), 3) as machines:
        yield machines


@pytest.fixture
def one(lab: Lab, tmp_path: Path) -> Operator:
    """Return the controller alone."""
    return operator(lab, tmp_path, "one", {}, None)


@pytest.fixture
def two(lab: Lab, tmp_path: Path, workers: Machines) -> Operator:
    """Return the same fleet with one half on worker-a, the other on worker-b, two hops away."""
    return operator(lab, tmp_path, "two", halves(lab, workers.workers[:2]), workers)


@pytest.fixture
def three(lab: Lab, tmp_path: Path, workers: Machines) -> Operator:
    """Return the same fleet, with every worker able to reach each node."""
    names = [worker.name for worker in workers]
    return operator(lab, tmp_path, "three", {node.name: names for node in NODES}, workers)


def events(run: Path) -> Counter[tuple[str, ...]]:
    names = ("node", "role", "task", "kind")
    return Counter(tuple(str(row[name]) for name in names) for row in rows(run, "events"))


def test_up_by_two_workers_is_up_by_one_controller(
    lab: Lab, one: Operator, two: Operator, workers: Machines
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
    # Only its worker has reached each node.
    addresses = {worker.name: worker.address for worker in workers}
    for node in lab.nodes:
        log = node.as_root(f"journalctl --no-pager -q -u ssh -S @{marks[node.name]} | grep Accepted").stdout
        logins = Counter(re.findall(r"from (\S+) port", log))
        (its,) = halves(lab, workers.workers[:2])[node.name]
        assert logins.pop(addresses[its]) > 2
        assert logins.pop(network.bridge_address(lab.record.octet)) == 1, "who but this look came from here?"
        assert not logins


def timeless(run: Path) -> dict[str, Any]:
    """Return a report without times, run and inventory names, and uptimes of nodes."""
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


def test_nodes_of_a_worker_killed_in_the_middle_are_finished_by_another(
    lab: Lab, three: Operator, workers: Machines
) -> None:
    for node in lab.nodes:
        node.as_root(UNDO)
    process = begin(three, "--no-canary")
    wait_for(workers[1], "ansible-playbook")
    workers[1].kill_work()
    text, _ = process.communicate(timeout=600)
    assert process.returncode == ExitCode.OK, text
    run = newest(three.runs, "up")
    assert {one["status"] for one in outcomes(run).values()} == {"done"}, text
    assert "the connection broke in the middle" in text
    done = [
        (row["node"], row["role"], row["task"], row.get("item"))
        for row in rows(run, "events")
        if row["kind"] == "changed"
    ]
    assert len(done) == len(set(done)), "what was heard of is not done twice"
    wait_for(workers[1], "ansible-playbook", running=False)
    assert workers.mesh.left() == []


def test_what_ran_on_without_its_controller_is_collected_and_nothing_is_repeated(
    lab: Lab, three: Operator, workers: Machines
) -> None:
    for node in lab.nodes:
        node.as_root(UNDO)
    process = begin(three, "--no-canary")
    busy = workers.workers[: len(NODES)]
    for worker in busy:
        wait_for(worker, "ansible-playbook")
    process.kill()
    process.communicate()
    first = newest(three.runs, "up")
    units = [json.loads(file.read_text()) for file in (first / "units").glob("*.json")]
    assert sorted(unit["worker"] for unit in units) == [worker.name for worker in busy]
    assert all(unit["unit"] for unit in units)
    journal = first / "events.jsonl"
    before = len(rows(first, "events")) if journal.exists() else 0
    listed = three.bare("runs", "units", "--json")
    assert {row["run"] for row in json.loads(listed.stdout)["units"]} == {first.name}, said(listed)
    time.sleep(180)
    for worker in workers:
        wait_for(worker, "ansible-playbook", running=False)
    again = three.call("up", "--yes", "--resume", str(first))
    assert again.returncode == ExitCode.OK, said(again)
    assert "collected what the earlier run's up.yml did" in said(again)
    assert {one["status"] for one in outcomes(newest(three.runs, "up")).values()} == {"as declared"}
    assert len(rows(first, "events")) > before
    done = [
        (row["node"], row["role"], row["task"], row.get("item"))
        for row in rows(first, "events")
        if row["kind"] == "changed"
    ]
    assert {row[0] for row in done} == {node.name for node in NODES}
    assert len(done) == len(set(done))
    assert workers.mesh.left() == []
    assert not (first / "units").exists()


def test_an_interrupt_here_ends_ansible_there(lab: Lab, two: Operator, workers: Machines) -> None:
    for node in lab.nodes:
        node.as_root(UNDO)
    process = begin(two, "--no-canary")
    for worker in workers.workers[:2]:
        wait_for(worker, "ansible-playbook")
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED, text
    for worker in workers:
        wait_for(worker, "ansible-playbook", running=False, seconds=30)
        wait_for(worker, "provision.remote.worker_program.worker_entry", running=False, seconds=30)
    assert workers.mesh.left() == []


def test_a_worker_of_another_version_or_with_another_certificate_is_not_used(
    lab: Lab, tmp_path: Path, workers: Machines
) -> None:
    older = tmp_path / "older"
    older.mkdir()
    (older / "sitecustomize.py").write_text("import provision\nprovision.__version__ = '0.0.1'\n")
    mesh, work = workers.mesh, workers.mesh.command.read_text()
    known = (mesh.folder / "worker-b.crt").read_bytes()
    mesh.command.write_text(command(tmp_path, "old", f"{older}:").read_text())
    mesh.certify("worker-b", "notbefore=2020-01-01T00:00:00Z", "notafter=2020-02-01T00:00:00Z")
    workers.stop(workers[1])
    mesh.begin("worker-b")
    try:
        stands = operator(lab, tmp_path, "wrong", halves(lab, workers.workers[:2]), workers)
        done = stands.call("validate", "--stage", "quick")
    finally:
        mesh.command.write_text(work)
        (mesh.folder / "worker-b.crt").write_bytes(known)
        mesh.certify("worker-b")
        workers.stop(workers[1])
        workers.start(workers[1])
    assert done.returncode == ExitCode.INCOMPLETE, said(done)
    assert "worker worker-a: it has gpuprov 0.0.1, and this controller has" in said(done)
    assert "worker worker-b: the mesh has no way to it" in said(done)
