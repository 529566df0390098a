"""Execution of one program on one node over an open channel: sends it, answers sudo's prompt, collects the
output."""

from __future__ import annotations

import contextlib
import secrets
import threading
from typing import Protocol

from provision.remote.node_error import Clock, NodeError
from provision.remote.protocol import ANSWER_LIMIT, is_whole
from provision.remote.ssh.command import READY, command, why_no_answer
from provision.remote.ssh.connection import Route

CHUNK = 1 << 16
ERROR_LIMIT = 64 * 1024  # bytes of standard error kept
POLL = 0.5  # seconds between looks at the clock


class Channel(Protocol):
    """What we need of an SSH session's channel."""

    status_event: threading.Event
    exit_status: int

    def settimeout(self, timeout: float) -> None: ...
    def set_combine_stderr(self, combine: bool) -> bool: ...
    def exec_command(self, command: str) -> None: ...
    def send(self, s: bytes) -> int: ...
    def shutdown_write(self) -> None: ...
    def recv(self, nbytes: int) -> bytes: ...
    def recv_stderr(self, nbytes: int) -> bytes: ...
    def recv_stderr_ready(self) -> bool: ...


class Question:
    """One program run on one node, over a connection that is logged in."""

    def __init__(self, channel: Channel, route: Route, program: bytes, clock: Clock) -> None:
        self._route = route
        self._program = program
        self._clock = clock
        self._output = bytearray()
        self._errors = bytearray()
        self._size = 0
        self._ended = False
        self._channel = channel
        self._channel.settimeout(POLL)

    def answer(self) -> bytes:
        """All the node printed, up to a whole answer. Raises NodeError."""
        route = self._route
        asks_password = route.become and route.become_password is not None
        prompt = f"[gpuprov {secrets.token_hex(8)}] " if asks_password else None
        if prompt:
            self._channel.set_combine_stderr(True)
        self._channel.exec_command(command(route.python, become=route.become, prompt=prompt))
        if prompt is None or self._sudo_lets_in(prompt.encode()):
            self._send(self._program)
            with contextlib.suppress(OSError, EOFError):
                self._channel.shutdown_write()
            while not self._ended and not is_whole(self._output):
                self._receive()
        if is_whole(self._output):
            return bytes(self._output)
        self._clock.left()  # who is cut because its time is up did not answer badly
        errors = bytes(self._output if prompt else self._errors)
        raise why_no_answer(
            bytes(self._output), errors, self._status(), python=route.python, become=route.become
        )

    def _sudo_lets_in(self, prompt: bytes) -> bool:
        ready = READY.encode() + b"\n"
        asked = 0
        while not self._ended:
            if ready in self._output:
                return True
            if self._output.count(prompt) > asked:
                asked += 1
                if asked > 1:  # one attempt only: accounts get locked
                    fix = "correct ansible_become_password"
                    raise NodeError("sudo", "sudo refused the password", fix)
                self._send((self._route.become_password or "").encode() + b"\n")
            self._receive()
        return ready in self._output

    def _send(self, data: bytes) -> None:
        while data:
            self._clock.left()
            try:
                data = data[self._channel.send(data[:CHUNK]) :]
            except TimeoutError:
                continue
            except (OSError, EOFError):
                return  # it ended before it read all; what it printed says why

    def _receive(self) -> None:
        """Wait a moment for more of the answer."""
        self._clock.left()
        data = b""
        with contextlib.suppress(TimeoutError):
            data = self._channel.recv(CHUNK)
            self._ended = not data
        self._output += data
        while self._channel.recv_stderr_ready():
            said = self._channel.recv_stderr(CHUNK)
            if not said:
                break
            self._size += len(said)
            self._errors += said[: max(0, ERROR_LIMIT - len(self._errors))]
        self._size += len(data)
        if self._size > ANSWER_LIMIT:
            raise NodeError(
                "too large",
                f"it printed more than {ANSWER_LIMIT // (1 << 20)} MiB",
                "log in by hand: the account's shell or start files print this",
            )

    def _status(self) -> int | None:
        self._channel.status_event.wait(2)
        status = self._channel.exit_status
        return status if status >= 0 else None
