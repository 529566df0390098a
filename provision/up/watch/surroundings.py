"""What a watch is given: health as it changes, the checks of spares, who is told, and how often it looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from provision.up.watch import heartbeat
from provision.up.watch.incidents import Incident
from provision.up.watch.steps import Checked, Message
from provision.validate.status.status import NodeStatus


@dataclass(frozen=True)
class Pace:
    """How often the watch does what it does, in seconds."""

    least: float = 0.2  # between two rounds, where nothing failed
    wait: float = 1.0  # at most between two looks at what there is to do
    ask_all: float = 30.0  # between two questions to the scheduler about all nodes
    ask_some: float = 5.0  # for which its word about a node that failed, or a spare, is believed
    stuck: float = 60.0  # until an incident that an error stopped is tried again
    beat: float = heartbeat.EVERY  # between two heartbeats


class Stream(Protocol):
    """Health as it changes: provision.validate.status.stream.HealthStream."""

    def changes(self, seconds: float) -> Sequence[NodeStatus]:
        """What changed, the newest only for each node; waits at most so long."""


class Checks(Protocol):
    """What the watch runs: provision.api.spare_checks.SpareChecks."""

    def verify(self, spare: str) -> Checked: ...
    def evidence(self, incident: Incident) -> str: ...
    def stop(self) -> None: ...


class People(Protocol):
    """Who is told: provision.up.watch.tell.Teller."""

    def tell(self, message: Message) -> None:
        """Have people told; returns when the message is on disk."""

    def settle(self, over: Callable[[Message], bool]) -> None:
        """What was told and is over is no longer shown as open."""
