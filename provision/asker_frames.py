"""Length-prefixed pickle protocol between the parent and its SSH worker processes.

Both ends are ours, of one user on one machine, and nothing else can write to the socket between them. What a
node printed is bytes in a pickle, which nobody looks into on the way.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from provision.connection import Route
from provision.node_error import NodeError

_LENGTH = struct.Struct("!I")


@dataclass(frozen=True)
class Part:
    """What one process is to do: its nodes, and for each which of `programs` (their texts) it runs."""

    routes: Mapping[str, Route]
    programs: tuple[str, ...]
    program_of: Mapping[str, int]
    timeout: float
    connections: int


@dataclass(frozen=True)
class Printed:
    """What a node printed, and the seconds it took."""

    node: str
    output: bytes
    seconds: float


@dataclass(frozen=True)
class Failed:
    """Why there is nothing of a node: the parts of a NodeError."""

    node: str
    kind: str
    what: str
    fix: str
    seconds: float

    @property
    def error(self) -> NodeError:
        return NodeError(self.kind, self.what, self.fix)


@dataclass(frozen=True)
class Awaited:
    """A sign of life: which nodes are waited for, when no other waits for its turn; else none."""

    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Broken:
    """The process ends here because of a mistake of ours."""

    what: str


Said = Part | Printed | Failed | Awaited | Broken


def packed(said: Said) -> bytes:
    """A frame of it."""
    body = pickle.dumps(said, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Bytes as they come in, whole frames as they are complete."""

    def __init__(self) -> None:
        self._got = bytearray()

    def feed(self, data: bytes) -> Iterator[Said]:
        """What is complete with `data`."""
        self._got += data
        while len(self._got) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._got)[0]
            if len(self._got) < end:
                return
            said: Said = pickle.loads(memoryview(self._got)[_LENGTH.size : end].tobytes())  # noqa: S301
            del self._got[:end]
            yield said
