"""Non-blocking reader of a program that keeps printing over an SSH connection."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from typing import Any

from provision.remote.protocol import NodeError, unreachable
from provision.remote.ssh.execute import IDLE

WINDOW = 128 * 1024  # bytes that a node may be ahead of its reader
CHUNK = 64 * 1024  # bytes per `read`
# Seconds that sending may wait for a node's key renegotiation, since the reader of all nodes sends too.
_REKEY = 2.0


class Followed:
    """An open connection and its program; `first`: its output up to the first complete answer.

    paramiko signals new output through an event that it sets and clears. This class takes the event's place
    and calls `notify`, in the connection's thread, once for each `read` that is due."""

    def __init__(
        self,
        channel: Any,
        transport: Any,
        address: str,
        first: bytes,
        stack: contextlib.ExitStack,
        broken: tuple[type[Exception], ...],
    ) -> None:
        self.address = address
        self.first = first
        self._channel = channel
        self._transport = transport
        self._stack = stack
        self._broken = broken  # exceptions of paramiko for a dead connection
        self._notify: Callable[[], None] = lambda: None
        self._due = False
        stack.callback(self.wake)
        channel.settimeout(0.0)
        transport.sock.settimeout(IDLE)
        transport.clear_to_send_timeout = _REKEY

    def begin(self, notify: Callable[[], None]) -> None:
        """Call `notify` from now on, and immediately if there is unread output."""
        self._notify = notify
        self._channel.in_buffer.set_event(self)
        self._channel.in_stderr_buffer.set_event(self)

    def set(self) -> None:
        """Implement threading.Event for paramiko: there is output, or the connection has ended."""
        if not self._due:
            self._due = True
            self._notify()

    def clear(self) -> None:
        """Implement threading.Event for paramiko."""

    def read(self) -> tuple[bytes, int]:
        """Return some output, and the number of bytes received, including standard error.
        The output is empty if none is left. If there is more, another `notify` follows. Raises NodeError
        after the end."""
        self._due = False
        channel = self._channel
        stderr = data = b""
        try:
            with contextlib.suppress(TimeoutError):
                stderr = channel.recv_stderr(CHUNK)  # unused, but it fills the window
            with contextlib.suppress(TimeoutError):
                data = channel.recv(CHUNK)
                if not data:
                    raise self._ended()
        except self._broken:
            raise self._ended() from None
        if channel.recv_ready() or channel.recv_stderr_ready() or channel.closed:
            self.set()
        return data, len(data) + len(stderr)

    @property
    def waiting(self) -> bool:
        """Return whether unread data has arrived, which means that this process is late."""
        poll = select.poll()
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            poll.register(self._transport.sock, select.POLLIN)
            return self._due or bool(poll.poll(0))
        return self._due

    def _ended(self) -> NodeError:
        if not self._channel.eof_received:
            return unreachable(f"the connection to {self.address} was lost")
        fix = "see the node's journal: out of memory, a session that was ended, a shutdown"
        return NodeError("cut", "the program that follows the health result there has ended", fix)

    def wake(self) -> None:
        """Wake the connection's thread at its end, instead of up to IDLE seconds later."""
        with contextlib.suppress(OSError, EOFError):
            self._transport.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._stack.close()
