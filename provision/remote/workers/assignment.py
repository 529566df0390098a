"""Decisions about who does what in a mesh: pure functions of what is known and of the time.

Nothing here reads a clock or a socket, so that the same code decides for three workers and in a simulation
of forty.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# The word of a unit comes every worker_stream.BEAT seconds; Receptor notices a cut within 21 s a hop (twice
# its route updates and one second: MaxConnectionIdleTime in pkg/netceptor/netceptor.go), and says so to the
# others.
SILENCE = 60.0  # seconds without a word of a unit after which it is asked for
LEASE = 120.0  # seconds without a route to its controller after which a unit whose nodes others can do ends
# Seconds more that the controller waits: until the cut is noticed there, and Ansible has ended.
MARGIN = 120.0
# Seconds after a cut till a unit has to be heard of again: Receptor tries once a minute by then (MaxWorkSleep
# in pkg/workceptor/workunitbase.go), and may need some for a connection.
RETURN = 120.0
PATIENCE = 600.0  # seconds a unit that is cut off is waited for where nobody else can do its nodes


def spread(
    candidates: Mapping[str, Sequence[str]], unusable: Collection[str], busy: Mapping[str, int] | None = None
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The nodes of each worker, and the worker that stands for those nobody can do.

    `candidates`: node → the workers that reach it; `unusable`: workers that cannot be used now; `busy`:
    worker → how many nodes it has already. Each node goes to the one of its workers that has the fewest,
    those without a choice first; in the order of the inventory, so that the same input gives the same
    answer."""
    count = Counter(busy or {})
    usable = {node: [name for name in names if name not in unusable] for node, names in candidates.items()}
    chosen: dict[str, str] = {}
    for node in sorted(usable, key=lambda node: len(usable[node]) > 1):
        if found := usable[node]:
            chosen[node] = min(found, key=lambda name: (count[name], found.index(name)))
            count[chosen[node]] += 1
    shares: dict[str, list[str]] = {}
    for node in candidates:
        if node in chosen:
            shares.setdefault(chosen[node], []).append(node)
    return shares, {node: names[0] for node, names in candidates.items() if node not in chosen}


class Fate(enum.Enum):
    """What to do about a unit that has not come to its end."""

    WAIT = "wait"
    STOP = "end it"  # its worker can be reached, and it says nothing: it hangs
    LOST = "lost"  # it does nothing any more
    LEFT = "left alone"  # it may go on, and be collected later


@dataclass(frozen=True)
class Known:
    """What the controller knows of a unit. Times in seconds of one clock."""

    heard: float  # when it said something, or was begun
    deadline: float  # when it ends by itself at the latest
    lease: float | None  # LEASE where others can do its nodes; None where it is worth waiting for
    route: bool  # whether the mesh has a way to its worker now
    ending: bool = False  # it was told to end, and its worker has heard it
    away: float = -math.inf  # when the mesh had no way to it


def fate(unit: Known, now: float) -> Fate:
    """A unit is given up only when it cannot be at work any more: it was ended, or its lease or its time is
    up. Till then no other worker may touch its nodes."""
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
