"""Threads in virtual time: the waiting code is real, and an hour of waiting takes no time.

One thread holds the baton while it computes. A thread that waits (for a moment, a lock, another thread, an
answer) passes it on; when no thread can continue, the clock jumps to the next event. So the same seed gives
the same run, and the CPU spent between two waits is that of the code under test only.

`instead_of` returns replacements of the modules time, threading and queue. They contain only what is in use:
code that starts to wait in another way breaks the run instead of silently waiting in real time.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any


class StuckError(Exception):
    """All threads wait, and no event is scheduled."""


class _Task:
    """A participating thread. `turn` is released when it receives the baton."""

    def __init__(self) -> None:
        self.turn = threading.Semaphore(0)


class World:
    """The clock, the scheduled events and the baton. `now`: seconds since 1970.

    `cpu`: CPU seconds spent by the code under test, excluding the simulation."""

    def __init__(self) -> None:
        self.began = self.now = float(int(time.time()))
        self.cpu = 0.0
        self._since = time.process_time()
        self._number = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ready: deque[_Task] = deque()
        self._main = self._current = _Task()
        self._broken: BaseException | None = None  # the error that ends the run, raised in the first thread

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Schedule a call at this time, or now if that is past."""
        heapq.heappush(self._events, (when, next(self._number), call))

    # -- CPU accounting

    def leave(self) -> None:
        """Stop counting CPU: the code under test calls the simulation."""
        self.cpu += time.process_time() - self._since

    def back(self) -> None:
        """Resume counting CPU: the code under test continues."""
        self._since = time.process_time()

    # -- the baton

    def begin(self, body: Callable[[], None]) -> None:
        """Run `body` in a new thread as soon as the current one waits."""
        task = _Task()

        def run() -> None:
            task.turn.acquire()
            self._current = task
            self.back()
            try:
                body()
            finally:
                self.leave()
                self._next().turn.release()

        threading.Thread(target=run, daemon=True).start()
        self._ready.append(task)

    def wake(self, task: _Task) -> None:
        self._ready.append(task)

    def pause(self) -> None:
        """Pass the baton on and return when another thread has woken this one."""
        task = self._current
        following = self._next()
        if following is not task:
            following.turn.release()
            task.turn.acquire()
            self._current = task
        if self._broken is not None:
            raise self._broken

    def _next(self) -> _Task:
        while not self._ready:
            try:
                if not self._events:
                    raise StuckError("everybody waits, and nothing will happen any more")
                when, _, call = heapq.heappop(self._events)
                self.now = max(self.now, when)
                call()
            except Exception as error:  # from any thread; the first one raises it
                self._broken = error
                return self._main
        return self._ready.popleft()

    @property
    def current(self) -> _Task:
        return self._current

    def pass_until(self, when: float) -> None:
        """Let time pass; for code that is not under test."""
        Signal(self).wait(when)


class Signal:
    """A condition that threads wait for; `send` wakes all of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[_Task] = []

    def send(self) -> None:
        for task in self._waiting:
            self._world.wake(task)
        self._waiting.clear()

    def wait(self, until: float | None = None) -> None:
        """Wait until the signal is sent, or until this moment."""
        world, task = self._world, self._world.current
        waiting = self._waiting
        waiting.append(task)
        if until is not None:
            over = False

            def late() -> None:
                if not over and task in waiting:
                    waiting.remove(task)
                    world.wake(task)

            world.at(until, late)
            world.pause()
            over = True
        else:
            world.pause()


def instead_of(world: World) -> dict[str, Any]:
    """Return the replacements of these modules for the code under test."""

    def sleep(seconds: float) -> None:
        world.leave()
        world.pass_until(world.now + seconds)
        world.back()

    def now() -> float:
        return world.now

    return {
        "time": SimpleNamespace(time=now, monotonic=now, sleep=sleep),
        "threading": SimpleNamespace(Lock=lambda: _Lock(world), Thread=lambda **how: _Thread(world, **how)),
        "queue": SimpleNamespace(SimpleQueue=lambda: _Queue(world), Empty=queue.Empty),
        "ThreadPoolExecutor": lambda _width: _Pool(world),
    }


class _Lock:
    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False
        self._free = Signal(world)

    def __enter__(self) -> None:
        while self._held:
            self._world.leave()
            self._free.wait()
            self._world.back()
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        self._free.send()


class _Thread:
    def __init__(
        self,
        world: World,
        *,
        target: Callable[..., None],
        args: tuple[Any, ...] = (),
        name: str = "",  # noqa: ARG002 - as threading has it
        daemon: bool = True,  # noqa: ARG002
    ) -> None:
        self._world = world
        self._target, self._args = target, args
        self._over = False
        self._end = Signal(world)

    def start(self) -> None:
        self._world.leave()
        self._world.begin(self._run)
        self._world.back()

    def _run(self) -> None:
        try:
            self._target(*self._args)
        finally:
            self._over = True
            self._end.send()

    def join(self, timeout: float | None = None) -> None:
        if not self._over:
            self._world.leave()
            self._end.wait(None if timeout is None else self._world.now + timeout)
            self._world.back()


class _Queue:
    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._filled = Signal(world)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._filled.send()

    def get(self, timeout: float) -> Any:
        if not self._items:
            self._world.leave()
            self._filled.wait(self._world.now + timeout)
            self._world.back()
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


class _Pool:
    """A ThreadPoolExecutor with a thread for each item."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        every = list(items)
        results: dict[int, Any] = {}

        def one(number: int) -> None:
            results[number] = function(every[number])

        threads = [_Thread(self._world, target=one, args=(number,)) for number in range(len(every))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return iter([results[number] for number in range(len(every))])
