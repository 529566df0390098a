"""The benchmark of workers measures what it says, and nothing where a worker finds something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import bench_workers, nodes
from benchmarks.nodes import FailedError
from benchmarks.results import Options, Result, Table

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """Three nodes that need no root."""
    monkeypatch.setattr(bench_workers, "fleet", nodes.loopback)
    return Options(tmp_path, nodes=3, rounds=1, quick=True)


def test_the_controller_with_workers_is_measured_against_the_controller_alone(options: Options) -> None:
    whole, *_, table = bench_workers.measure(options)
    assert isinstance(whole, Result)
    assert whole.median > 0
    assert isinstance(table, Table)
    by_name = {row[0]: row[1:] for row in table.rows}
    begun = {name: float(row[1].split()[0]) for name, row in by_name.items()}
    assert begun[bench_workers.ALONE] == 0.0
    assert begun[bench_workers.WORKERS] > 0.2, "two workers start Python for less CPU than that?"


def test_workers_that_read_other_facts_are_not_measured(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = bench_workers.observed

    def changed(run: Path, names: list[str]) -> dict[str, Any]:
        found = read(run, names)
        return found if len(list(run.parent.glob("*-drift"))) % 2 else {**found, names[-1]: []}

    monkeypatch.setattr(bench_workers, "observed", changed)
    with pytest.raises(FailedError, match=r"something else: of node-0000.: \[\], and the controller \['"):
        list(bench_workers.measure(options))


def test_too_few_nodes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FailedError, match="more than 2"):
        list(bench_workers.measure(Options(tmp_path, nodes=2)))
