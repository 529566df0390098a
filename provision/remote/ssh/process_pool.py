"""SSH fan-out from several processes, for Python's threads use no more than one core.

The processes are multiprocessing's, started by its fork server: it imports paramiko once, and neither this
process's threads nor the fleet in its memory are copied. `ProcessPoolExecutor` does not fit: it breaks as a
whole when one of its processes dies, and hands over nothing of a task before its end. Here each process runs
its share of the nodes with as many connections at once as suit it (SshThreads), and has a pipe of its own, so
that its death costs no other anything.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from provision import bug_file
from provision.remote.protocol import NodeError
from provision.remote.ssh.connection import Route
from provision.remote.ssh.pool import Done, SshThreads

PRELOADED = "provision.remote.ssh.client"  # with paramiko: imported once, before the processes are forked
SILENT = 60.0  # seconds without a message after which a process is given up
BEAT = 5.0  # seconds after which a process sends a message, if only as a sign of life
KEPT = 32  # results that wait in a process for the parent to take them: then no further node is begun
_END = 5.0  # seconds to end, before it is killed
_POLL = 1.0  # seconds between looks at the clock
_STEP = 2.0  # seconds that count as silence between two looks: this process may have been stopped itself


class _Process:
    """One process, as its parent sees it."""

    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.names: list[str] = []
        self.left: set[str] = set()  # its nodes without a result
        self.awaited: list[str] = []
        self.silent = 0.0

    def begin(self, programs: Mapping[str, str]) -> dict[str, str]:
        """Await results of its nodes among these; returns their programs."""
        mine = {name: programs[name] for name in self.names if name in programs}
        self.left, self.awaited, self.silent = set(mine), [], 0.0
        return mine


class Processes:
    """Runs a program on each node that has one, as SshThreads does, with nodes and connections divided among
    processes.

    Each process has its own connection to a jump host. Raises OSError or EOFError when one cannot be started.
    The nodes of a process that dies get an error that names the cause."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        programs: Mapping[str, str],
        timeout: float,
        connections: int,
        processes: int,
        persistent: int = 0,
    ) -> None:
        self._looked = time.monotonic()
        self._processes = _started(processes)
        self._open = {each.pipe: each for each in self._processes}
        try:
            for number, each in enumerate(self._processes):
                # Every so-many-th node: neighbours in an inventory are alike, and take alike.
                each.names = names = list(routes)[number::processes]
                mine = {name: routes[name] for name in names}, each.begin(programs)
                width, kept = (
                    all_of_them * (number + 1) // processes - all_of_them * number // processes
                    for all_of_them in (connections, persistent)
                )
                with contextlib.suppress(OSError):  # then it is dead, which `gather` finds
                    each.pipe.send((*mine, timeout, width, KEPT, kept))
        except BaseException:
            self.close()
            raise

    def ask_again(self, programs: Mapping[str, str]) -> None:
        """Run another program on each node that has one, once all have answered; where `whole`."""
        self._looked = time.monotonic()
        for each in self._processes:
            mine = each.begin(programs)
            with contextlib.suppress(OSError):  # then it is dead, which `gather` finds
                each.pipe.send(mine)

    @property
    def whole(self) -> bool:
        """Whether every process lives, as far as is known."""
        return len(self._open) == len(self._processes)

    @property
    def unfinished(self) -> int:
        """How many nodes have no result yet."""
        return sum(len(each.left) for each in self._processes)

    @property
    def awaited(self) -> list[str]:
        """The nodes at work, once no other node waits for its turn in any process; none before."""
        at_work = [each for each in self._processes if each.left]
        if not all(each.awaited for each in at_work):
            return []
        return [node for each in at_work for node in each.awaited if node in each.left]

    def gather(self, seconds: float = 0.0) -> Iterator[Done[bytes]]:
        """The results there are by now; waits up to `seconds` for the first."""
        while self.unfinished:
            ready = wait(list(self._open), seconds)
            if not ready:
                break
            seconds = 0.0
            for pipe in ready:
                yield from self._receive(self._open[pipe])  # type: ignore[index]
        now = time.monotonic()
        passed, self._looked = min(_STEP, now - self._looked), now
        for each in self._processes:
            each.silent += passed
            if each.left and each.silent > SILENT:
                yield from self._lost(each, f"sent nothing for {SILENT:.0f} s")

    def close(self) -> None:
        """Leave no process, whatever it is doing."""
        for each in self._processes:
            each.pipe.close()
            if each.left:
                each.process.kill()
        for each in self._processes:
            each.process.join(_END)
            each.process.kill()
            each.process.join(_END)

    def _receive(self, one: _Process) -> Iterator[Done[bytes]]:
        one.silent = 0.0
        try:
            message = one.pipe.recv()
        except BlockingIOError:  # it stopped in the middle of a message
            yield from self._lost(one, f"sent nothing for {SILENT:.0f} s")
        except (EOFError, OSError):
            one.process.join(_STEP)
            yield from self._lost(one, _how_it_ended(one.process.exitcode))
        else:
            if isinstance(message, list):
                one.awaited = message
            elif isinstance(message, str):
                yield from self._lost(one, f"broke: {message}", "it is a bug of gpuprov")
            elif message.name in one.left:
                one.left.discard(message.name)
                yield message

    def _lost(
        self,
        one: _Process,
        how: str,
        fix: str = "look at this machine's memory and kernel log, then run again",
    ) -> Iterator[Done[bytes]]:
        del self._open[one.pipe]
        one.pipe.close()
        one.process.kill()
        left, one.left = sorted(one.left), set()
        number = self._processes.index(one) + 1
        which = (
            f"worker process {number} of {len(self._processes)} on this machine, which held its connection,"
        )
        for node in left:
            yield Done(node, NodeError("cut", f"{which} {how}", fix), 0.0)


