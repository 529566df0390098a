"""Deferred signals: a signal is noted, and takes effect after an orderly stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType


@contextlib.contextmanager
def handled(handler: Callable[[int, FrameType | None], None], signals: Collection[int]) -> Iterator[None]:
    """`handler` handles these signals in this block. Python delivers them to the main thread alone: in any
    other nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


def heeded(*signals: int) -> list[int]:
    """Those of these signals that are not ignored: nohup means what it says."""
    return [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]


class Interrupts:
    """How often it was asked for, by a signal or by us: once means in order, more often means now."""

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        self.count += 1

    def noted(self) -> contextlib.AbstractContextManager[None]:
        """Note SIGINT, SIGTERM and SIGHUP in this block."""
        return handled(
            lambda _number, _frame: self.note(), [signal.SIGINT, signal.SIGTERM, *heeded(signal.SIGHUP)]
        )
