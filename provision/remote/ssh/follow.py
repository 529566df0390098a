"""Reader of programs that keep printing answers on many nodes, with one connection per node.

paramiko runs one thread per connection, which queues the connection when data arrives; a single thread reads
from all of them. Logins, the expensive part, run in a limited number of threads, which limits the load when a
whole rack comes back. A lost node is retried after random pauses, so that the retries do not coincide.

Nodes are not trusted: their output is limited, and a node that prints endlessly is disconnected.
"""

from __future__ import annotations

import contextlib
import heapq
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from provision import bug_file
from provision.remote.protocol import ANSWER_LIMIT, AnswerError, Frames, NodeError, unreachable
from provision.remote.ssh.client import Ssh
from provision.remote.ssh.connection import Route
from provision.remote.ssh.followed import Followed

LOGINS = 64  # concurrent logins
SILENT = 45.0  # seconds without an answer or heartbeat until a connection is given up
UNANSWERED = 180.0  # the same without an answer; nodes repeat even an unchanged one every minute
LOOK = 1.0  # seconds between checks for due logins and silent nodes
STEP = 2.0  # maximum seconds of silence per check, since this process may have been suspended
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a retry, doubled each time
SETTLED = 60.0  # seconds until a connection counts as stable, which resets the pause
# Seconds before a retry after a failure that a person must fix. By default pam_faillock locks an account
# after three failures within 15 minutes; the two pauses between three attempts take longer, even halved.
REFUSED_PAUSE = 1000.0
REFUSED = ("auth", "sudo", "host key", "too large")
LARGEST = 512 * 1024  # bytes of one answer
PER_MINUTE = ANSWER_LIMIT  # bytes that one node may print
PIECE = 4096  # minimum bytes charged per read, since many small reads cost as much as a large one
JUMPS_AGAIN = 30.0  # seconds until a dead jump host is tried again

Take = Callable[[str, "bytes | NodeError"], None]


@dataclass
class _Line:
    """An open connection and the recent output of its node."""

    name: str
    connection: Followed
    began: float
    looked: float
    frames: Frames = field(default_factory=lambda: Frames(LARGEST))
    silent: float = 0.0
    unanswered: float = 0.0
    allowance: float = PER_MINUTE

    def newest(self, data: bytes, size: int) -> bytes:
        """Return the newest complete answer or b""; raise NodeError if the node prints too much."""
        now = time.monotonic()
        self.allowance = min(PER_MINUTE, self.allowance + (now - self.looked) / 60 * PER_MINUTE)
        self.allowance -= max(size, PIECE)
        self.looked = now
        fix = "log in by hand: what on this node prints that?"
        if self.allowance < 0:
            raise NodeError("too large", f"it printed more than {PER_MINUTE >> 20} MiB within a minute", fix)
        try:
            answer, alive = self.frames.newest(data)
        except AnswerError as error:
            raise NodeError("too large", str(error), fix) from None
        if alive:
            self.silent = 0.0
        if answer:
            self.unanswered = 0.0
        return answer


