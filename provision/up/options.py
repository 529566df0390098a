"""The options of one `up`, and the state that the runs it resumes left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.events import OnEvent
from provision.fleet import Fleet
from provision.up.waves import Share

EXPECTATIONS, QUICK = "expectations", "quick"  # what a wave's nodes must pass before the next is begun


@dataclass(frozen=True)
class EarlierRuns:
    """What the runs that are resumed left. `ids`: their locks are taken over; `ended`: nodes that were
    finished; `changed`: those that were brought there; `drained`: those that are still out of service;
    `begun`: those whose wave was begun and that were not finished; `applied`: node → roles that --full has
    applied there to their end."""

    ids: tuple[str, ...] = ()
    ended: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()
    applied: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class UpOptions:
    """More than `max_failures` nodes in trouble: no further wave is begun. `remove`: roles to be taken off,
    the last one first."""

    wave_size: Share | None = None
    canary: bool = True
    full: bool = False
    max_failures: Share = Share(0)  # noqa: RUF009 - it is frozen
    gate: str = EXPECTATIONS
    may_reboot: bool = True
    reboots_at_once: int | None = None
    check_mode: bool = False
    diff: bool = False
    verbosity: int = 0  # as Ansible's -v, -vv …
    break_lock: bool = False
    forks: int = 50
    connections: int = 64
    timeout: float = 60.0  # seconds a node has to answer
    wave_minutes: float | None = None
    remove: tuple[str, ...] = ()
    earlier: EarlierRuns = EarlierRuns()


# The health gate of a wave: node → what was found, of those that did not pass.
Gate = Callable[[Fleet, Mapping[str, Any], Sequence[str], UpOptions, OnEvent], Mapping[str, str]]
