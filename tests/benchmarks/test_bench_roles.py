"""What the benchmark of `up` with two roles reads out of a run folder, and what it refuses to count."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import bench_roles
from benchmarks.bench_roles import Phases
from benchmarks.costs import Cost
from benchmarks.tree_watch import Process, Seen, below
from provision.runs.store import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunFolder]:
    def written(**records: list[tuple[int, str]]) -> RunFolder:
        folder = RunFolder.create("up", {}, tmp_path)
        folder.note(started="2026-05-04T10:00:00.000Z")
        for name, rows in records.items():
            for second, what in rows:
                time = f"2026-05-04T10:{second // 60:02}:{second % 60:02}.000Z"
                folder.append(name, {"time": time, "what": what})
        return folder

    return written


def test_the_time_of_an_up_is_divided_among_its_phases(run: Callable[..., RunFolder]) -> None:
    waves = [(4, "begins"), (20, "gate"), (30, "ends"), (31, "begins"), (71, "ends")]
    events = [(10, ""), (25, ""), (40, ""), (65, "")]
    phases = Phases.of(run(waves=waves, events=events), wall=80.0)
    assert phases == Phases(look=4 + 1, play=21 + 34, again=5 + 6, end=80 - 71, events=4)


def test_a_wave_without_an_event_was_not_played(run: Callable[..., RunFolder]) -> None:
    phases = Phases.of(run(waves=[(2, "begins"), (8, "ends")], events=[]), wall=8.0)
    assert phases == Phases(look=2, play=0, again=6, end=0, events=0)


def test_who_ends_otherwise_than_expected_is_not_measured() -> None:
    cost = Cost(1.0, 0.0, 1.0, 1.0, code=3, output="n0: failed\n", trouble="why\n")
    with pytest.raises(SystemExit, match=r"gpuprov up ended with 3:\nn0: failed\nwhy"):
        bench_roles._expect(cost, 0, "gpuprov up")
    bench_roles._expect(cost, 3, "gpuprov up")


def test_descendants_are_found_however_far_below() -> None:
    tree = {2: 1, 3: 2, 4: 3, 5: 1, 6: 5}
    every = {pid: Process(parent, "sh", 0.0) for pid, parent in tree.items()}
    assert below(every, 2) == {3, 4}
    assert below(every, 1) == {2, 3, 4, 5, 6}
    assert below(every, 9) == set()


def test_time_without_a_node_at_work_counts() -> None:
    seen = Seen(working=[0, 2, 4, 0])
    assert (seen.share, seen.at_once) == (0.5, 3.0)
    assert (Seen().share, Seen().at_once) == (0.0, 0.0)
