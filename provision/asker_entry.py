"""Entry point of an SSH worker process; each one handles a part of the nodes.

The first process imports all that is needed, once, then makes the others of itself while it has no thread,
and tells of each that ended how it did: `NUMBER WORDS` on its standard output. Nothing is left when gpuprov
is gone, however it went: then standard input ends, which ends all of them, and each sees its own socket
closed. They are started with SIGINT blocked: what Ctrl-C means is gpuprov's to decide.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

from provision import asker_frames
from provision.asker_frames import Awaited, Broken, Failed, Frames, Part, Printed, Said
from provision.node_error import NodeError
from provision.ssh import Ssh
from provision.ssh_threads import Threads

BEAT = 5.0  # seconds after which a process says something, if only that it is there
KEPT = 32  # results that wait for gpuprov to take them: then no further node is asked
_POLL = 1.0  # seconds between looks at the clock


class GoneError(Exception):
    """gpuprov is there no more, or wants nothing more of us."""


def main() -> None:
    """One process for each socket (its number, an argument); returns when all have ended."""
    Ssh().close()  # imports paramiko
    sockets = [int(word) for word in sys.argv[2:]]
    gc.collect()
    gc.freeze()  # else the first collection in each process would make its memory its own
    numbers: dict[int, int] = {}
    for number, own in enumerate(sockets):
        try:
            pid = os.fork()
        except OSError as error:
            _tell(number, f"could not be started: {error.strerror}")
            continue
        if pid == 0:
            _become_asker(own, sockets)
        numbers[pid] = number
    for each in sockets:
        os.close(each)
    threading.Thread(target=_end_with_gpuprov, args=(numbers,), daemon=True).start()
    while numbers:
        pid, status = os.wait()
        _tell(numbers.pop(pid), _words(os.waitstatus_to_exitcode(status)))


def _end_with_gpuprov(pids: dict[int, int]) -> None:
    while os.read(0, 1024):
        pass
    for pid in list(pids):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _tell(number: int, words: str) -> None:
    with contextlib.suppress(OSError):
        os.write(1, f"{number} {words}\n".encode())


def _words(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _become_asker(own: int, sockets: Sequence[int]) -> None:
    """Do a part, in a process of its own; never returns."""
    code = 70
    try:
        for other in sockets:
            if other != own:
                os.close(other)
        asker = Asker(socket.socket(fileno=own))
        try:
            asker.run()
            code = 0
        except GoneError:
            code = 0
        except Exception as error:
            asker.say(Broken(f"{type(error).__name__}: {error}"))
    finally:
        os._exit(code)  # threads that never return are left behind


class Asker:
    """One part of the nodes, told over a socket."""

    def __init__(self, gpuprov: socket.socket) -> None:
        self._gpuprov = gpuprov
        self._threads: Threads | None = None
        self._beaten = time.monotonic()
        self._awaited: tuple[str, ...] = ()

    def run(self) -> None:
        part = self._part()
        self._gpuprov.setblocking(False)
        programs = {node: part.programs[number] for node, number in part.program_of.items()}
        self._threads = threads = Threads(part.routes, programs, part.timeout, part.connections, keep=KEPT)
        while threads.unfinished:
            for done in threads.gather(wait=_POLL):
                if isinstance(done.result, NodeError):
                    error = done.result
                    self.say(Failed(done.name, error.kind, error.what, error.fix, done.seconds))
                else:
                    self.say(Printed(done.name, done.result, done.seconds))
            self._live()

    def _part(self) -> Part:
        frames = Frames()
        while True:
            data = self._gpuprov.recv(1 << 18)
            if not data:
                raise GoneError
            for said in frames.feed(data):
                assert isinstance(said, Part)  # noqa: S101 - nobody says anything else to us
                return said

    def _live(self) -> None:
        """See that gpuprov is there, and let it know whom we wait for."""
        if self._ready(select.POLLIN, 0.0) and not self._gpuprov.recv(1024):
            raise GoneError
        now = time.monotonic()
        awaited = tuple(self._threads.awaited) if self._threads else ()
        if now - self._beaten > (_POLL if awaited != self._awaited else BEAT):
            self._awaited, self._beaten = awaited, now
            self.say(Awaited(awaited))

    def say(self, said: Said) -> None:
        """All of it is taken when this returns; nodes' deadlines are kept meanwhile. Raises GoneError."""
        left = memoryview(asker_frames.packed(said))
        while left:
            if not self._ready(select.POLLOUT, _POLL):
                if self._threads is not None:
                    self._threads.expire()
                continue
            try:
                left = left[self._gpuprov.send(left) :]
            except BlockingIOError:
                continue
            except OSError:
                raise GoneError from None

    def _ready(self, event: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._gpuprov, event)
        return bool(poll.poll(seconds * 1000))
