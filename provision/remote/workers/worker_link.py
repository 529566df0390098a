"""The connection to one worker: over SSH, with its host key checked as a node's is, and a limit on every
wait."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from provision.remote.protocol import NodeError, one_line
from provision.remote.ssh.execute import Stream
from provision.remote.workers import PYTHON, Worker, worker_stream

CONNECT = 60.0  # seconds to be logged in there, and to hear who it is
END = 12.0  # seconds a worker has to end its Ansible in order
_POLL = 0.5  # seconds between looks at the clock
_CHUNK = 1 << 16
_NOISE = 64 * 1024  # bytes of login banners before a worker's first line
_KEPT_ERRORS = 8 * 1024
_LOOK = "look at that machine (memory, its log)"


class Session:
    """One share done by one worker: what is said to it, and line by line what it says.

    `stopping` is asked all the time; once it is true the worker is told to end, and has END seconds for it.
    """

    def __init__(self, worker: Worker, channel: Stream, stopping: Callable[[], bool]) -> None:
        self._worker = worker
        self._channel = channel
        self._stopping = stopping
        self._said = bytearray()
        self._searched = 0
        self._errors = bytearray()
        self._beaten: float | None = None  # no sign of life goes before the work
        self._end: float | None = None
        self._channel.settimeout(_POLL)

    def greet(self) -> None:
        """Hear who the worker is. Raises NodeError unless it is as we are."""
        deadline, noise = time.monotonic() + CONNECT, 0
        while noise < _NOISE:
            line = self._line(_NOISE, deadline)
            if not line:
                raise self._nobody()
            noise += len(line)
            try:
                theirs = worker_stream.hello(line)
            except worker_stream.BadStreamError as error:
                raise self.bad(str(error)) from None
            if theirs is not None:
                what, fix = worker_stream.differences(theirs, self._worker.python)
                if what:
                    raise self._error("python", what, fix)
                return
        raise self.bad("it prints something else: the account's shell or start files do")

    def send(self, data: bytes) -> None:
        """Raises NodeError when it is not taken."""
        taken = time.monotonic()
        view = memoryview(data)
        while view:
            try:
                view = view[self._channel.send(bytes(view[:_CHUNK])) :]
                taken = time.monotonic()
            except TimeoutError:
                if time.monotonic() - taken > worker_stream.SILENCE or self._over():
                    raise self._error("hung", "it does not take its work", _LOOK) from None
            except (OSError, EOFError):
                raise self._nobody() from None
        self._beaten = taken

    def message(self, hosts: Collection[str]) -> dict[str, Any]:
        """The next thing it says, about `hosts` alone. Raises NodeError when there is none, and when it may
        not say that."""
        while True:
            line = self._line(worker_stream.LINE_LIMIT)
            if not line:
                raise self._nobody()
            try:
                said = worker_stream.message(line, hosts)
            except worker_stream.BadStreamError as error:
                raise self.bad(str(error)) from None
            if said.get("event") != "keepalive":
                return said

    def bad(self, what: str) -> NodeError:
        """The error for what no worker says: nothing more of it is heard."""
        fix = "its further output is ignored; check that this is the right machine"
        return self._error("garbage", f"its answer is not understood: {what}", fix)

    def failed(self, what: str) -> NodeError:
        """The error for work that the worker itself says it could not do."""
        return self._error("ansible", what, _LOOK)

    def _line(self, limit: int, deadline: float | None = None) -> bytes:
        """One line with its end; empty when the connection has ended. Raises NodeError."""
        heard = time.monotonic()
        while (end := self._said.find(b"\n", self._searched)) < 0:
            self._searched = len(self._said)
            if self._searched > limit:
                raise self.bad(f"a line of more than {limit // 1024} KiB")
            self._beat()
            if self._over():
                raise self._error("hung", "it did not stop in time", _LOOK)
            now = time.monotonic()
            if now - heard > worker_stream.SILENCE or (deadline is not None and now > deadline):
                raise self._error("hung", f"it sent nothing for {now - heard:.0f} s", _LOOK)
            try:
                data = self._channel.recv(_CHUNK)
            except TimeoutError:
                continue
            except (OSError, EOFError):
                data = b""
            self._hear_errors()
            if not data:
                return b""
            heard = time.monotonic()
            self._said += data
        line = bytes(self._said[: end + 1])
        del self._said[: end + 1]
        self._searched = 0
        self._over()
        self._beat()
        return line

    def _over(self) -> bool:
        """Whether it was stopped, and had its time for it."""
        if self._end is None and self._stopping():
            self._end = time.monotonic() + END
            with contextlib.suppress(OSError, EOFError):
                self._channel.shutdown_write()
        return self._end is not None and time.monotonic() > self._end

    def _beat(self) -> None:
        """A sign of life: a worker that hears none ends its Ansible."""
        now = time.monotonic()
        if self._end is None and self._beaten is not None and now - self._beaten > worker_stream.BEAT:
            self._beaten = now
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                self._channel.send(b"\n")

    def _hear_errors(self) -> None:
        while self._channel.recv_stderr_ready():
            said = self._channel.recv_stderr(_CHUNK)
            if not said:
                return
            self._errors = (self._errors + said)[-_KEPT_ERRORS:]

    def _nobody(self) -> NodeError:
        """Why the connection ended before its time, from what was said on standard error."""
        self._hear_errors()
        lines = [line for line in self._errors.decode("utf-8", "replace").splitlines() if line.strip()]
        last = one_line(lines[-1], 200) if lines else ""
        python = self._worker.python
        if "No module named" in last:
            fix = f"install gpuprov {worker_stream.versions()['gpuprov']} there, or correct {PYTHON}"
            return self._error("python", f"its {python} has no gpuprov ({last})", fix)
        if any("not found" in line or "No such file" in line for line in lines[-1:]) and python in last:
            return self._error("python", f"there is no {python}", f"set {PYTHON} to one that has gpuprov")
        return self._error("cut", f"the connection ended too early{': ' + last if last else ''}", _LOOK)

    def _error(self, kind: str, what: str, fix: str) -> NodeError:
        return NodeError(kind, f"worker {self._worker.name}: {what}", fix)


@contextlib.contextmanager
def opened(worker: Worker, stopping: Callable[[], bool]) -> Iterator[Session]:
    """A session with a worker that is as we are. Raises NodeError, which names the worker."""
    from provision.remote.ssh.client import Ssh

    ssh = Ssh()
    try:
        with contextlib.ExitStack() as stack:
            try:
                channel = stack.enter_context(ssh.session(worker.route, command(worker.python), CONNECT))
            except NodeError as error:
                raise NodeError(error.kind, f"worker {worker.name}: {error.what}", error.fix) from None
            session = Session(worker, channel, stopping)
            session.greet()
            yield session
    finally:
        ssh.close()


def command(python: str) -> str:
    """What is run on a worker. (-P: what lies in its home folder is not imported.)"""
    return f"exec {shlex.quote(python)} -P -m provision.remote.workers.worker_entry"
