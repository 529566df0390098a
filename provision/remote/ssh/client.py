"""SSH connections to nodes without Ansible: TCP or a ProxyCommand, handshake, and jump hosts.

This and login.py are the only modules that import paramiko. On every hop, the host's key is verified before
anything else is sent. Every wait has a timeout. Failures are raised as NodeError with cause and next step.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from provision.remote.protocol import Clock, NodeError, hung, one_line, unreachable
from provision.remote.ssh.connection import Hop, Route
from provision.remote.ssh.execute import Kept, KeptConnections, RemoteExecution
from provision.remote.ssh.followed import WINDOW, Followed
from provision.remote.ssh.known_hosts import HostKeys
from provision.remote.ssh.login import AUTH_TIMEOUT, Login

if TYPE_CHECKING:
    import paramiko


HANDSHAKE_TIMEOUT = 20.0  # seconds, each for the banner and for the key exchange
_PAUSES = (0.5, 1.0, 2.0, 4.0)  # longest waits before a retry, in seconds; the last one repeats
# Error of ssh as a ProxyCommand if a jump host closes the connection before its banner. A retry cannot help
# with any other error, such as a rejected key or password.
_CLOSED = "exchange_identification"
_FOR_THE_ANSWER = 1.0  # seconds that must be left for another try
_AGAIN = 5.0  # seconds for a kept connection to accept another program, before a new one is opened


class Ssh:
    """SSH client for programs on many nodes, with shared keys, known hosts and jump hosts. Thread-safe.

    `persistent`: number of connections that stay open for the next program on the same node."""

    def __init__(self, *, persistent: int = 0) -> None:
        self._paramiko = _PARAMIKO
        logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # otherwise its threads print tracebacks
        self._host_keys = HostKeys()
        self._keys: dict[tuple[str, str | None], paramiko.PKey | str] = {}
        self._jumps: dict[tuple[Hop, ...], tuple[threading.Lock, list[Any]]] = {}
        self._open: dict[int, tuple[Clock, paramiko.Transport]] = {}
        self._shared = contextlib.ExitStack()
        self._kept = KeptConnections(persistent)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close kept connections and shared ones to jump hosts."""
        self._kept.close()
        self._shared.close()

    def forget_dead_jump_hosts(self) -> None:
        """Allow another try of dead jump hosts, each of which is waited for once per round."""
        for lock, held in list(self._jumps.values()):
            with lock:
                if held and isinstance(held[0], NodeError):
                    held.clear()

    def expire(self) -> None:
        """Close connections past their deadline, as paramiko may wait forever; to be called often."""
        for clock, transport in list(self._open.values()):
            if clock.overdue > 0:
                transport.close()

    def ask(self, route: Route, program: bytes, seconds: float) -> bytes:
        """Run `program` with the node's Python; return its output up to an answer. Raises NodeError."""
        clock = Clock(seconds)
        if (kept := self._kept.take(route)) is not None:
            with contextlib.suppress(self._paramiko.SSHException, OSError, EOFError), kept.stack:
                return self._again(kept, route, program, clock)
            # The kept connection was dead: the node rebooted, or something in between dropped it.
        with contextlib.ExitStack() as stack:
            try:
                transport = self._connect(route.target, route.jumps, clock, stack)
                channel = transport.open_session(timeout=clock.left(AUTH_TIMEOUT))
                answer = RemoteExecution(channel, route, program, clock).answer()
                if self._kept.limit:
                    self._keep(route, Kept(transport, stack), channel)
                return answer
            except (self._paramiko.SSHException, OSError, EOFError) as error:
                clock.left()  # raises `hung` if `expire` closed the connection at its deadline
                cause = one_line(str(error)) or type(error).__name__
                raise unreachable(
                    f"the connection to {route.target.address} broke: {cause}", "run again"
                ) from None

    def _keep(self, route: Route, kept: Kept, channel: paramiko.Channel) -> None:
        channel.close()
        self._open.pop(id(kept.transport), None)  # its next program brings its own deadline
        self._kept.keep(route, kept)

    def _again(self, kept: Kept, route: Route, program: bytes, clock: Clock) -> bytes:
        """Run another program over a kept connection.
        Raises NodeError, and the errors that `ask` handles as a dead connection."""
        self._open[id(kept.transport)] = (clock, kept.transport)
        channel = kept.transport.open_session(timeout=clock.left(_AGAIN))
        try:
            answer = RemoteExecution(channel, route, program, clock).answer()
        except NodeError as error:
            if error.kind in ("cut", "garbage"):  # the symptoms of a connection that ends meanwhile
                raise EOFError from error
            raise
        self._keep(route, kept, channel)
        return answer

    def follow(self, route: Route, program: bytes, seconds: float) -> Followed:
        """Start `program` on `route` and return its open connection, for reading further output.
        Its first answer must arrive within `seconds`. Raises NodeError."""
        clock, broken = Clock(seconds), (self._paramiko.SSHException, OSError, EOFError)
        with contextlib.ExitStack() as stack:
            try:
                transport = self._connect(route.target, route.jumps, clock, stack)
                limit = clock.left(AUTH_TIMEOUT)
                channel = transport.open_session(window_size=WINDOW, timeout=limit)
                first = RemoteExecution(channel, route, program, clock).answer()
            except broken as error:
                clock.left()
                cause = one_line(str(error)) or type(error).__name__
                raise unreachable(f"the connection to {route.target.address} broke: {cause}") from None
            self._open.pop(id(transport), None)  # from here on its user limits its time
            return Followed(channel, transport, route.target.address, first, stack.pop_all(), broken)

    def _connect(
        self, hop: Hop, jumps: tuple[Hop, ...], clock: Clock, stack: contextlib.ExitStack
    ) -> paramiko.Transport:
        """Connect and log in to `hop`, retrying after random pauses while it refuses new connections.
        (An sshd with too many connections, MaxStartups, closes new ones before its banner.)"""
        began = time.monotonic()
        for tries, pause in enumerate(itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])), start=1):
            with contextlib.ExitStack() as attempt:
                try:
                    transport = self._reached(hop, jumps, clock, attempt)
                except _ClosedError:
                    wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - not for secrets
                    if clock.overdue + wait > -_FOR_THE_ANSWER:
                        raise _ClosedError(hop, tries, time.monotonic() - began) from None
                else:
                    stack.push(attempt.pop_all())
                    break
            time.sleep(wait)
        Login(self._paramiko, self._keys, transport, hop, clock).run()
        return transport

    def _reached(
        self, hop: Hop, jumps: tuple[Hop, ...], clock: Clock, stack: contextlib.ExitStack
    ) -> paramiko.Transport:
        """Connect to `hop` and verify its host key."""
        complaint = None
        if jumps:
            stream = self._through(hop, jumps, clock)
        elif hop.proxy_command:
            stream, complaint = proxy(hop, stack)
        else:
            stream = tcp(hop, clock)
        stack.callback(stream.close)
        disabled = _disabled(self._paramiko.Transport, hop)
        transport: paramiko.Transport = self._paramiko.Transport(stream, disabled_algorithms=disabled)
        self._open[id(transport)] = (clock, transport)
        stack.callback(self._open.pop, id(transport), None)
        stack.callback(transport.close)
        try:
            self._shake_hands(transport, hop, clock, direct=not jumps and not hop.proxy_command)
        except _ClosedError:
            if complaint is not None and _CLOSED not in (errors := complaint()):
                reason = f": {errors}" if errors else ""
                raise unreachable(
                    f"the ProxyCommand to {hop.address} ended{reason}", "run it by hand; correct ProxyCommand"
                ) from None
            raise
        return transport

    def _shake_hands(self, transport: paramiko.Transport, hop: Hop, clock: Clock, *, direct: bool) -> None:
        """Exchange keys and verify the host's key before anything else is sent."""
        entries = self._host_keys.entries(hop)
        known_types = {entry.key_type for entry in entries if not entry.marker}
        options = transport.get_security_options()
        # Request a known type, or a host with several keys would appear to have changed its key.
        kinds = sorted(options.key_types, key=lambda kind: _type_of_key(kind) not in known_types)
        options.key_types = tuple(kinds)
        limit = transport.banner_timeout = transport.handshake_timeout = clock.left(HANDSHAKE_TIMEOUT)
        began = time.monotonic()
        try:
            transport.start_client(timeout=limit)
            key = transport.get_remote_server_key()
        except (self._paramiko.SSHException, OSError, EOFError) as error:
            clock.left()
            # paramiko reports the same error for a silent server and one that hangs up.
            silent = time.monotonic() - began >= 0.9 * limit
            greeted = bool(transport.remote_version)
            raise _handshake_error(hop, str(error), silent=silent, greeted=greeted) from None
        self._host_keys.check(hop, entries, key.get_name(), key.asbytes(), direct=direct)

    def _through(self, hop: Hop, jumps: tuple[Hop, ...], clock: Clock) -> Any:
        """Open a channel to `hop` over the connection to the last jump host, which all its nodes share."""
        last = jumps[-1]
        with self._lock:
            lock, held = self._jumps.setdefault(jumps, (threading.Lock(), []))
        with lock:
            if not held or not (isinstance(held[0], NodeError) or held[0].is_active()):
                held[:] = [self._jump_host(last, jumps[:-1], clock)]
        if isinstance(held[0], NodeError):
            raise held[0]
        try:
            limit = clock.left(hop.connect_timeout)
            there, here = (hop.host, hop.port), ("127.0.0.1", 0)
            return held[0].open_channel("direct-tcpip", there, here, timeout=limit)
        except self._paramiko.ChannelException as error:
            raise unreachable(f"jump host {last.address} cannot reach {hop.address}: {error.text}") from None
        except (self._paramiko.SSHException, OSError, EOFError):
            clock.left()
            raise unreachable(f"jump host {last.address} opened no connection to {hop.address}") from None

    def _jump_host(self, hop: Hop, jumps: tuple[Hop, ...], clock: Clock) -> paramiko.Transport | NodeError:
        """Open a shared connection to a jump host, or return its error: a dead one is waited for once."""
        with contextlib.ExitStack() as stack:
            try:
                transport = self._connect(hop, jumps, clock, stack)
            except NodeError as error:
                return NodeError(error.kind, f"jump host {hop.address}: {error.what}", error.fix)
            self._open.pop(id(transport), None)  # it outlives the node that first needed it
            with self._lock:
                self._shared.push(stack.pop_all())
            return transport


