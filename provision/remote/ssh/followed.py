"""A program that goes on printing over an SSH connection, read without waiting."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable
from typing import Any

from provision.remote.protocol import NodeError, unreachable
from provision.remote.ssh.execute import IDLE

WINDOW = 128 * 1024  # bytes that a node may be ahead of its reader
CHUNK = 64 * 1024  # bytes of one `read`
# Seconds that sending may wait for a node that negotiates new keys: the reader of all nodes sends, too.
_REKEY = 2.0


class Followed:
    """An open connection and the program on it. `first`: what it has printed, up to a whole answer.

    paramiko wakes whoever waits for output by an event that it sets and clears. Here it calls `notify`
    instead, from the connection's thread, once for each `read` that is due."""

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
        self._broken = broken  # what paramiko raises when a connection is of no use any more
        self._notify: Callable[[], None] = lambda: None
        self._due = False
        stack.callback(self.wake)
        channel.settimeout(0.0)
        transport.sock.settimeout(IDLE)
        transport.clear_to_send_timeout = _REKEY

    def begin(self, notify: Callable[[], None]) -> None:
        """Call `notify` from now on, and at once where there is something to read already."""
        self._notify = notify
        self._channel.in_buffer.set_event(self)
        self._channel.in_stderr_buffer.set_event(self)

    def set(self) -> None:
        """As of threading.Event, for paramiko: there is something to read, or the connection has ended."""
        if not self._due:
            self._due = True
            self._notify()

    def clear(self) -> None:
        """As of threading.Event, for paramiko."""

    def read(self) -> tuple[bytes, int]:
        """Some output, and how many bytes came, those of standard error among them; nothing where all has
        been read. Another `notify` follows where there is more. Raises NodeError once it has ended."""
        self._due = False
        channel = self._channel
        said = data = b""
        try:
            with contextlib.suppress(TimeoutError):
                said = channel.recv_stderr(CHUNK)  # nobody wants it, but it fills the window
            with contextlib.suppress(TimeoutError):
                data = channel.recv(CHUNK)
                if not data:
                    raise self._ended()
        except self._broken:
            raise self._ended() from None
        if channel.recv_ready() or channel.recv_stderr_ready() or channel.closed:
            self.set()
        return data, len(data) + len(said)

    @property
    def waiting(self) -> bool:
        """Whether something has come that was not read yet: then it is this process that is late."""
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
        """End the connection's thread, which would wait up to IDLE seconds for its end."""
        with contextlib.suppress(OSError, EOFError):
            self._transport.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._stack.close()
