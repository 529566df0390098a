"""The mesh simulation runs the real code, loses no result under faults, and detects broken code."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_mesh
from benchmarks.costs import FailedError
from benchmarks.mesh import look
from benchmarks.mesh.look import DARK, EACH, REGIONS, Looked, Scenario
from benchmarks.mesh.network import Line, Region
from benchmarks.mesh.virtual_threads import Signal, StuckError, World, instead_of
from provision.remote import protocol
from provision.remote.worker_program import worker_entry
from provision.remote.workers import assignment, mesh, worker_asks, worker_stream

NODES = 320
OF_A_REGION = NODES // REGIONS


def looked(folder: Path, **what: Any) -> Looked:
    """Run the simulated observation. (Code that waits in real time for minutes exceeds the test's limit.)"""
    return look.look(Scenario(NODES, **what), folder)


def test_without_trouble_each_node_is_looked_at_once(tmp_path: Path) -> None:
    one = looked(tmp_path)
    bench_mesh.right(one, "")
    assert (one.lost, one.twice, one.unreached, one.left) == (0, 0, 0, 0)
    assert one.seconds < 30
    assert one.curve[-1][1] == NODES
    assert 0 < one.cpu < 20
    assert one.bytes > NODES * len(look.TEMPLATE)


def test_nodes_of_a_dark_region_are_looked_at_by_the_next_one_and_none_is_lost(tmp_path: Path) -> None:
    one = looked(tmp_path, dark=True)
    bench_mesh.right(one, "")
    assert one.unreached == 0
    assert 0 < one.twice <= 2 * OF_A_REGION
    # Nodes cut off are waited for, and the rest is quick: no unit goes to another dark worker.
    assert assignment.LEASE < one.seconds < assignment.LEASE + assignment.MARGIN


def test_nodes_that_nobody_else_reaches_are_named_and_found_when_their_region_is_back(tmp_path: Path) -> None:
    one = looked(tmp_path, dark=True, both=False)
    bench_mesh.right(one, "")
    assert one.unreached == OF_A_REGION
    assert one.seconds < DARK
    assert one.curve[-1][0] > DARK
    assert one.curve[-1][1] == NODES


def test_a_worker_that_dies_costs_no_result(tmp_path: Path) -> None:
    one = looked(tmp_path, dies=True)
    bench_mesh.right(one, "")
    assert one.unreached == 0
    assert 0 < one.twice < NODES / REGIONS / EACH * 2


def test_the_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    def timeless(name: str, seed: int) -> Looked:
        (tmp_path / name).mkdir()
        one = looked(tmp_path / name, dark=True, seed=seed)
        return replace(one, cpu=0.0)

    first = timeless("first", 1)
    assert timeless("again", 1) == first
    assert timeless("other", 2) != first


# --- broken code is detected


def test_it_sees_that_nodes_of_a_lost_worker_are_given_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_taking_over(shares: Any, work: Any) -> dict[str, Any]:
        return {name: error for share in shares for name, error in work(share).items()}

    monkeypatch.setattr(mesh, "worked", without_taking_over)
    assert looked(tmp_path, dies=True).unreached > 0


def test_it_sees_that_results_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gather = worker_asks.Away.gather

    def forgetful(self: worker_asks.Away, wait: float = 0.0) -> None:
        take, self._take = self._take, lambda node, *said: node.endswith("7") or take(node, *said)
        gather(self, wait)
        self._take = take

    monkeypatch.setattr(worker_asks.Away, "gather", forgetful)
    with pytest.raises((KeyError, FailedError), match=r"gpu-\d+7"):
        looked(tmp_path)


def test_it_sees_a_result_of_another_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = worker_asks._output
    kept: list[Any] = []

    def swapped(*said: Any) -> Any:
        kept.append(output(*said))
        return kept[0]

    monkeypatch.setattr(worker_asks, "_output", swapped)
    one = looked(tmp_path)
    assert one.lost == NODES - 1
    with pytest.raises(FailedError, match=f"well: {NODES - 1} nodes have no true result"):
        bench_mesh.right(one, "well")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each worker's nodes take minutes, so that a worker is cut off in the middle."""
    monkeypatch.setattr(look, "RATE", 0.02)
    monkeypatch.setattr(worker_asks, "_SPARE", 600.0)


@pytest.mark.usefixtures("slow")
def test_two_workers_are_never_at_work_on_one_node(tmp_path: Path) -> None:
    one = looked(tmp_path, dark=True)
    bench_mesh.right(one, "")
    assert one.twice > 0


@pytest.mark.usefixtures("slow")
def test_it_sees_that_a_worker_is_given_up_while_it_may_be_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "MARGIN", -assignment.LEASE)
    one = looked(tmp_path, dark=True)
    with pytest.raises(FailedError, match=r"two workers were at work on \d+ nodes at the same time"):
        bench_mesh.right(one, "dark")