def _imported() -> Any:
    """Import paramiko without `invoke`, an optional module that takes a third of the import time.
    `invoke` runs `Match exec` commands in paramiko's own ssh_config parser, which is not used here."""
    absent = "paramiko" not in sys.modules and "invoke" not in sys.modules
    if absent:
        sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        import paramiko
    finally:
        if absent:
            del sys.modules["invoke"]
    return paramiko


_PARAMIKO = _imported()


def _type_of_key(algorithm: str) -> str:
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def _disabled(transport: type[paramiko.Transport], hop: Hop) -> dict[str, list[str]]:
    """Return the algorithms that `hop`'s ssh options exclude, by paramiko's kinds ("+", "^": none)."""
    disabled = {}
    for kind, text in hop.algorithms:
        if text[:1] in "+^":
            continue
        ours = getattr(transport, f"_preferred_{kind}")
        named = set(text.lstrip("-").split(","))
        # ssh accepts two names for one algorithm.
        named |= {f"{name}@libssh.org" for name in named if name == "curve25519-sha256"}
        disabled[kind] = [name for name in ours if (name in named) == text.startswith("-")]
    return disabled


def _handshake_error(hop: Hop, said: str, *, silent: bool, greeted: bool) -> NodeError:
    late = silent or "timed out" in said or "timeout" in said.lower()
    if "Indecipherable" in said or "Invalid SSH banner" in said or "codec" in said:
        return unreachable(f"the service on {hop.address} is not an SSH server", "correct ansible_port")
    if not (late or greeted):
        return _ClosedError(hop)
    if late or not said or "No existing session" in said:
        return hung(f"{hop.address} accepted the connection and then sent nothing")
    return unreachable(
        f"no SSH session with {hop.address}: {one_line(said)}", "compare sshd's settings there"
    )


class _ClosedError(NodeError):
    """A server closed the connection before its SSH banner."""

    def __init__(self, hop: Hop, tries: int = 1, seconds: float = 0.0) -> None:
        who = f"the jump host of the ProxyCommand to {hop.address}" if hop.proxy_command else hop.address
        super().__init__(
            "unreachable",
            f"{who} closed the connection before an SSH banner came ({tries} tries in {seconds:.0f} s)",
            "look at sshd's log there: MaxStartups (raise it, or give fewer --connections), access rules, "
            "a full disk; then run again",
        )


def tcp(hop: Hop, clock: Clock) -> socket.socket:
    """Open a TCP connection to `hop`. Raises NodeError."""
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
    """Start `hop`'s ProxyCommand without a shell; return its stream and a reader of its errors so far.
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