class Follow(contextlib.AbstractContextManager["Follow"]):
    """Runner of `program` (ASCII) on each node of `routes`, which reconnects lost nodes until `close`.

    `take(node, …)` receives each answer (framed; only the newest if several are pending), or a NodeError if
    the node is unreachable, its connection is lost, or its output is malformed. It runs in the reader's
    thread and blocks all reading meanwhile. `timeout`: seconds for a login and the first answer."""

    def __init__(
        self, routes: Mapping[str, Route], program: str, take: Take, *, timeout: float, logins: int = LOGINS
    ) -> None:
        self._routes = routes
        self._program = program.encode("ascii")
        self._take = take
        self._timeout = timeout
        self._ssh = Ssh()
        self._lines: dict[str, _Line] = {}
        self._failures: dict[str, int] = {}
        self._due = [(0.0, number, name) for number, name in enumerate(routes)]  # a heap
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = False
        self._broken: Exception | None = None
        self._handover = threading.Lock()  # held to pass a new connection to the reader, unless closed
        self._jumps_tried = time.monotonic()
        self._workers = [
            threading.Thread(target=self._serve, daemon=True) for _ in range(min(logins, len(routes)))
        ]
        self._reader = threading.Thread(target=self._run, daemon=True)
        for thread in (*self._workers, self._reader):
            thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Raise RuntimeError if a bug has ended the reader, after which stale answers would look fresh."""
        if self._broken is not None:
            raise RuntimeError("the reader of health results has ended") from self._broken

    def close(self) -> None:
        """End all connections, and with them the programs, without waiting for logins."""
        with self._handover:
            self._closed = True
        self._events.put(lambda: None)
        for _ in self._workers:
            self._work.put(None)
        if threading.current_thread() is not self._reader:
            self._reader.join()
        for line in self._lines.values():
            line.connection.wake()
        for line in self._lines.values():
            line.connection.close()
        self._ssh.close()

    def _serve(self) -> None:
        """Run slow work: logins, and the closing of connections."""
        while (work := self._work.get()) is not None:
            work()

    def _log_in(self, name: str) -> None:
        if self._closed:
            return
        found: Followed | NodeError
        try:
            self._forget_dead_jump_hosts()
            found = self._ssh.follow(self._routes[name], self._program, self._timeout)
        except NodeError as error:
            found = error
        except Exception as error:  # an error of one node must not affect others
            what = f"{type(error).__name__}: {error}"
            found = NodeError("garbage", what, bug_file.report(error))
        with self._handover:
            if not self._closed:
                self._events.put(lambda: self._logged_in(name, found))
                return
        if isinstance(found, Followed):
            found.close()

    def _forget_dead_jump_hosts(self) -> None:
        if time.monotonic() - self._jumps_tried > JUMPS_AGAIN:
            self._jumps_tried = time.monotonic()
            self._ssh.forget_dead_jump_hosts()

    # Everything below runs in the reader's thread.

    def _run(self) -> None:
        try:
            self._read_all()
        except Exception as error:
            self._broken = error

    def _read_all(self) -> None:
        looked, look = time.monotonic(), 0.0
        while not self._closed:
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=max(0.0, look - time.monotonic()))()
            now = time.monotonic()
            if now >= look:
                self._look(now, min(STEP, now - looked))
                looked, look = now, now + LOOK

    def _look(self, now: float, passed: float) -> None:
        """Start logins that are due, and drop connections that have been silent too long."""
        self._ssh.expire()
        while self._due and self._due[0][0] <= now:
            name = heapq.heappop(self._due)[2]
            self._work.put(lambda name=name: self._log_in(name))  # type: ignore[misc]
        for line in list(self._lines.values()):
            line.silent += passed
            line.unanswered += passed
            # A node is not silent if this machine is too busy to read its output.
            if line.silent > SILENT and not line.connection.waiting:
                cut = f"nothing came from {line.connection.address} for {SILENT:.0f} s"
                self._lose(line, unreachable(cut))
            elif line.unanswered > UNANSWERED:
                what = f"it sent signs of life for {UNANSWERED:.0f} s, and no answer"
                self._lose(line, NodeError("garbage", what, "log in and check its python3"))

    def _logged_in(self, name: str, found: Followed | NodeError) -> None:
        if isinstance(found, NodeError):
            self._fail(name, found)
            return
        now = time.monotonic()
        line = self._lines[name] = _Line(name, found, now, now)
        first, found.first = found.first, b""
        self._understand(line, first, len(first))
        if name in self._lines:
            found.begin(lambda: self._events.put(lambda: self._read(line)))

    def _read(self, line: _Line) -> None:
        if self._lines.get(line.name) is not line:
            return  # given up meanwhile
        try:
            data, size = line.connection.read()
        except NodeError as error:
            self._lose(line, error)
            return
        if size:
            self._understand(line, data, size)

    def _understand(self, line: _Line, data: bytes, size: int) -> None:
        try:
            answer = line.newest(data, size)
        except NodeError as error:
            self._lose(line, error)
            return
        if answer:
            self._take(line.name, answer)

    def _lose(self, line: _Line, error: NodeError) -> None:
        del self._lines[line.name]
        line.connection.wake()
        self._work.put(line.connection.close)
        if time.monotonic() - line.began > SETTLED:
            self._failures.pop(line.name, None)
        self._fail(line.name, error)

    def _fail(self, name: str, error: NodeError) -> None:
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 30))
        pause = REFUSED_PAUSE if error.kind in REFUSED else longest
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 - not for secrets
        heapq.heappush(self._due, (time.monotonic() + pause, failures, name))
        self._take(name, error)
