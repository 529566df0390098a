"""Deferred signals: a signal is noted, and takes effect after an orderly stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupts:
    """How often it was asked for, by a signal or by us: once means in order, more often means now."""

    def __init__(self) -> None:
        self.count = 0

    def note(self) -> None:
        self.count += 1

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note SIGINT, SIGTERM and SIGHUP in this block. Python hears them in the main thread alone: in any
        other nothing is changed."""

        def note(_number: int, _frame: FrameType | None) -> None:
            self.note()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        chosen = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup means what it says
            chosen.append(signal.SIGHUP)
        before = {number: signal.signal(number, note) for number in chosen}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
