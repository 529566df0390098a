"""SSH fan-out for nodes reachable without Ansible."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from provision.connection import Route
from provision.node_names import fold
from provision.ssh_threads import Threads
from provision.wording import many

if TYPE_CHECKING:
    from provision.askers import Askers
    from provision.observe import Asked

FEWEST = 200  # nodes for which one more process is worth its start
QUIET = 5.0  # seconds between two lines about who is waited for


class Direct:
    """The nodes we reach over SSH ourselves: asked in the background, gathered here."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        answers: Asked,
        timeout: float,
        connections: int,
        say: Callable[[str], None],
        processes: int = 1,
    ) -> None:
        self._say = say
        self._said = time.monotonic()
        self._awaited: list[str] = []
        self._answers = answers
        programs = {name: answers.program(name) for name in routes}
        self._hands = _hands(routes, programs, timeout, connections, processes, say)

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, *_: object) -> None:
        self._hands.close()

    def gather(self, wait: float = 0.0) -> None:
        for done in self._hands.gather(wait):
            self._answers.take(done.name, done.result, done.seconds)

    def finish(self, meanwhile: Callable[[], None] | None = None) -> None:
        while self._hands.unfinished:
            self.gather(wait=1.0)
            self._say_who_is_awaited()
            if meanwhile is not None:
                meanwhile()

    def _say_who_is_awaited(self) -> None:
        """Now and then, when nobody else is left to be asked and it has not been said."""
        awaited = sorted(self._hands.awaited)
        if awaited and awaited != self._awaited and time.monotonic() - self._said > QUIET:
            self._awaited, self._said = awaited, time.monotonic()
            self._say(f"waiting for {many(len(awaited), 'node')}: {fold(awaited)}")


def _hands(
    routes: Mapping[str, Route],
    programs: Mapping[str, str],
    timeout: float,
    connections: int,
    processes: int,
    say: Callable[[str], None],
) -> Threads | Askers:
    """Who asks: threads here, or those of so many processes where this machine starts them."""
    if processes > 1:
        from provision.askers import Askers

        try:
            return Askers(routes, programs, timeout, connections, processes)
        except OSError as error:
            say(f"all nodes are handled in one process: no other could be started: {error.strerror}")
    return Threads(routes, programs, timeout, connections)