def test_a_unit_that_nobody_removes_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provision.remote.workers.units.removed", lambda *_: None)
    with pytest.raises(FailedError, match="units are left in the mesh"):
        bench_mesh.right(looked(tmp_path), "")


# --- assumptions


def test_threads_wait_in_virtual_time_and_hand_over_in_order() -> None:
    world = World()
    stand_ins = instead_of(world)
    said: list[str] = []

    def one(name: str, seconds: float) -> None:
        for _ in range(2):
            stand_ins["time"].sleep(seconds)
            said.append(f"{name} {world.now - world.began:g}")

    threads = [
        stand_ins["threading"].Thread(target=one, args=arguments) for arguments in (("a", 700), ("b", 500))
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == ["b 500", "a 700", "b 1000", "a 1400"]
    assert time.monotonic() - began < 5


def test_who_waits_for_what_will_not_happen_is_told() -> None:
    world = World()
    with pytest.raises(StuckError, match="nothing will happen any more"):
        Signal(world).wait()


def test_what_waits_in_another_way_than_is_known_breaks_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_asks.Away, "__exit__", lambda *_: vars(worker_asks)["threading"].Event())
    with pytest.raises(AttributeError, match="Event"):
        looked(tmp_path)


def test_what_a_simulated_worker_says_has_the_form_of_the_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare a node's output event as sent by worker_entry and by benchmarks/mesh/worker.py."""
    from benchmarks.mesh.worker import Process

    sent: list[dict[str, Any]] = []
    speaker = worker_entry._Speaker.__new__(worker_entry._Speaker)
    speaker._events, speaker._answers = 0, worker_stream.Answers()
    monkeypatch.setattr(speaker, "event_handler", sent.append, raising=False)
    around = look.Surroundings(Scenario(1))
    for node in ("gpu-000001", "gpu-000002"):
        speaker.output(node, around.output(node) or b"", 1.0)
    speaker.output("gpu-000999", protocol.NodeError("unreachable", "gpu-000999 did not answer", "look"), 1.0)

    made = Process.__new__(Process)
    made.worker, made._answers = next(iter(around.workers.values())), worker_stream.Answers()
    ours = [made._event(f"gpu-{number:06}", place) for place, number in enumerate((1, 2, 999), 1)]
    for real, simulated in zip(sent, ours, strict=True):
        assert simulated.keys() == real.keys()
        assert simulated["event_data"].keys() == real["event_data"].keys()
        assert (simulated["event"], simulated["counter"]) == (real["event"], real["counter"])
        worker_stream._event(simulated, {simulated["event_data"]["host"]})


def test_a_message_over_a_bad_line_comes_late_and_in_order() -> None:
    import random

    line = Line(Region("far", 0.1, 0.5), random.Random(1))  # noqa: S311
    arrived = [line.arrives(200, float(at), there=True) for at in range(50)]
    assert arrived == sorted(arrived)
    assert all(at + 0.1 < when for at, when in enumerate(arrived))
    assert line.lost > 10
    assert line.messages == 50


# --- the plot
