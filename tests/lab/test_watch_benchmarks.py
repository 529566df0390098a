"""The benchmarks of the watch, run with few nodes; they need root."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import bench_replace, bench_watch
from benchmarks.results import Options

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_a_few_substitutions(tmp_path: Path) -> None:
    (slowest,) = bench_replace.measure(Options(tmp_path, nodes=4, rounds=1, quick=True))
    assert slowest.median > 0


def test_a_few_minutes(tmp_path: Path) -> None:
    acted, memory = bench_watch.measure(Options(tmp_path, nodes=4, rounds=1, quick=True))
    assert acted.median > 0
    assert 20 < memory.median < 100, "MB"
