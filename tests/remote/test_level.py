"""How many are asked at once: it grows while that helps, and stops where it does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provision.remote.ssh.pool import Level


def climb(level: Level, rate: Callable[[int], float], cpu_of_one: float = 0.0) -> list[int]:
    """The levels it goes through when `rate` says how many nodes a second there are at each."""
    levels = [level.now]
    for _ in range(10):
        seconds = level.now / rate(level.now)
        level.seen(seconds, level.now, level.now * cpu_of_one)
        if level.now != levels[-1]:
            levels.append(level.now)
    return levels


def test_it_grows_to_the_limit_while_only_time_on_the_way_is_waited_for() -> None:
    assert climb(Level(500), lambda level: level / 1.5) == [64, 128, 256, 500]


def test_it_goes_back_where_more_are_not_faster() -> None:
    assert climb(Level(500), lambda level: min(level / 1.5, 70)) == [64, 128, 256, 128]


def test_it_stops_where_our_own_processor_is_the_limit() -> None:
    """5 ms each: 200 a second fill a core."""
    assert climb(Level(500), lambda level: min(level / 0.5, 200), cpu_of_one=0.005) == [64, 128]


@pytest.mark.parametrize("limit", [1, 7, 64])
def test_the_limit_is_never_passed(limit: int) -> None:
    assert climb(Level(limit), lambda level: level) == [limit]
