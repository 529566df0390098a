"""What ends a selftest from outside: it ends as by Ctrl-C, and never in the middle of tidying up."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

_ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def as_interrupts() -> Iterator[None]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt: what was provoked must not outlive the selftest."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in _ALL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """A signal that comes meanwhile is delivered at the end. Programs started here get theirs as ever: a
    handler of Python's does not pass to them, as a blocked or ignored signal would."""
    came: list[int] = []

    def keep(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, keep) for number in _ALL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
