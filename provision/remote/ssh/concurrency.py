"""Adaptive concurrency: the number of nodes in progress grows while that helps, up to a limit (pure).

Waiting for a distant node costs nothing here: with time on the way, many must be on their way. Once our own
processor is busy, or twice as many were not faster, more would only wait in another place.
"""

from __future__ import annotations

from dataclasses import dataclass

START = 64
BUSY = 0.85  # of one core: more than that Python's threads cannot use
FASTER = 1.1  # a rise is worth it from here on
SLOW = 4.0  # times what nodes usually take: such a node holds no place


@dataclass(frozen=True)
class Sample:
    """What happened in a stretch of time: its seconds, nodes done, and seconds of our processor."""

    seconds: float
    done: int
    cpu: float


class Level:
    """`now` is how many may be asked at once. Tell it with `seen` how it goes; `limit` is the most."""

    def __init__(self, limit: int, start: int = START) -> None:
        self.limit = limit
        self.now = min(start, limit)
        self._before = self.now
        self._best = 0.0  # nodes a second at the level before this one
        self._settled = self.now == limit

    def seen(self, sample: Sample) -> None:
        """Rise to twice as many while our processor has time for it; go back when that was not faster."""
        if self._settled or sample.seconds <= 0:
            return
        rate = sample.done / sample.seconds
        if self._best and rate < self._best * FASTER:
            self.now, self._settled = self._before, True
        elif sample.cpu / sample.seconds >= BUSY:
            self._settled = True
        else:
            self._before, self._best = self.now, rate
            self.now = min(self.limit, self.now * 2)
