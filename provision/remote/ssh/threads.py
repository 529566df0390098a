"""SSH fan-out in threads of this process: connections, and the thread pool that opens them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provision.remote.ssh.connection import Route
from provision.remote.ssh.pool import Crew, Done


class Threads:
    """Runs a program (its text, in ASCII) on each node; `keep` as for Crew. Results come from `gather`."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        programs: Mapping[str, str],
        timeout: float,
        connections: int,
        keep: int = 0,
    ) -> None:
        from provision.remote.ssh.client import Ssh

        self._ssh = ssh = Ssh()
        self._crew: Crew[bytes] = Crew(
            routes,
            lambda name: ssh.ask(routes[name], programs[name].encode("ascii"), timeout),
            seconds=timeout,
            threads=connections,
            keep=keep,
        )

    @property
    def unfinished(self) -> int:
        """How many nodes have no result yet."""
        return self._crew.unfinished

    @property
    def awaited(self) -> list[str]:
        """The nodes still at work, when no other waits for its turn; else none."""
        return self._crew.awaited

    def gather(self, wait: float = 0.0) -> Iterator[Done[bytes]]:
        """What is done by now; waits up to `wait` seconds for the first."""
        yield from self._crew.gather(wait)
        self.expire()

    def expire(self) -> None:
        """Cut connections whose time is up. To be called now and then; `gather` does."""
        self._ssh.expire()

    def close(self) -> None:
        """Ask no further node; who is at work is not waited for."""
        self._crew.stop()
        self._ssh.close()
