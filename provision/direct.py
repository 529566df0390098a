"""The nodes we reach over SSH ourselves: each asked in a thread, what they answer taken in one."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from provision.connection import Route
from provision.crew import Crew
from provision.node_names import fold
from provision.wording import many

if TYPE_CHECKING:
    from provision.observe import Asked

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
    ) -> None:
        from provision.ssh import Ssh

        self._say = say
        self._said = time.monotonic()
        self._awaited: list[str] = []
        self._answers = answers
        self._ssh = ssh = Ssh()
        programs = {name: answers.program(name) for name in routes}
        self._crew: Crew[bytes] = Crew(
            routes,
            lambda name: ssh.ask(routes[name], programs[name].encode("ascii"), timeout),
            seconds=timeout,
            threads=connections,
        )

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, *_: object) -> None:
        self._crew.stop()
        self._ssh.close()

    def gather(self, wait: float = 0.0) -> None:
        for done in self._crew.gather(wait):
            self._answers.take(done.name, done.result, done.seconds)
        self._ssh.expire()

    def finish(self, meanwhile: Callable[[], None] | None = None) -> None:
        while self._crew.unfinished:
            self.gather(wait=1.0)
            self._say_who_is_awaited()
            if meanwhile is not None:
                meanwhile()

    def _say_who_is_awaited(self) -> None:
        """Now and then, when nobody else is left to be asked and it has not been said."""
        awaited = sorted(self._crew.awaited)
        if awaited and awaited != self._awaited and time.monotonic() - self._said > QUIET:
            self._awaited, self._said = awaited, time.monotonic()
            self._say(f"waiting for {many(len(awaited), 'node')}: {fold(awaited)}")
