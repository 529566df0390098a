"""Drawn histories of the watch on two controllers (watch_histories.py), and some that once went wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support.seed import times
from tests.support.watch_histories import Histories
from tests.support.watch_model import HOUR

Histories.TestCase.settings = settings(max_examples=times(300, 100_000), stateful_step_count=20)
TestHistories = pytest.mark.timeout(240 if times(0, 1) == 0 else 14_400)(Histories.TestCase)


@pytest.fixture
def history() -> Iterator[Histories]:
    drawn = Histories()
    drawn.begin()
    yield drawn
    drawn.teardown()


def test_silence_counts_from_when_the_network_is_back(history: Histories) -> None:
    """A node that goes down while this machine is cut off has not been down for five minutes after it."""
    history.a_network_is_cut_or_mended(cut=True, which=0)
    history.time_passes(minutes=6)
    history.changes(node="gpu-01", how="silent")
    history.a_network_is_cut_or_mended(cut=False, which=0)
    history.nothing_wrong_was_done()
    history.time_passes(minutes=6)
    assert sorted(history.world.reasons) == ["gpu-01", "spare-2"], "then it has been"
    history.nothing_wrong_was_done()


def test_silence_is_no_longer_by_a_clock_that_is_set(history: Histories) -> None:
    history.changes(node="gpu-01", how="silent")
    history.a_clock_is_set(which=0, seconds=2 * HOUR)
    history.time_passes(minutes=1)
    history.nothing_wrong_was_done()
