"""Threads in virtual time: the code that waits is real, and an hour of waiting takes no time.

One thread holds the baton while it computes. Whoever waits (for a moment, a lock, another thread, an answer)
hands it on; when nobody can go on, the clock jumps to the next thing that happens. So the same seed gives the
same run, and the CPU that is spent between two waits is that of the code under test alone.

`instead_of` gives what stands for the modules time, threading and queue. They have no more than is here: code
that begins to wait in another way breaks the run, and does not wait in true time unnoticed.
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
    """Everybody waits, and nothing will happen any more."""


class _Task:
    """A thread that takes part. `turn` is released when it gets the baton."""

    def __init__(self) -> None:
        self.turn = threading.Semaphore(0)


class World:
    """The clock, what will happen, and whose turn it is. `now` in seconds since 1970.

    `cpu`: seconds of CPU that the code under test has spent; what its surroundings spend is not in it."""

    def __init__(self) -> None:
        self.began = self.now = float(int(time.time()))
        self.cpu = 0.0
        self._since = time.process_time()
        self._number = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ready: deque[_Task] = deque()
        self._main = self._current = _Task()
        self._broken: BaseException | None = None  # what ends the run, in the first thread

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Have this happen then, at the earliest now."""
        heapq.heappush(self._events, (when, next(self._number), call))

    # -- who computes

    def leave(self) -> None:
        """The code under test calls its surroundings."""
        self.cpu += time.process_time() - self._since

    def back(self) -> None:
        """It goes on."""
        self._since = time.process_time()

    # -- whose turn it is

    def begin(self, body: Callable[[], None]) -> None:
        """Have `body` run in a thread of its own, once this one waits."""
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
        """Hand the baton on, and go on when somebody has woken this thread."""
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
            except Exception as error:  # in whatever thread: the first one says it
                self._broken = error
                return self._main
        return self._ready.popleft()

    @property
    def current(self) -> _Task:
        return self._current

    def pass_until(self, when: float) -> None:
        """Let time pass, called by what is not under test."""
        Signal(self).wait(when)


class Signal:
    """What threads wait for: `send` wakes all of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[_Task] = []

    def send(self) -> None:
        for task in self._waiting:
            self._world.wake(task)
        self._waiting.clear()

    def wait(self, until: float | None = None) -> None:
        """Until it is sent, or until this moment."""
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
    """What the code under test finds in place of these modules."""

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
    """A ThreadPoolExecutor, as wide as what it is given."""

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
