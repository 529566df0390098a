"""SSH fan-out over several worker processes, because Python's threads use no more than one core.

They are not made of this process by fork: it may have threads (a progress bar, those of workers), whose locks
would be copied as they happen to be held, and it holds the fleet, which would be copied bit by bit. One new
interpreter is started instead, which imports once and then makes the others of itself (asker_entry.py). What
they are to do goes through sockets, so that no secret is in an argument or in the environment; what comes
back is taken at our pace, for a socket that is full makes them wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import provision
from provision import asker_frames
from provision.asker_frames import Awaited, Broken, Failed, Frames, Part, Printed
from provision.connection import Route
from provision.crew import Done
from provision.node_error import NodeError

SILENT = 60.0  # seconds without a sign of life (asker_entry.BEAT) after which a process is given up
_START = 60.0  # seconds until they take what they are to do
_END = 5.0  # seconds to end, before they are killed
_CHUNK = 1 << 18
_STEP = 2.0  # seconds that count as silence between two looks: we may have been stopped ourselves

# -I -S: what we would import they import, whatever the environment says.
_PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from provision.asker_entry import main
main()
"""


class _Asker:
    """One of them, as it is seen from here."""

    def __init__(self, number: int, nodes: Mapping[str, Route], socket_: socket.socket) -> None:
        self.number = number
        self.left = set(nodes)
        self.socket = socket_
        self.frames = Frames()
        self.awaited: tuple[str, ...] = ()
        self.silent = 0.0
        self.broken = ""


class Askers:
    """Runs a program on each node, as ssh_threads.Threads does, in so many processes: nodes and connections
    are divided among them. Jump hosts have a connection of each process. Raises OSError when none can be
    started. The nodes of a process that ends before its time have an error that says so."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        programs: Mapping[str, str],
        timeout: float,
        connections: int,
        processes: int,
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self._said = b""
        self._ends: dict[int, str] = {}  # number of a process → how it ended
        self._looked = time.monotonic()
        pairs = [socket.socketpair() for _ in range(processes)]
        try:
            self._process = _started([theirs for _, theirs in pairs])
        except OSError:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()
        self._askers: list[_Asker] = []
        try:
            self._divide([ours for ours, _ in pairs], routes, programs, timeout, connections)
        except BaseException:
            self.close()
            raise

    def _divide(
        self,
        sockets: Sequence[socket.socket],
        routes: Mapping[str, Route],
        programs: Mapping[str, str],
        timeout: float,
        connections: int,
    ) -> None:
        total = len(sockets)
        texts = tuple(dict.fromkeys(programs.values()))
        number_of = {text: number for number, text in enumerate(texts)}
        for number, ours in enumerate(sockets):
            # Dealt like cards: what stands together in an inventory is alike, and takes alike.
            names = list(routes)[number::total]
            mine = {name: routes[name] for name in names}
            which = {name: number_of[programs[name]] for name in names}
            share = connections * (number + 1) // total - connections * number // total
            asker = _Asker(number, mine, ours)
            self._askers.append(asker)
            self._selector.register(ours, selectors.EVENT_READ, asker)
            _give(ours, Part(mine, texts, which, timeout, share))

    @property
    def unfinished(self) -> int:
        """How many nodes have no result yet."""
        return sum(len(asker.left) for asker in self._askers)

    @property
    def awaited(self) -> list[str]:
        """The nodes still at work, when no other waits for its turn in any process; else none."""
        asking = [asker for asker in self._askers if asker.left]
        if not all(asker.awaited for asker in asking):
            return []
        return [node for asker in asking for node in asker.awaited if node in asker.left]

    def gather(self, wait: float = 0.0) -> Iterator[Done[bytes]]:
        """What is done by now; waits up to `wait` seconds for the first."""
        while self.unfinished:
            ready = self._selector.select(wait)
            if not ready:
                break
            wait = 0.0
            for key, _ in ready:
                yield from self._hear(key.data)
        yield from self._given_up()

    def close(self) -> None:
        """Nothing more is asked, and none of them is left."""
        for asker in self._askers:
            asker.socket.close()
        self._selector.close()
        assert self._process.stdin  # noqa: S101
        assert self._process.stdout  # noqa: S101
        try:
            if not self.unfinished:  # they have ended, and are waited for
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=_END)
            self._process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_END)
        finally:
            self._process.stdout.close()
            self._process.kill()
            self._process.wait()

    def _hear(self, asker: _Asker) -> Iterator[Done[bytes]]:
        try:
            data = asker.socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        asker.silent = 0.0
        if not data:
            yield from self._ended(asker, self._how(asker) if asker.left else "")
        for said in asker.frames.feed(data):
            if isinstance(said, Printed | Failed):
                if said.node in asker.left:
                    asker.left.discard(said.node)
                    result = said.output if isinstance(said, Printed) else said.error
                    yield Done(said.node, result, said.seconds)
            elif isinstance(said, Awaited):
                asker.awaited = said.nodes
            elif isinstance(said, Broken):
                asker.broken = said.what

    def _given_up(self) -> Iterator[Done[bytes]]:
        """The nodes of processes that do not even say that they are there."""
        now = time.monotonic()
        passed, self._looked = min(_STEP, now - self._looked), now
        for asker in self._askers:
            if asker.left:
                asker.silent += passed
                if asker.silent > SILENT:
                    yield from self._ended(asker, f"said nothing for {SILENT:.0f} s")

    def _ended(self, asker: _Asker, how: str) -> Iterator[Done[bytes]]:
        self._selector.unregister(asker.socket)
        asker.socket.close()
        left, asker.left = sorted(asker.left), set()
        which = (
            f"worker process {asker.number + 1} of {len(self._askers)} on this machine, "
            "which held its connection,"
        )
        fix = "look at this machine's memory and kernel log, then run again"
        if asker.broken:
            how, fix = f"broke: {asker.broken}", "please report this: it is a bug"
        for node in left:
            yield Done(node, NodeError("cut", f"{which} {how}", fix), 0.0)

    def _how(self, asker: _Asker) -> str:
        """How a process ended, as the one that made it tells a moment later."""
        assert self._process.stdout  # noqa: S101
        told = select.poll()
        told.register(self._process.stdout, select.POLLIN)
        deadline = time.monotonic() + _STEP
        while asker.number not in self._ends and (left := deadline - time.monotonic()) > 0:
            if not told.poll(left * 1000):
                break
            data = os.read(self._process.stdout.fileno(), 4096)
            if not data:
                break
            *lines, self._said = (self._said + data).split(b"\n")
            for number, _, words in (line.decode().partition(" ") for line in lines):
                self._ends[int(number)] = words
        return self._ends.get(asker.number, "ended before its time")


def _started(sockets: list[socket.socket]) -> subprocess.Popen[bytes]:
    numbers = [each.fileno() for each in sockets]
    plain = ["-I", "-S", *["-B"] * sys.dont_write_bytecode]
    where = [str(Path(provision.__file__).parent.parent), *sys.path]
    # Ctrl-C at a terminal is sent to all of its foreground, and what it means is decided here: they are
    # started with it blocked, so that not even their imports are interrupted.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            [sys.executable, *plain, "-c", _PROGRAM, json.dumps(where), *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=numbers,
            bufsize=0,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _give(to: socket.socket, part: Part) -> None:
    """Who does not take it has ended, which is seen when it is heard."""
    to.settimeout(_START)
    with contextlib.suppress(OSError):
        to.sendall(asker_frames.packed(part))
    to.setblocking(False)
