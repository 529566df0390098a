"""SSH fan-out from the threads of one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provision.connection import Route
from provision.crew import Crew, Done


class Threads:
    """Runs a program (its text, in ASCII) on each node, from threads of this process. Results come from
    `gather`; `keep` as for Crew."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        programs: Mapping[str, str],
        timeout: float,
        connections: int,
        keep: int = 0,
    ) -> None:
        from provision.ssh import Ssh  # imports paramiko, which most commands can do without

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
        """The nodes at work, once no other node waits for its turn; none before."""
        return self._crew.awaited

    def gather(self, wait: float = 0.0) -> Iterator[Done[bytes]]:
        """The results there are by now; waits up to `wait` seconds for the first."""
        yield from self._crew.gather(wait)
        self.expire()

    def expire(self) -> None:
        """Cut connections whose time is up. To be called now and then; `gather` does."""
        self._ssh.expire()

    def close(self) -> None:
        """Start no further node, and do not wait for those at work."""
        self._crew.stop()
        self._ssh.close()
