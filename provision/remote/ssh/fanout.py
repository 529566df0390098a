"""SSH fan-out for nodes that are reachable without Ansible: a program run on each, from threads of one
process (pool.py) or, where there are many nodes, of several (process_pool.py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from provision.node_names import fold
from provision.remote.node_error import NodeError
from provision.remote.ssh.connection import Route
from provision.remote.ssh.pool import Threads
from provision.text import many

if TYPE_CHECKING:
    from provision.remote.ssh.process_pool import Processes

FEWEST = 200  # nodes for which one more process is worth its start
QUIET = 5.0  # seconds between two lines about the nodes that have not answered yet


class Asked(Protocol):
    """The program of each node, and the receiver of what it prints."""

    def program(self, node: str, limit: int | None = None) -> str: ...
    def take(self, node: str, output: bytes | bytearray | NodeError, seconds: float) -> None: ...


class Fanout:
    """Runs on each node what it is `asked`, in the background; `gather` and `finish` hand results over."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        asked: Asked,
        timeout: float,
        connections: int,
        say: Callable[[str], None],
        processes: int = 1,
    ) -> None:
        self._say = say
        self._said = time.monotonic()
        self._awaited: list[str] = []
        self._asked = asked
        programs = {name: asked.program(name) for name in routes}
        self._pool = _pool(routes, programs, timeout, connections, processes, say)

    def __enter__(self) -> Fanout:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def gather(self, wait: float = 0.0) -> None:
        for done in self._pool.gather(wait):
            self._asked.take(done.name, done.result, done.seconds)

    def finish(self, meanwhile: Callable[[], None] | None = None) -> None:
        while self._pool.unfinished:
            self.gather(wait=1.0)
            self._say_who_is_awaited()
            if meanwhile is not None:
                meanwhile()

    def _say_who_is_awaited(self) -> None:
        """Now and then, once no other node waits for its turn, and the same nodes once."""
        awaited = sorted(self._pool.awaited)
        if awaited and awaited != self._awaited and time.monotonic() - self._said > QUIET:
            self._awaited, self._said = awaited, time.monotonic()
            self._say(f"waiting for {many(len(awaited), 'node')}: {fold(awaited)}")


def _pool(
    routes: Mapping[str, Route],
    programs: Mapping[str, str],
    timeout: float,
    connections: int,
    processes: int,
    say: Callable[[str], None],
) -> Threads | Processes:
    """Threads of this process, or of so many others where this machine can start them."""
    if processes > 1:
        from provision.remote.ssh.process_pool import Processes

        try:
            return Processes(routes, programs, timeout, connections, processes)
        except (OSError, EOFError) as error:
            say(f"all nodes are handled in one process: no other could be started: {error}")
    return Threads(routes, programs, timeout, connections)
