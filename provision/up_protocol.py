"""What `up` decides upon, what it touches nodes with, and how careful it is told to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from provision.ansible_events import Outcome
from provision.drift import Drift
from provision.waves import Share, Wave

EXPECTATIONS, QUICK = "expectations", "quick"  # what a wave's nodes must pass before the next is begun


@dataclass(frozen=True)
class Look:
    """What one look at a node said. `error`: the node as a whole could not be asked, and why; `boot`: which
    boot it is in."""

    node: str
    drifts: tuple[Drift, ...] = ()
    boot_required: str = ""  # why the node itself asks for a reboot
    error: str = ""
    unreachable: bool = False
    boot: str = ""
    causes: tuple[str, ...] = ()  # what is wrong with its driver stack, and the next step, a line each


class Hands(Protocol):
    """What touches nodes. Every method answers for every node it was given, and raises for none."""

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
        """Further checks of nodes that are as declared: node → what is wrong, for those that did not pass."""


@dataclass(frozen=True)
class Settings:
    """How careful to be. More than `max_failures` nodes in trouble: no further wave is begun."""

    max_failures: Share = Share(0)  # noqa: RUF009 - it is frozen
    may_reboot: bool = True
    reboots_at_once: int | None = None
    check_mode: bool = False
    role_order: tuple[str, ...] = ()
