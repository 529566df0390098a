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

_GONE = 5.0  # seconds for what was killed to be gone
_TOGETHER = 1.0  # seconds: systemd ends a session with SIGTERM and SIGHUP, one right after the other
_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def as_interrupts() -> contextlib.AbstractContextManager[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt: what was provoked must not outlive the selftest.

    Two that come together are one: the second would raise where the first is being tidied up after. One that
    is ignored stays ignored: nohup means what it says.
    """
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
    """A signal that comes meanwhile is delivered at the end. Programs started here get theirs as ever: a
    handler of Python's does not pass to them, as a blocked or ignored signal would."""
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
    """The processes below this one."""
    below = descendants(os.getpid())  # type: ignore[no-untyped-call]
    states = {pid: stat_of(pid) for pid in below}  # type: ignore[no-untyped-call]
    return {pid for pid, stat in states.items() if stat and stat[1] not in "ZX"}


def end_others(known: Collection[int]) -> None:
    """Kill what was started since `known` was running: a signal that comes while a program is being started
    leaves it running, with nobody who knows it."""
    until = time.monotonic() + _GONE
    while (others := running() - set(known)) and time.monotonic() < until:
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
