"""Thread pool that runs one task per node, each with a timeout, and the SSH fan-out built on it.

The number of nodes in progress grows while that increases throughput, up to a limit. Waiting for a distant
node costs nothing here, so high latency needs many nodes in progress. Once our own processor is busy, or
doubling the number was not faster, more nodes would only wait in another place.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from provision import bug_file
from provision.remote.protocol import NodeError, hung
from provision.remote.ssh.connection import Route

START = 64
BUSY = 0.85  # of one core; Python's threads cannot use more than that
FASTER = 1.1  # smallest speedup that justifies an increase
SLOW = 4.0  # times the median duration: a slower node does not count against the limit


class Concurrency:
    """Adaptive concurrency: `now` is the allowed number of nodes in progress, `limit` its maximum."""

    def __init__(self, limit: int, start: int = START) -> None:
        self.limit = limit
        self.now = min(start, limit)
        self._before = self.now
        self._best = 0.0  # nodes per second at the previous number
        self._settled = self.now == limit

    def observe(self, seconds: float, done: int, cpu: float) -> None:
        """Adapt to a measured interval: its seconds, finished nodes, and CPU seconds of this process.

        Doubles the number while this process has CPU time left, and reverts if that was not faster."""
        if self._settled or seconds <= 0:
            return
        rate = done / seconds
        if self._best and rate < self._best * FASTER:
            self.now, self._settled = self._before, True
        elif cpu / seconds >= BUSY:
            self._settled = True
        else:
            self._before, self._best = self.now, rate
            self.now = min(self.limit, self.now * 2)


STACK = 512 * 1024  # bytes per thread: enough for OpenSSL, a sixteenth of the default
PAUSE = 0.1  # seconds between adjustments of the number of threads
AT_FIRST = 2.0  # assumed seconds per node until one has answered
AT_LEAST = 2.0  # seconds until a node can count as slow
LATE = 5.0  # seconds past its timeout until a thread (stuck in a name lookup) is abandoned

Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Result]):
    """The outcome for one node: a result or an error."""

    name: str
    result: Result | NodeError
    seconds: float


class HostPool(Generic[Result]):
    """Pool that runs `work(name)` for every name, at most about `seconds` each and `threads` at once.

    The number of threads adapts (Concurrency); a node much slower than the others does not count against it.
    Threads are daemons: one that never returns costs a thread, not the run. Results come from `gather`, in
    the caller's thread.
    """

    def __init__(
        self,
        names: Collection[str],
        work: Callable[[str], Result],
        *,
        seconds: float,
        threads: int,
    ) -> None:
        self._work = work
        self._seconds = seconds
        self._waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._done: queue.Queue[Done[Result]] = queue.Queue()
        self._busy: dict[str, float] = {}
        self._left: set[str] = set()
        self._concurrency = Concurrency(threads)
        self._running = 0  # threads in use
        self._wanted = self._concurrency.now
        self._lock = threading.Lock()
        self._usual: deque[float] = deque(maxlen=64)  # seconds that the latest nodes took
        self._since = (time.monotonic(), time.process_time())
        self._count = 0
        self._again = 0.0
        self.again(names)

    def again(self, names: Collection[str]) -> None:
        """Start work on these names, once all earlier work is done."""
        assert not self._left, "some are at work"  # noqa: S101
        for name in names:
            self._waiting.put(name)
        self._left = set(names)
        self._since, self._count, self._again = (time.monotonic(), time.process_time()), 0, 0.0
        self._adjust()

    @property
    def unfinished(self) -> int:
        """Return the number of nodes without a result."""
        return len(self._left)

    @property
    def awaited(self) -> list[str]:
        """Return the nodes in progress, longest first, or none while others are still queued."""
        if not self._waiting.empty():
            return []
        started = sorted(self._busy.copy().items(), key=lambda item: item[1])
        return [name for name, _ in started if name in self._left]

    def stop(self) -> None:
        """Clear the queue; nodes in progress are not waited for."""
        while True:
            try:
                self._waiting.get_nowait()
            except queue.Empty:
                return

    def gather(self, wait: float = 0.0) -> Iterator[Done[Result]]:
        """Yield the results so far; wait up to `wait` seconds for the first."""
        timeout = wait
        while self._left:
            try:
                done = self._done.get(timeout=timeout) if timeout else self._done.get_nowait()
            except queue.Empty:
                break
            timeout = 0.0
            if done.name in self._left:  # otherwise it was given up and finished late
                self._left.discard(done.name)
                self._usual.append(done.seconds)
                self._count += 1
                yield done
        yield from self._given_up()
        self._adjust()

    def _given_up(self) -> Iterator[Done[Result]]:
        now = time.monotonic()
        # A copy, which is atomic: while a list is built, finalizers may let other threads change it.
        for name, started in self._busy.copy().items():
            if now - started > self._seconds + LATE and name in self._left:
                self._left.discard(name)
                if self._busy.pop(name, None) is not None:
                    self._leave()
                yield Done(name, hung(f"no answer within {self._seconds:g} s"), now - started)

    def _adjust(self) -> None:
        """Start as many threads as Concurrency allows, plus one for each much slower node."""
        now = time.monotonic()
        if now < self._again:
            return
        self._again = now + PAUSE
        if self._count >= self._concurrency.now:
            cpu = time.process_time()
            self._concurrency.observe(now - self._since[0], self._count, cpu - self._since[1])
            self._since, self._count = (now, cpu), 0
        self._wanted = min(self._concurrency.limit, self._concurrency.now + self._slow())
        while not self._waiting.empty() and self._enter():
            self._start_thread()

    def _slow(self) -> int:
        usual = statistics.median(self._usual) if self._usual else AT_FIRST
        before = time.monotonic() - max(AT_LEAST, SLOW * usual)
        return sum(started < before for started in list(self._busy.values()))

    def _enter(self) -> bool:
        with self._lock:
            if self._running >= min(self._wanted, len(self._left)):
                return False
            self._running += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1

    def _too_many(self) -> bool:
        """Return whether this thread is superfluous and must end; if so, stop counting it."""
        with self._lock:
            if self._running <= self._wanted:
                return False
            self._running -= 1
            return True

    def _start_thread(self) -> None:
        before = threading.stack_size(STACK)
        try:
            threading.Thread(target=self._serve, daemon=True).start()
        finally:
            threading.stack_size(before)

    def _serve(self) -> None:
        while not self._too_many():
            try:
                name = self._waiting.get_nowait()
            except queue.Empty:
                self._leave()
                return
            started = time.monotonic()
            self._busy[name] = started
            result: Result | NodeError
            try:
                result = self._work(name)
            except NodeError as error:
                result = error
            except Exception as error:  # an error of one node must not affect others
                result = NodeError("garbage", f"{type(error).__name__}: {error}", bug_file.report(error))
            if self._busy.pop(name, None) is None:
                return  # given up: another thread has taken its place
            self._done.put(Done(name, result, time.monotonic() - started))


class SshThreads(HostPool[bytes]):
    """Pool that runs each node's program (ASCII text) over SSH.
    `persistent`: number of connections that stay open until `close`, for `ask_again`."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        programs: Mapping[str, str],
        timeout: float,
        connections: int,
        persistent: int = 0,
    ) -> None:
        from provision.remote.ssh.client import Ssh

        self._ssh = ssh = Ssh(persistent=persistent)
        self._programs = programs

        def ask(name: str) -> bytes:
            return ssh.ask(routes[name], self._programs[name].encode("ascii"), timeout)

        super().__init__(programs, ask, seconds=timeout, threads=connections)

    def ask_again(self, programs: Mapping[str, str]) -> None:
        """Run another program on each node that has one, once all have answered."""
        self._programs = programs
        self._ssh.forget_dead_jump_hosts()
        self.again(programs)

    def gather(self, wait: float = 0.0) -> Iterator[Done[bytes]]:
        """Yield the results so far; wait up to `wait` seconds for the first."""
        yield from super().gather(wait)
        self._ssh.expire()

    def close(self) -> None:
        """Start no further work, without waiting for nodes in progress."""
        self.stop()
        self._ssh.close()
