"""Drifts → roles, reboots, minutes (pure, but for one table of estimates)."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision import paths, waves, yamlfile
from provision.drift import Drift
from provision.expectations import HARDWARE, roles_in_order
from provision.observe import Observation


@dataclass(frozen=True)
class NodePlan:
    """What `up` would do to one node. `roles` in the order they run; `drifts` are the reasons.

    Drifts of the hardware are among them though no role can repair those. `reboot`: one may be needed.
    """

    node: str
    roles: tuple[str, ...]
    drifts: tuple[Drift, ...]
    reboot: bool
    minutes: float

    @property
    def as_declared(self) -> bool:
        return not self.roles and not self.drifts


@dataclass(frozen=True)
class Plan:
    """What `up` would do to the fleet. `unreachable`: node → why nothing can be said about it."""

    nodes: Mapping[str, NodePlan]
    waves: tuple[waves.Wave, ...]
    unreachable: Mapping[str, str]


def make(
    found: Mapping[str, Sequence[Drift]],
    observations: Mapping[str, Observation],
    *,
    wave_size: int | None = None,
    full: bool = False,
    first: Mapping[str, int] | None = None,
    takes_part: Mapping[str, Collection[str]] | None = None,
    rollout: waves.Rollout | None = None,
) -> Plan:
    """`found` has the drifts of each node that answered. `full`: every role a node takes part in
    (`takes_part`, by default all).

    Waves of `wave_size` nodes (None: one wave) hold the nodes with something to do; nodes of a lower number
    in `first` come first, and never share a wave with those of a higher one; `rollout` says more of that
    (canaries, racks), and then counts alone. A fact that could not be read
    calls for its role: the plan cannot promise that the node is as declared."""
    everything = roles_in_order() if full else ()
    nodes = {
        node: _of_node(node, drifts, (takes_part or {}).get(node, everything) if full else ())
        for node, drifts in found.items()
    }
    busy = [node for node, plan in nodes.items() if plan.roles]
    silent = {node: said.error for node, said in observations.items() if said.error is not None}
    divided = rollout.waves(busy) if rollout else waves.make(busy, wave_size, first or {})
    return Plan(nodes, divided, silent)


def _of_node(node: str, drifts: Sequence[Drift], anyway: Collection[str]) -> NodePlan:
    needed = {drift.expectation.role for drift in drifts} - {HARDWARE}
    roles = tuple(role for role in roles_in_order() if role in anyway or role in needed)
    reboot = any(drift.expectation.reboot and not drift.unknown for drift in drifts)
    table = _minutes()
    minutes = sum(table["roles"].get(role, table["other"]) for role in roles) + (
        table["reboot"] if reboot else 0
    )
    return NodePlan(node, roles, tuple(drifts), reboot, float(minutes))


@functools.cache
def _minutes() -> Mapping[str, Any]:
    return yamlfile.load_mapping(paths.DATA / "minutes.yml")
