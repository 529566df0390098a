"""Drifts → roles, reboots, waves, minutes (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provision.drift import Drift
from provision.observe import Observation


@dataclass(frozen=True)
class NodePlan:
    """What `up` would do to one node. `roles` in the order they run; `drifts` are the reasons."""

    node: str
    roles: tuple[str, ...]
    drifts: tuple[Drift, ...]
    reboot: bool
    minutes: float

    @property
    def as_declared(self) -> bool:
        return not self.roles


@dataclass(frozen=True)
class Plan:
    """What `up` would do to the fleet. `unreachable`: node → why nothing can be said about it."""

    nodes: Mapping[str, NodePlan]
    waves: tuple[tuple[str, ...], ...]
    unreachable: Mapping[str, str]


def make(
    found: Mapping[str, Sequence[Drift]],
    observations: Mapping[str, Observation],
    *,
    wave_size: int | None = None,
    full: bool = False,
) -> Plan:
    """`found` has the drifts of each node that answered. `full`: every role on every such node. Waves of `wave_size`
    nodes (None: one wave)."""
    raise NotImplementedError
