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
MOST = 16  # processes, each of which needs some tens of MB
_BATCH = 4  # things that a process is given at a time
# Batches for each process that may wait for whoever takes the results, and no more: they are large.
_AHEAD = 3


def processes(things: int) -> int:
    """How many processes are worth starting: none for what one has done in a second."""
    return min(MOST, len(os.sched_getaffinity(0))) if things >= 50 else 1


def in_order(work: Callable[[T], R], things: Iterable[T], count: int) -> Iterator[R]:
    """What `work` gives for each thing, in their order, from `count` processes.

    The results have to be what pickle knows; `work` need not. Raises what it raises, and RunFolderError when
    a process was killed.
    """
    if count < 2:
        yield from map(work, things)
        return
    # fork: they have what was read already, and nothing of it is sent.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is for the parent, which ends the others


def _done(batch: list[Any]) -> list[Any]:
    return [_work(thing) for thing in batch]
