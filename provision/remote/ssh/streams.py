"""The byte stream an SSH connection runs over: a TCP connection, or a ProxyCommand's input and output."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable

from provision.remote.node_error import Clock, NodeError, unreachable
from provision.remote.protocol import one_line
from provision.remote.ssh.proxy_jump import Hop


def tcp(hop: Hop, clock: Clock) -> socket.socket:
    """A TCP connection to `hop`. Raises NodeError."""
    limit = clock.left(hop.connect_timeout)
    try:
        return socket.create_connection((hop.host, hop.port), timeout=limit)
    except socket.gaierror as error:
        reason = (error.strerror or str(error)).lower()
        raise unreachable(
            f"the name {hop.host} does not resolve: {reason}", "correct ansible_host, or the name service"
        ) from None
    except UnicodeError:
        raise unreachable(f"{hop.host!r} is not a host name", "correct ansible_host") from None
    except TimeoutError:
        raise unreachable(f"{hop.address} did not answer within {limit:g} s") from None
    except ConnectionRefusedError:
        raise unreachable(
            f"{hop.address} refused the connection", "start sshd there, or correct ansible_port"
        ) from None
    except OSError as error:
        raise _network_error(hop, error) from None


def _network_error(hop: Hop, error: OSError) -> NodeError:
    reason = (error.strerror or str(error)).lower()
    if error.errno == errno.EMFILE:
        return unreachable(
            f"too many open files on this machine: {reason}",
            "raise the limit (ulimit -n), or use fewer connections",
        )
    return unreachable(f"{hop.address}: {reason}")


def proxy(hop: Hop, stack: contextlib.ExitStack) -> tuple[socket.socket, Callable[[], str]]:
    """A stream through `hop`'s ProxyCommand, started without a shell, and what that complained of so far;
    `stack` ends it. Raises NodeError."""
    ours, theirs = socket.socketpair()
    stack.callback(ours.close)
    errors = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
    with theirs:
        try:
            process = subprocess.Popen(
                hop.proxy_command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            reason = one_line(f"{hop.proxy_command[0]}: {error.strerror}")
            raise unreachable(f"ProxyCommand cannot start: {reason}", "correct ProxyCommand") from None
    stack.callback(_end, process)

    def complaint() -> str:
        return one_line(os.pread(errors.fileno(), 4096, 0).decode(errors="replace"))

    return ours, complaint


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)
