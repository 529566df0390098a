"""The watch's view of a node: the relevant part of its latest health result, and since when (pure)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from provision.checks.judge import Finding, Verdict
from provision.text import one_line
from provision.validate.status.status import NodeStatus

# Failed findings with one of these actions concern the job or the measurement, not the node.
_NO_FAULT = frozenset({"none", "watch", "restart job", "run again"})


@dataclass(frozen=True)
class Seen:
    """One node. `verdict`: of a result that counts, else `error`; `silent`: no answer at all.

    `fatal`: a finding shows that the node is unfit for jobs; `cause`, `device`, `serial` and `action` are
    that finding's. `since`: beginning of this state, seconds since 1970. `trouble`: why the state is
    unknown."""

    node: str
    verdict: Verdict
    since: float
    silent: bool = False
    fatal: bool = False
    cause: str = ""
    device: str = "node"
    serial: str = ""
    action: str = "none"
    trouble: str = ""

    @property
    def healthy(self) -> bool:
        return self.verdict in (Verdict.PASS, Verdict.WARN) and not self.fatal

    def same_as(self, other: Seen | None) -> bool:
        """Return whether at most the time differs."""
        return other is not None and replace(self, since=0.0) == replace(other, since=0.0)

    def row(self, at: float) -> dict[str, Any]:
        """Return a line of the history."""
        return {
            "at": round(at, 3),
            "node": self.node,
            "verdict": self.verdict.value,
            "silent": self.silent,
            "fatal": self.fatal,
            "cause": self.cause,
            "device": self.device,
            "serial": self.serial,
            "action": self.action,
            "trouble": self.trouble,
        }


class Silences:
    """How long nodes have been silent, by a clock that nobody steps."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}

    def saw(self, one: Seen) -> None:
        if one.silent:
            self._since.setdefault(one.node, self._clock())
        else:
            self._since.pop(one.node, None)

    def seconds(self) -> dict[str, float]:
        """Silent node → seconds."""
        now = self._clock()
        return {name: now - since for name, since in self._since.copy().items()}

    def restart(self, nodes: Iterable[str]) -> None:
        """Count from now: so far it may have been the network that was silent."""
        self._since |= dict.fromkeys(self._since.keys() & nodes, self._clock())


def seen(status: NodeStatus, at: float, before: Seen | None = None) -> Seen:
    """Extract the relevant part of a node's latest result."""
    silent = status.state == "unreachable"
    found = Seen(status.node, status.verdict, at, silent, trouble=one_line(status.trouble, 300))
    counting = [held.finding for held in status.held if held.state != "pending"]
    fatal = [one for one in counting if one.verdict is Verdict.FAIL and one.action not in _NO_FAULT]
    if fatal:
        first = fatal[0]
        found = replace(
            found,
            fatal=True,
            cause=_cause(first),
            device=one_line(first.device, 60),
            serial=_serial(first, status),
            action=first.action,
        )
    # The reason why a silent node does not answer varies from try to try.
    lasts = before is not None and (found.same_as(before) or (found.silent and before.silent))
    since = before.since if before is not None and lasts else at
    return replace(found, since=since)


def _cause(finding: Finding) -> str:
    named = finding.device == "node" or finding.message.startswith(finding.device)
    return one_line(finding.message if named else f"{finding.device}: {finding.message}", 300)


def _serial(finding: Finding, status: NodeStatus) -> str:
    """Return the serial number of the GPU named by a finding."""
    gpus = status.document.gpus if status.document is not None else ()
    return next((gpu.serial for gpu in gpus if f"gpu{gpu.index}" == finding.device), "")


def recorded(row: Mapping[str, Any]) -> Seen:
    """Convert a line of the history back to a node's state. Raises ValueError for an invalid line."""
    texts = ("node", "cause", "device", "serial", "action", "trouble")
    if not all(isinstance(row.get(name), str) for name in texts):
        raise ValueError(f"{', '.join(texts)} must be texts")
    at = row.get("at")
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise ValueError("at must be a number")
    return Seen(
        verdict=Verdict(row.get("verdict")),
        since=float(at),
        silent=row.get("silent") is True,
        fatal=row.get("fatal") is True,
        **{name: one_line(row[name], 300) for name in texts},
    )
