"""Work of threads that goes the same way in each run of a test: done at once, or interrupted at one place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Baton:
    """Work in a thread of which at any moment only one runs: this one, or the one that started it."""

    def __init__(self) -> None:
        self._here, self._there = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def run(self, work: Callable[[], None]) -> None:
        """Begin it; returns when it calls `back`, or has ended."""

        def inside() -> None:
            try:
                work()
            except BaseException as error:
                self._error = error
            finally:
                self._thread = None
                self._here.release()

        self._thread = threading.Thread(target=inside)
        self._thread.start()
        self._here.acquire()

    def back(self) -> None:
        """In the work: let the one who started it go on until `end`."""
        self._here.release()
        self._there.acquire()

    def end(self) -> None:
        """Have the work end, if it has begun and has not ended. Raises its error."""
        if self._thread is not None:
            self._there.release()
            self._here.acquire()
        if self._error is not None:
            raise self._error


class AtOnce(Executor):
    """An executor whose work is done when it is submitted."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...
