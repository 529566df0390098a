"""Conversion of a node's times to the controller's clock, whatever the node's own clock shows (pure).

A node's wall clock may be hours off, or be set while it burns. Its seconds since boot only go on: whenever
the controller heard from it, both clocks were known at once.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from provision.burnin.spool import Event

APART = 30.0  # seconds between the two clocks that nobody should live with


@dataclass(frozen=True)
class Contact:
    """An answer of the node: seconds since the epoch here (`at`) and there (`now`), and since its boot."""

    at: float
    now: float
    up: float
    boot: str


class Clock:
    """The moments of one node as seconds since the epoch by the controller's clock."""

    def __init__(self, contacts: Iterable[Contact], events: Iterable[Event]) -> None:
        self._zero: dict[str, float] = {}  # boot → when it was, by the controller's clock
        known = list(contacts)
        for boot in {contact.boot for contact in known}:
            self._zero[boot] = min(c.at - c.up for c in known if c.boot == boot)  # the quickest answer
        self.skew = statistics.median(c.now - c.at for c in known) if known else 0.0
        for event in events:
            if event.boot not in {contact.boot for contact in known}:
                # Nobody spoke with it in that boot. Its last word on the time is its best: clocks are set
                # late.
                self._zero[event.boot] = event.t - event.up - self.skew

    def at(self, boot: str, t: float, up: float) -> float:
        """The moment of something the node dated `t`, `up` seconds after that boot."""
        zero = self._zero.get(boot)
        return t - self.skew if zero is None else zero + up
