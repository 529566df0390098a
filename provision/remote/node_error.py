"""The error of one node that could not be reached or read, and the time limit for reaching it."""

from __future__ import annotations

import time

from provision.errors import GpuprovError

KINDS = (
    "unreachable",
    "host key",
    "auth",
    "sudo",
    "python",
    "hung",
    "cut",
    "garbage",
    "too large",
    "ansible",
)


class NodeError(GpuprovError):
    """One node's trouble: `kind` is one of KINDS, `what` the cause, `fix` the next step."""

    def __init__(self, kind: str, what: str, fix: str) -> None:
        assert kind in KINDS  # noqa: S101
        super().__init__(what, fix)
        self.kind = kind

    def __reduce__(self) -> tuple[type[NodeError], tuple[str, str, str]]:
        return type(self), (self.kind, self.what, self.fix)  # else pickle knows no kind

    @property
    def unreachable(self) -> bool:
        """The node was silent, or would not have us: nothing ran on it."""
        return self.kind in ("unreachable", "host key", "auth", "hung")


def unreachable(
    what: str, fix: str = "is it powered on, and are address, port and network right?"
) -> NodeError:
    return NodeError("unreachable", what, fix)


def hung(what: str) -> NodeError:
    return NodeError("hung", what, "log in and check load, memory and stuck processes; then run again")


class Clock:
    """The time left for one node."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    @property
    def overdue(self) -> float:
        """Seconds since the time was up; negative while there is some."""
        return time.monotonic() - self._end

    def left(self, at_most: float = 3600.0) -> float:
        """Seconds left, at most `at_most`. Raises NodeError when there are none."""
        if self.overdue >= 0:
            raise hung(f"no answer within {self.seconds:g} s")
        return min(-self.overdue, at_most)
