"""Execution of a program on a node over an open channel, and the pool of connections for reuse.
This includes the command line, the exchange of data, and the cause if there is no answer."""

from __future__ import annotations

import contextlib
import secrets
import shlex
import socket
import threading
from dataclasses import dataclass, replace
from typing import Any, Protocol

from provision.remote.protocol import (
    ANSWER_LIMIT,
    AnswerError,
    Clock,
    CutError,
    NodeError,
    is_whole,
    one_line,
    unframed,
)
from provision.remote.ssh.connection import Route

MOST_PROGRAMS = 1000  # per connection, since paramiko remembers every channel it opened
# Seconds between polls of an idle connection by its thread; with paramiko's own 0.1, idle connections would
# cost more CPU than the programs.
IDLE = 60.0
READY = "@gpuprov-ready"  # printed once sudo has succeeded and the program may be sent


def command(python: str, *, become: bool, prompt: str | None) -> str:
    """Return the command line that runs a program from standard input; nodes differ only in `python`.

    `prompt`: sudo's password prompt, on standard error. The password is sent only after the prompt, the
    program only after READY, so that neither is taken for the other.
    """
    start = f"{shlex.quote(python)} -I -S -"
    if not become:
        return start
    # LC_ALL: sudo's messages are matched below. `env`, because a login shell may be csh or fish.
    if prompt is None:
        return f"env LC_ALL=C sudo -n -- {start}"
    inner = shlex.quote(f"echo {READY}; exec {start}")
    return f"env LC_ALL=C sudo -S -p {shlex.quote(prompt)} -- /bin/sh -c {inner}"


_NO_SUDO = "let this user run sudo on the node, or correct ansible_user and ansible_become in the inventory"
_RETYPE = "type it again where -K asks for it, or correct ansible_become_password"
_SUDO = (
    (
        "a password is required",
        "sudo needs a password",
        "give -K, or set ansible_become_password, or NOPASSWD in sudoers",
    ),
    ("no password was provided", "sudo refused the password", _RETYPE),
    ("incorrect password", "sudo refused the password", _RETYPE),
    ("Sorry, try again", "sudo refused the password", _RETYPE),
    (
        "a terminal is required",
        "sudo needs a password",
        "give -K, or set ansible_become_password, or NOPASSWD in sudoers",
    ),
    ("must have a tty", "sudo wants a terminal", "remove requiretty from sudoers on the node"),
    ("is not in the sudoers file", "this user may not use sudo", _NO_SUDO),
    ("not allowed to execute", "sudo does not let this user run Python as root", _NO_SUDO),
    ("may not run sudo", "this user may not use sudo", _NO_SUDO),
    ("account validation failure", "sudo refused: the account is locked or expired", _NO_SUDO),
    ("Account or password is expired", "sudo refused: the account is locked or expired", _NO_SUDO),
)


def why_no_answer(
    output: bytes, errors: bytes, status: int | None, *, python: str, become: bool
) -> NodeError:
    """Determine why `output` is not an answer, from everything the node printed."""
    stderr = errors.decode("utf-8", "replace")
    lines = [line for line in stderr.splitlines() if line.strip()]
    last = one_line(lines[-1]) if lines else ""
    try:
        unframed(output)
    except CutError as error:
        return NodeError(
            "cut", str(error), "run again; if the error persists, check the node's memory and kernel log"
        )
    except AnswerError as error:
        answered = str(error)
    if become:
        for pattern, what, fix in _SUDO:
            if pattern in stderr:
                return NodeError("sudo", what, fix)
        if any(
            line.startswith(("env: ", "sudo: ")) and "sudo: No such" in line.replace("'", "")
            for line in lines
        ):
            return NodeError(
                "sudo", "sudo is not installed on the node", "install sudo there, or connect as root"
            )
    if status == 127 or f"{python}: command not found" in stderr:
        fix = "install python3 there, or set ansible_python_interpreter"
        return NodeError("python", f"{python} is not installed on the node", fix)
    if "SyntaxError" in stderr or "unknown option -I" in stderr.lower():
        fix = "set ansible_python_interpreter to a Python 3.6 or newer"
        return NodeError("python", f"{python} on the node is older than 3.6", fix)
    if become and stderr.startswith("sudo: "):
        return NodeError("sudo", f"sudo reported: {last}", _NO_SUDO)
    fix = "log in by hand: the account's shell, forced command or start files print this"
    if not output.strip() and last:
        ended = "" if status is None else f" (status {status})"
        return NodeError("garbage", f"the program did not run{ended}: {last}", fix)
    return NodeError("garbage", answered, fix)


CHUNK = 1 << 16
ERROR_LIMIT = 64 * 1024  # bytes kept of standard error
POLL = 0.5  # seconds between checks of the deadline


class Channel(Protocol):
    """The subset of an SSH session's channel that is needed to run a command and learn its exit status."""

    status_event: threading.Event
    exit_status: int

    def settimeout(self, timeout: float) -> None: ...
    def send(self, s: bytes) -> int: ...
    def shutdown_write(self) -> None: ...
    def recv(self, nbytes: int) -> bytes: ...
    def recv_stderr(self, nbytes: int) -> bytes: ...
    def recv_stderr_ready(self) -> bool: ...
    def set_combine_stderr(self, combine: bool) -> bool: ...
    def exec_command(self, command: str) -> None: ...


class RemoteExecution:
    """One run of a program on a node, over an authenticated connection."""

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
        """Return all output of the node up to a complete answer. Raises NodeError."""
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
        self._clock.left()  # a run that hit its deadline did not give a bad answer
        errors = bytes(self._output if prompt else self._errors)
        raise why_no_answer(
            bytes(self._output), errors, self._status(), python=route.python, become=route.become
        )

    def _sudo_lets_in(self, prompt: bytes) -> bool:
        ready = READY.encode() + b"\n"
        prompts = 0
        while not self._ended:
            if ready in self._output:
                return True
            if self._output.count(prompt) > prompts:
                prompts += 1
                if prompts > 1:  # one attempt only, since accounts get locked
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
                return  # it ended before reading all input; its output explains why

    def _receive(self) -> None:
        """Wait a moment for more output."""
        self._clock.left()
        data = b""
        with contextlib.suppress(TimeoutError):
            data = self._channel.recv(CHUNK)
            self._ended = not data
        self._output += data
        while self._size <= ANSWER_LIMIT and self._channel.recv_stderr_ready():
            stderr = self._channel.recv_stderr(CHUNK)
            if not stderr:
                break
            self._size += len(stderr)
            self._errors += stderr[: max(0, ERROR_LIMIT - len(self._errors))]
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


@dataclass(frozen=True)
class Kept:
    """An open connection, the resources to close with it, and its number of programs."""

    transport: Any  # paramiko.Transport
    stack: contextlib.ExitStack
    programs: int = 0


class KeptConnections:
    """Open connections by route, at most `limit`. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._idle: dict[Route, list[Kept]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def take(self, route: Route) -> Kept | None:
        """Return an open connection, or None; the caller then owns it and closes its stack."""
        with self._lock:
            kept = self._idle.get(route)
            self._count -= bool(kept)
            return kept.pop() if kept else None

    def keep(self, route: Route, kept: Kept) -> None:
        """Store a connection after one more program, unless there are enough or it is worn out.
        Resources that remain in its stack must be closed by the caller."""
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
    """Wake a connection's thread at its end, which it would otherwise notice up to IDLE seconds later."""
    with contextlib.suppress(OSError, EOFError):
        stream.shutdown(socket.SHUT_RDWR)
