"""Surroundings of a watch: health changes, checks of spares, receivers of messages, and its pace."""

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
    """Intervals of the watch's activities, in seconds."""

    least: float = 0.2  # minimum between two rounds without a failure
    wait: float = 1.0  # maximum between two rounds
    ask_all: float = 30.0  # between two queries to the scheduler for all nodes
    ask_some: float = 5.0  # maximum age of its answer about a failed node or a spare
    stuck: float = 60.0  # until an incident stopped by an error is retried
    beat: float = heartbeat.EVERY  # between two heartbeats


class Stream(Protocol):
    """Stream of health changes: provision.validate.status.stream.HealthStream."""

    def changes(self, seconds: float) -> Sequence[NodeStatus]:
        """Return changed nodes, each in its latest state; wait at most `seconds`."""


class Checks(Protocol):
    """Checks run by the watch: provision.api.spare_checks.SpareChecks."""

    def verify(self, spare: str) -> Checked: ...
    def evidence(self, incident: Incident) -> str: ...
    def stop(self) -> None: ...


class People(Protocol):
    """Receivers of messages: provision.up.watch.tell.Teller."""

    def tell(self, message: Message) -> None:
        """Queue a message; returns once it is on disk."""

    def settle(self, over: Callable[[Message], bool]) -> None:
        """Close messages for which `over` is true."""
