"""The options of one `up`, and the state left by the runs it resumes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.events import OnEvent
from provision.fleet import Fleet
from provision.up.waves import Share

EXPECTATIONS, QUICK = "expectations", "quick"  # health gates of a wave


@dataclass(frozen=True)
class EarlierRuns:
    """State left by the resumed runs.

    `ids`: runs whose locks are taken over; `ended`: finished nodes; `changed`: nodes finished with changes;
    `drained`: nodes still out of service; `begun`: unfinished nodes of begun waves; `applied`: node → roles
    that --full applied completely."""

    ids: tuple[str, ...] = ()
    ended: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()
    begun: frozenset[str] = frozenset()
    applied: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class UpOptions:
    """Options of `up`. With more than `max_failures` nodes in trouble, no further wave begins.

    `remove`: roles to remove, the last one first."""

    wave_size: Share | None = None
    canary: bool = True
    full: bool = False
    max_failures: Share = Share(0)  # noqa: RUF009 - it is frozen
    gate: str = EXPECTATIONS
    may_reboot: bool = True
    reboots_at_once: int | None = None
    check_mode: bool = False
    diff: bool = False
    verbosity: int = 0  # number of Ansible's -v
    break_lock: bool = False
    forks: int = 50
    connections: int = 64
    timeout: float = 60.0  # seconds a node has to answer
    wave_minutes: float | None = None
    remove: tuple[str, ...] = ()
    earlier: EarlierRuns = EarlierRuns()


# The health gate of a wave; returns the finding of each node that did not pass.
Gate = Callable[[Fleet, Mapping[str, Any], Sequence[str], UpOptions, OnEvent], Mapping[str, str]]
