"""The types of `up`: its options, what a look at a node found, and the interface of its executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from provision.drift.drifts import Drift
from provision.remote.ansible.events import Outcome
from provision.up.waves import Share, Wave

EXPECTATIONS, QUICK = "expectations", "quick"  # what a wave's nodes must pass before the next is begun


@dataclass(frozen=True)
class EarlierRuns:
    """What the runs that are resumed left. `ids`: their locks are taken over; `ended`: nodes that were
    finished; `changed`: those that were brought there; `drained`: those that are still out of service."""

    ids: tuple[str, ...] = ()
    ended: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()


@dataclass(frozen=True)
class UpOptions:
    """The options of one `up`. More than `max_failures` nodes in trouble: no further wave is begun.
    `confirm`: ask before anything is changed."""

    wave_size: Share | None = None
    canary: bool = True
    full: bool = False
    max_failures: Share = Share(0)  # noqa: RUF009 - it is frozen
    gate: str = EXPECTATIONS
    may_reboot: bool = True
    reboots_at_once: int | None = None
    check_mode: bool = False
    break_lock: bool = False
    forks: int = 50
    connections: int = 64
    timeout: float = 60.0  # seconds a node has to answer
    wave_minutes: float | None = None
    confirm: bool = False
    json: bool = False
    earlier: EarlierRuns = EarlierRuns()


@dataclass(frozen=True)
class Look:
    """What one look at a node found. `error`: why the node as a whole could not be read."""

    node: str
    drifts: tuple[Drift, ...] = ()
    boot_required: str = ""  # why the node itself asks for a reboot
    error: str = ""
    unreachable: bool = False
    booted: bool = False  # since the look before
    causes: tuple[str, ...] = ()  # what is wrong with its driver stack, and the next step, a line each


class Executor(Protocol):
    """Acts on nodes. Every method answers for every node it was given, and raises for none."""

    def look(self, nodes: Sequence[str]) -> Mapping[str, Look]:
        """Observe nodes again."""

    def apply(self, roles: Mapping[str, tuple[str, ...]]) -> Mapping[str, Outcome]:
        """Run each node's roles."""

    def reboot(self, nodes: Sequence[str]) -> Mapping[str, Outcome]:
        """Reboot nodes, and wait until they are back."""

    def drain(self, wave: int, nodes: Wave) -> Mapping[str, str]:
        """Take nodes out of service: node → why that failed, for those where it did."""

    def undrain(self, wave: int, nodes: Wave) -> Mapping[str, str]:
        """Put nodes back into service: as `drain`."""

    def gate(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """The health gate of nodes that are as declared: node → what is wrong, where it did not pass."""
