"""The benchmarks of the watch measure what they say, on few nodes; they need root."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_replace, bench_watch
from benchmarks.results import Options, Result, Table
from benchmarks.substitution import MOMENTS

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def numbers(row: tuple[str, ...]) -> list[float]:
    return [float(cell) for cell in row[1:]]


def test_a_few_substitutions(tmp_path: Path) -> None:
    result, table = bench_replace.measure(Options(tmp_path, nodes=4, rounds=1, quick=True))
    assert isinstance(result, Result)
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == list(MOMENTS)
    by_moment = list(zip(*map(numbers, table.rows), strict=True))
    assert by_moment
    assert all(each[0] > 0 and list(each) == sorted(each) for each in by_moment), "one after the other"
    assert result.median == pytest.approx(by_moment[-1][-1], rel=0.01)


def test_a_few_minutes(tmp_path: Path) -> None:
    (acted,) = bench_watch.measure(Options(tmp_path, nodes=4, rounds=1, quick=True))
    assert isinstance(acted, Result)
    assert acted.median > 0
