"""Signal handling of a selftest: a signal ends it as Ctrl-C does, but never during cleanup."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from types import FrameType

from provision.node.burnin.processes import descendants, stat_of
from provision.remote.ansible import runner

_GONE = 5.0  # seconds for killed processes to disappear
_TOGETHER = 1.0  # seconds: systemd ends a session with SIGTERM immediately followed by SIGHUP
_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def as_interrupts() -> contextlib.AbstractContextManager[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt, so that no provocation outlives the selftest.

    Two signals in quick succession count as one: the second would interrupt the cleanup. An ignored signal
    stays ignored, for nohup."""
    last = -_TOGETHER

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _TOGETHER:
            return
        last = now
        raise KeyboardInterrupt

    return runner.handled(stop, runner.heeded(*_ALL))


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Deliver signals that arrive in this block at its end.

    Child processes still get theirs: they inherit a blocked or ignored signal, but not a Python handler."""
    came: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    try:
        with runner.handled(keep, _ALL):
            yield
    finally:
        if came:
            signal.raise_signal(came[0])


def running() -> set[int]:
    """Return the live descendants of this process."""
    below = descendants(os.getpid())  # type: ignore[no-untyped-call]
    states = {pid: stat_of(pid) for pid in below}  # type: ignore[no-untyped-call]
    return {pid for pid, stat in states.items() if stat and stat[1] not in "ZX"}


def end_others(known: Collection[int]) -> None:
    """Kill all descendants started since `known` was taken, such as one interrupted while starting."""
    until = time.monotonic() + _GONE
    while (others := running() - set(known)) and time.monotonic() < until:
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
