"""How perftest's client finds its server on another node: over TCP, as the real one does.

Each says who it is and how fast, or how late, its card is; the worse of both, and a fault of the link between
them, decide what is measured.
"""

import contextlib
import json
import select
import socket
import sys
import time

_LONGEST = 65536  # bytes of what the other one says
_PATIENCE = 60.0  # seconds
# what is measured -> the faults' word for it, which of two ends decides
_MEASURED = {"rate": ("slow", min), "latency": ("late", max)}


@contextlib.contextmanager
def bound(node, port: int):
    """What the kernel will show of a server: on a node a socket, yet to listen; for others nothing (None)."""
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
    """Serve one client, if one is there within a moment: what both agreed on, else None."""
    ready, _, _ = select.select([listener], [], [], 0.02)
    if not ready:
        return None
    connection, _ = listener.accept()
    with connection:
        theirs = _said(connection, mine)
        if theirs is None:
            return None  # somebody who only looked
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
    """A client's connection: what both agreed on; None when nobody listens. It ends with the context."""
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
    """The line the other one says about itself, of what this one measures."""
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
        said = json.loads(line)
        return {"name": str(said["name"]), _measured(mine): float(said[_measured(mine)])}
    except (ValueError, KeyError, TypeError):
        return None


def _agreed(node, mine: dict, theirs: dict) -> dict:
    """The rate between the two in Gb/s, or the latency in microseconds, as this end sees it: both know of the
    faults at their own end."""
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
    while True:  # until somebody ends it
        time.sleep(0.5)
