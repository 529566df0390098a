"""The nodes we reach over SSH ourselves: each asked in a thread, what they answer taken in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from provision.connection import Route
from provision.crew import Crew

if TYPE_CHECKING:
    from provision.observe import Asked


class Direct:
    """The nodes we reach over SSH ourselves: asked in the background, gathered here."""

    def __init__(self, routes: Mapping[str, Route], answers: Asked, timeout: float, connections: int) -> None:
        from provision.ssh import Ssh

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
            if meanwhile is not None:
                meanwhile()
