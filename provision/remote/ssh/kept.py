"""SSH connections that stay open between two programs on the same node."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import dataclass, replace
from typing import Any

from provision.remote.ssh.connection import Route

MOST_PROGRAMS = 1000  # of one connection: paramiko remembers each channel it ever opened
# Seconds between looks of a connection's thread at its end while nothing comes: with paramiko's own 0.1 the
# looks at idle connections would cost more than the programs.
IDLE = 60.0


@dataclass(frozen=True)
class Kept:
    """An open connection, what is to be closed with it, and how many programs it has run."""

    transport: Any  # paramiko's
    stack: contextlib.ExitStack
    programs: int = 0


class KeptConnections:
    """Open connections by their routes, at most `limit`. Safe to use from many threads."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._idle: dict[Route, list[Kept]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def take(self, route: Route) -> Kept | None:
        """An open connection, which is the caller's from here on; the caller closes its stack."""
        with self._lock:
            kept = self._idle.get(route)
            self._count -= bool(kept)
            return kept.pop() if kept else None

    def keep(self, route: Route, kept: Kept) -> None:
        """Take over a connection that has run one more program, unless there are enough or it is worn: what
        is left in its stack is the caller's to close."""
        kept = replace(kept, programs=kept.programs + 1)
        with self._lock:
            if self._count >= self.limit or kept.programs >= MOST_PROGRAMS:
                return
            if kept.programs == 1:
                kept.stack.callback(_wake, kept.transport.sock)
                kept.transport.sock.settimeout(IDLE)
            kept = replace(kept, stack=kept.stack.pop_all())
            self._count += 1
            self._idle.setdefault(route, []).append(kept)

    def close(self) -> None:
        with self._lock:
            kept = [each for connections in self._idle.values() for each in connections]
            self._idle.clear()
            self._count = 0
        for each in kept:
            each.stack.close()


def _wake(stream: Any) -> None:
    """End the wait of a connection's thread, which would go on for up to IDLE seconds after its end."""
    with contextlib.suppress(OSError, EOFError):
        stream.shutdown(socket.SHUT_RDWR)
