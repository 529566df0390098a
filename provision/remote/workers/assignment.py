"""Decisions about the distribution of work in a mesh: pure functions of known state and time.

Nothing here reads a clock or a socket, so the same code decides for three workers and in a simulation of
forty.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# A unit sends a heartbeat every worker_stream.BEAT seconds; Receptor detects a broken link within 21 s per
# hop (twice its route updates plus one second: MaxConnectionIdleTime in pkg/netceptor/netceptor.go) and
# announces it to the other nodes.
SILENCE = 60.0  # seconds without output of a unit after which its state is queried
LEASE = 120.0  # seconds without a route to the controller until a unit ends itself if others can take over
# Extra seconds for the worker to detect the broken link and for Ansible to end.
MARGIN = 120.0
# Seconds after a reconnection until a unit must be heard from again: by then Receptor retries once a minute
# (MaxWorkSleep in pkg/workceptor/workunitbase.go), and may need time to connect.
RETURN = 120.0
PATIENCE = 600.0  # seconds to wait for an unreachable unit if no other worker can take over


def spread(
    candidates: Mapping[str, Sequence[str]], unusable: Collection[str], busy: Mapping[str, int] | None = None
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Distribute nodes among workers; return worker → nodes, and node → a worker if none is usable.

    `candidates`: node → the workers that reach it; `unusable`: workers that cannot be used now; `busy`:
    worker → number of nodes assigned earlier. Each node goes to the least loaded of its workers, nodes
    without a choice first, in inventory order, so that the result is deterministic. A node without a usable
    worker is returned with the first of its workers."""
    count = Counter(busy or {})
    usable = {node: [name for name in names if name not in unusable] for node, names in candidates.items()}
    chosen: dict[str, str] = {}
    for node in sorted(usable, key=lambda node: len(usable[node]) > 1):
        if reachable := usable[node]:
            chosen[node] = min(reachable, key=lambda name: (count[name], reachable.index(name)))
            count[chosen[node]] += 1
    shares: dict[str, list[str]] = {}
    for node in candidates:
        if node in chosen:
            shares.setdefault(chosen[node], []).append(node)
    return shares, {node: names[0] for node, names in candidates.items() if node not in chosen}


class Fate(enum.Enum):
    """Decision about a unit that has not ended."""

    WAIT = "wait"
    STOP = "end it"  # its worker is reachable, but the unit is silent: it hangs
    LOST = "lost"  # it is no longer working
    LEFT = "left alone"  # it may still be working, and can be collected later


@dataclass(frozen=True)
class Known:
    """The controller's knowledge of a unit, with times in seconds of one clock."""

    heard: float  # time of its last output, or of its start
    deadline: float  # latest time at which it ends by itself
    lease: float | None  # LEASE if others can take over; None if only this unit can do the work
    route: bool  # the mesh has a route to its worker now
    ending: bool = False  # its worker has confirmed the request to end it
    away: float = -math.inf  # last time without a route to its worker


def fate(unit: Known, now: float) -> Fate:
    """Decide about a unit, giving it up only when it cannot be working any longer.

    That is when it was ended, or its lease or deadline has passed. Until then no other worker may touch its
    nodes."""
    silent = now - unit.heard
    if unit.ending or now > unit.deadline + MARGIN:
        return Fate.LOST
    if silent <= SILENCE:
        return Fate.WAIT
    if unit.route:
        return Fate.STOP if now - unit.away > RETURN else Fate.WAIT
    if unit.lease is not None:
        return Fate.LOST if silent > unit.lease + MARGIN else Fate.WAIT
    return Fate.LEFT if silent > PATIENCE else Fate.WAIT
