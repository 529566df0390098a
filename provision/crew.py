"""A crew of threads that does one thing per node, each within its time, whatever hangs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from provision.node_error import NodeError, hung

STACK = 512 * 1024  # bytes per thread: enough for OpenSSL, a sixteenth of the usual
LATE = 5.0  # seconds over time after which a thread (stuck in a name lookup) is left behind

Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Result]):
    """What became of one node: a result, or why there is none."""

    name: str
    result: Result | NodeError
    seconds: float


class Crew(Generic[Result]):
    """Runs `work(name)` for every name, `threads` at a time, each about `seconds` long at most.

    Threads are daemons: one that never returns costs a thread, not the run. Results come from `gather`, in
    the caller's thread.
    """

    def __init__(
        self, names: Collection[str], work: Callable[[str], Result], *, seconds: float, threads: int
    ) -> None:
        self._work = work
        self._seconds = seconds
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in names:
            self._waiting.put(name)
        self._done: queue.SimpleQueue[Done[Result]] = queue.SimpleQueue()
        self._busy: dict[str, float] = {}
        self._left: set[str] = set(names)
        for _ in range(min(threads, len(names))):
            self._hire()

    @property
    def unfinished(self) -> int:
        """How many nodes have no result yet."""
        return len(self._left)

    def stop(self) -> None:
        """Start nothing more; who is at work is not waited for."""
        while True:
            try:
                self._waiting.get_nowait()
            except queue.Empty:
                return

    def gather(self, wait: float = 0.0) -> Iterator[Done[Result]]:
        """What is done by now; waits up to `wait` seconds for the first."""
        timeout = wait
        while self._left:
            try:
                done = self._done.get(timeout=timeout) if timeout else self._done.get_nowait()
            except queue.Empty:
                break
            timeout = 0.0
            if done.name in self._left:  # or it was given up, and came after all
                self._left.discard(done.name)
                yield done
        yield from self._given_up()

    def _given_up(self) -> Iterator[Done[Result]]:
        now = time.monotonic()
        for name, started in list(self._busy.items()):
            if now - started > self._seconds + LATE and name in self._left:
                self._left.discard(name)
                self._busy.pop(name, None)
                self._hire()
                yield Done(name, hung(f"no answer within {self._seconds:g} s"), now - started)

    def _hire(self) -> None:
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=self._labour, daemon=True).start()
        finally:
            threading.stack_size(before)

    def _labour(self) -> None:
        while True:
            try:
                name = self._waiting.get_nowait()
            except queue.Empty:
                return
            started = time.monotonic()
            self._busy[name] = started
            result: Result | NodeError
            try:
                result = self._work(name)
            except NodeError as error:
                result = error
            except Exception as error:  # one node's trouble never becomes another's
                result = NodeError(
                    "garbage", f"{type(error).__name__}: {error}", "please report this: it is a bug"
                )
            if self._busy.pop(name, None) is None:
                return  # given up; somebody else was hired
            self._done.put(Done(name, result, time.monotonic() - started))
