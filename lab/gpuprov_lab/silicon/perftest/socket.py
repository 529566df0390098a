"""The TCP connection of perftest's client to its server on another node, as in the real program.

Each end sends its name and its card's rate or latency; the worse of both, and a fault of the link between
them, determine the result.
"""

import contextlib
import json
import select
import socket
import sys
import time

_LONGEST = 65536  # bytes of the other end's message
_PATIENCE = 60.0  # seconds
# measured quantity -> the name of its faults, the choice between the two ends
_MEASURED = {"rate": ("slow", min), "latency": ("late", max)}


@contextlib.contextmanager
def bound(node, port: int):
    """Yield a server's bound socket, which is visible in the kernel, on a node; elsewhere None."""
    listener = None
    if str(node.root) == "/":
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            print(f"Couldn't listen to port {port}", file=sys.stderr)
            sys.exit(1)
    try:
        yield listener
    finally:
        if listener is not None:
            listener.close()


def is_remote(host: str) -> bool:
    """Whether a client's server is on another node."""
    return host not in ("localhost", "127.0.0.1", "::1", "")


def answer(node, listener, mine: dict):
    """Serve one client, if one connects within 0.02 s: return the agreed result, else None."""
    ready, _, _ = select.select([listener], [], [], 0.02)
    if not ready:
        return None
    connection, _ = listener.accept()
    with connection:
        theirs = _said(connection, mine)
        if theirs is None:
            return None  # a connection without a message
        if _hangs(node, theirs["name"]):
            _hang()
        agreed = _agreed(node, mine, theirs)
        connection.settimeout(_PATIENCE)
        try:
            connection.sendall(json.dumps(dict(mine, **agreed)).encode() + b"\n")
            done = connection.recv(1)  # the client is done, or gone
        except OSError:
            done = b""
        return agreed if done else dict(agreed, lost=True)


@contextlib.contextmanager
def asked(node, host: str, port: int, mine: dict):
    """Connect to a server and yield the agreed result; None if none listens. Closes with the context."""
    try:
        connection = socket.create_connection((host, port), _PATIENCE)
    except OSError:
        yield None
        return
    with connection:
        connection.sendall(json.dumps(mine).encode() + b"\n")
        theirs = _said(connection, mine)
        if theirs is None:
            yield None
            return
        if _hangs(node, theirs["name"]):
            _hang()
        agreed = _agreed(node, mine, theirs)
        yield agreed
        with contextlib.suppress(OSError):
            connection.sendall(b".")


def _said(connection, mine: dict):
    """Receive the other end's line with its name and its value of the measured quantity."""
    connection.settimeout(_PATIENCE)
    line = b""
    while not line.endswith(b"\n"):
        try:
            data = connection.recv(4096)
        except OSError:
            return None
        line += data
        if not data or len(line) > _LONGEST:
            return None
    try:
        message = json.loads(line)
        return {"name": str(message["name"]), _measured(mine): float(message[_measured(mine)])}
    except (ValueError, KeyError, TypeError):
        return None


def _agreed(node, mine: dict, theirs: dict) -> dict:
    """Return the rate in Gb/s, or the latency in microseconds, including the faults known to this end."""
    key = _measured(mine)
    word, worse = _MEASURED[key]
    value = mine[key] * node.factor(f"link_{word}", peer=theirs["name"]) * node.factor(f"peers_{word}")
    return {key: worse(value, theirs[key])}


def _measured(mine: dict) -> str:
    return next(key for key in _MEASURED if key in mine)


def _hangs(node, name: str) -> bool:
    return bool(node.fault("peers_hang") or node.fault("link_hang", peer=name))


def _hang() -> None:
    sys.stdout.flush()
    while True:  # until killed
        time.sleep(0.5)
