"""The parts of the cost of `drift` behind workers; measured only if this machine has Receptor.

Speed itself is not tested."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import bench_workers, nodes, worker_mesh
from benchmarks import expected as expectations
from benchmarks.bench_workers import Spent, spent_by
from benchmarks.contenders import Work
from benchmarks.costs import TREE_COST, Cost, FailedError
from benchmarks.nodes import Nodes
from benchmarks.results import Options
from benchmarks.worker_mesh import WORKERS, WorkerMesh
from provision.desired import inventory
from provision.remote import workers
from provision.remote.workers import Link
from tests.support.receptor import CONTROLLER, PROGRAM, RealMesh

pytestmark = pytest.mark.timeout(600)

with_receptor = pytest.mark.skipif(
    PROGRAM is None, reason="no receptor in PATH, and GPUPROV_TEST_RECEPTOR names none"
)


@pytest.fixture
def two() -> Iterator[Nodes]:
    with nodes.loopback(2) as fleet:
        yield fleet


def standing(**given: Any) -> WorkerMesh:
    """Return a mesh with only the given attributes."""
    return WorkerMesh(cast("RealMesh", SimpleNamespace(**given)))


@pytest.mark.long
@with_receptor
@pytest.mark.skipif(not shutil.which("openssl"), reason="no openssl, which makes the key that signs work")
def test_drift_behind_workers_is_measured_against_drift_and_ssh(tmp_path: Path, two: Nodes) -> None:
    options = Options(tmp_path, nodes=2, rounds=1, quick=True)
    expected = expectations.prepared(two, str(tmp_path / "on-nodes"))
    with worker_mesh.worker_mesh() as mesh:
        found = [
            *bench_workers._cpu(two, expected, mesh, options),
            *bench_workers._wall(two, expected, mesh, options, 1),
        ]
        processes = list(mesh.real.processes.values())
    goals = {each.goal: each for each in found}
    assert goals.keys() == {"workers.controller", "workers.total", "workers.wall"}
    assert all(each.median > 0 for each in goals.values())
    assert all(process.poll() is not None for process in processes), "a Receptor is left"


def test_without_receptor_it_is_said_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_mesh, "PROGRAM", None)
    with pytest.raises(FailedError, match="there is no receptor: install"):
        list(bench_workers.measure(Options(tmp_path, nodes=2, rounds=1, quick=True)))


def test_each_node_is_behind_both_workers(tmp_path: Path, two: Nodes) -> None:
    mesh = standing(socket="/run/ours", worker_socket=lambda name: f"/run/{name}")
    fleet = inventory.load(mesh.inventory(two, tmp_path, gpuprov_roles=[]))
    fleet, apart = workers.apart(fleet)
    assert list(apart.nodes) == list(WORKERS)
    assert list(fleet.nodes) == two.names
    for node in workers.linked(fleet, apart, {}).nodes.values():
        link = Link.of(node.variables[workers.LINK])
        assert [(worker.name, worker.socket) for worker in link.workers] == [
            (name, f"/run/{name}") for name in WORKERS
        ]
        assert link.socket == "/run/ours"


def test_what_a_unit_spent_counts_also_when_nobody_waited_for_it(tmp_path: Path) -> None:
    """Simulates a Receptor that runs a program which leaves a child behind."""
    burn = f"{sys.executable} -I -S -c 'sum(range(10_000_000))'"
    command = ["sh", "-c", f"({burn} &) ; exec sleep 600"]
    counted = [sys.executable, "-I", "-S", str(TREE_COST), str(tmp_path / "cost"), "600", *command]
    with subprocess.Popen(counted, start_new_session=True) as process:
        try:
            mesh = standing(processes={"worker-a": process})
            deadline = time.monotonic() + 60
            while not worker_mesh._at_work(process.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
            used = mesh.cpu()["worker-a"]
            assert not worker_mesh._at_work(process.pid), "it was not waited for"
        finally:
            process.kill()
    before = os.times()
    sum(range(10_000_000))
    assert used > 0.5 * (os.times().user - before.user)


class Spending:
    """A mesh that consumes this much CPU time per machine and run."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = {name.replace("_", "-"): each for name, each in seconds.items()}
        self._asked = 0

    def cpu(self) -> dict[str, float]:
        self._asked += 1
        return {name: 5.0 + (self._asked - 1) * each for name, each in self._seconds.items()}


def spent(monkeypatch: pytest.MonkeyPatch, two: Nodes, **seconds: float) -> Spent:
    cost = Cost(controller=1.0, node=0.0, wall=3.0, memory=0.0, code=0, output="", trouble="")
    monkeypatch.setattr(bench_workers, "converged", lambda *_: cost)
    work = Work([], Path(), lambda _: {})
    return spent_by("drift", work, two, cast("WorkerMesh", Spending(**seconds)))


def test_the_controller_pays_for_its_receptor_and_all_for_all(
    monkeypatch: pytest.MonkeyPatch, two: Nodes
) -> None:
    assert CONTROLLER == "controller"
    found = spent(monkeypatch, two, controller=0.25, worker_a=2.0, worker_b=4.0)
    assert (found.controller, found.workers, found.total, found.wall) == (1.25, 6.0, 7.25, 3.0)


def test_a_run_in_which_a_worker_asked_nobody_counts_for_nothing(
    monkeypatch: pytest.MonkeyPatch, two: Nodes
) -> None:
    with pytest.raises(FailedError, match="worker-b asked no nodes"):
        spent(monkeypatch, two, controller=0.25, worker_a=2.0, worker_b=0.0)