def _started(count: int) -> list[_Process]:
    """So many processes that wait for their share. Raises OSError or EOFError, and leaves none then."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", PRELOADED, __name__])
    # Ctrl-C at a terminal is sent to every process of its foreground, and what it means is decided here: the
    # others inherit it blocked. (Starting the resource tracker would unblock it again, so that comes first.)
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    started: list[_Process] = []
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            with theirs:
                process = context.Process(target=work, args=(theirs,), daemon=True)
                process.start()
            started.append(_Process(process, ours))
            _bound(ours, SILENT)
            # The fork server may be older than the limit of now (fanout.room raises it).
            files = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.prlimit(process.pid or 0, resource.RLIMIT_NOFILE, files)
    except BaseException:
        for each in started:
            each.process.kill()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return started


def _bound(pipe: Connection, seconds: float) -> None:
    """Have `pipe` raise BlockingIOError when the other end stops in the middle of a message."""
    limit = struct.pack("ll", int(seconds), 0)
    with socket.socket(fileno=pipe.fileno()) as same:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            same.setsockopt(socket.SOL_SOCKET, option, limit)
        same.detach()


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "closed its pipe"
    return f"was killed by signal {-code} (not by gpuprov)" if code < 0 else f"ended with status {code}"


# --- in the processes


def work(parent: Connection) -> None:
    """Run a share of the nodes, and send each result as it comes; ends with the parent, however that went."""
    with contextlib.suppress(EOFError, ConnectionError):  # the parent is gone, or wants nothing more
        try:
            threads = SshThreads(*parent.recv())
            with contextlib.closing(threads), _time_kept(threads):
                _run(parent, threads)
                while True:
                    threads.ask_again(parent.recv())
                    _run(parent, threads)
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            parent.send(f"{type(error).__name__}: {error}; {bug_file.report(error)}")


def _run(parent: Connection, threads: SshThreads) -> None:
    sent, sent_at = list[str](), time.monotonic()
    while threads.unfinished:
        for done in threads.gather(_POLL):
            parent.send(done)
        # The parent sends nothing before it has all results: this is its end.
        if threads.unfinished and parent.poll():
            raise EOFError
        awaited, now = threads.awaited, time.monotonic()
        if now - sent_at > (_POLL if awaited != sent else BEAT):
            sent, sent_at = awaited, now
            parent.send(awaited)


@contextlib.contextmanager
def _time_kept(threads: SshThreads) -> Iterator[None]:
    """Nodes get no more time while the parent is slow to take results."""
    ended = threading.Event()

    def keep_time() -> None:
        while not ended.wait(_POLL):
            threads.expire()

    threading.Thread(target=keep_time, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
