"""Ordered map over a process pool, for independent work on all cores."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from provision.errors import RunFolderError

T = TypeVar("T")
R = TypeVar("R")
MOST = 16  # processes; each needs some tens of MB
_BATCH = 4  # items sent to a process at a time
# Finished batches per process that may wait for the consumer; results are large.
_AHEAD = 3


def processes(things: int) -> int:
    """Return how many processes are worth starting; 1 if a single one is done within a second."""
    return min(MOST, len(os.sched_getaffinity(0))) if things >= 50 else 1


def in_order(work: Callable[[T], R], things: Iterable[T], count: int) -> Iterator[R]:
    """Yield `work` of each item, in order, computed by `count` processes.

    Results must be picklable; `work` need not be. Raises what `work` raises, and RunFolderError if a process
    was killed.
    """
    if count < 2:
        yield from map(work, things)
        return
    # fork: children inherit the data already read, so none of it is pickled.
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("fork"), _begin, (work,))
    waiting: deque[Future[list[R]]] = deque()
    rest = iter(things)
    try:
        while batch := list(itertools.islice(rest, _BATCH)):
            waiting.append(pool.submit(_done, batch))
            if len(waiting) > _AHEAD * count:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool:
        raise RunFolderError(
            "a process that judged nodes was killed, most likely because memory ran out",
            "give it more memory, or fewer cores: taskset -c 0 gpuprov …",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_work: Callable[[Any], Any]


def _begin(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts and ends its children


def _done(batch: list[Any]) -> list[Any]:
    return [_work(thing) for thing in batch]
