"""The plan of `up`, from drifts: roles, packages, restarts, reboots, minutes, waves (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.desired.expectations import HARDWARE, roles_in_order
from provision.drift.drifts import Drift
from provision.remote.observe import Observation
from provision.up import package_changes, waves
from provision.up.durations import Expected, Minutes, kind_of
from provision.up.package_changes import PackageChange

_LOADED = ("driver", "kernel", "module", "rdma")  # families of facts about what the kernel has in memory
FORKS = 50  # nodes `up` changes at the same time unless it is told otherwise


@dataclass(frozen=True)
class NodePlan:
    """What `up` would do to one node. `roles` in the order they run; `drifts` are the reasons.

    Drifts of the hardware are among them though no role can repair those. `packages` are those that are
    promised by name; what they depend on comes with them. `restarts`: units. `reboot`: one may be needed;
    `reboot_sure`: it will be; `reboot_because`: one line for each reason. `learnt_from`: how many runs
    `minutes` were learnt from (of its parts, the fewest), 0 when a part of them is an estimate.
    """

    node: str
    roles: tuple[str, ...]
    drifts: tuple[Drift, ...]
    reboot: bool
    minutes: float
    packages: tuple[PackageChange, ...] = ()
    restarts: tuple[str, ...] = ()
    reboot_sure: bool = False
    reboot_because: tuple[str, ...] = ()
    learnt_from: int = 0

    @property
    def as_declared(self) -> bool:
        return not self.roles and not self.drifts


@dataclass(frozen=True)
class Plan:
    """What `up` would do to the fleet. `unreachable`: node → why nothing can be said about it."""

    nodes: Mapping[str, NodePlan]
    waves: tuple[waves.Wave, ...]
    unreachable: Mapping[str, str]

    def minutes(self, forks: int = FORKS) -> Expected:
        """For all of it: waves one after the other, each as long as its slowest node, or as what `forks`
        nodes at a time need for all of its nodes."""
        total = 0.0
        for wave in self.waves:
            each = [self.nodes[node].minutes for node in wave]
            total += max(max(each), sum(each) / max(1, forks))
        busy = [self.nodes[node].learnt_from for wave in self.waves for node in wave]
        return Expected(total, min(busy, default=0))


def make(
    found: Mapping[str, Sequence[Drift]],
    observations: Mapping[str, Observation],
    *,
    wave_size: int | None = None,
    full: bool = False,
    first: Mapping[str, int] | None = None,
    takes_part: Mapping[str, Collection[str]] | None = None,
    rollout: waves.Rollout | None = None,
    minutes: Minutes | None = None,
) -> Plan:
    """`found` has the drifts of each node that answered. `full`: every role a node takes part in
    (`takes_part`, by default all). `minutes`: what is known of durations (default: estimates).

    Waves of `wave_size` nodes (None: one wave) hold the nodes with something to do; nodes of a lower number
    in `first` come first, and never share a wave with those of a higher one; `rollout` says more of that
    (canaries, racks), and then counts alone. A fact that could not be read
    calls for its role: the plan cannot promise that the node is as declared."""
    everything = roles_in_order() if full else ()
    durations = minutes or Minutes()
    nodes = {
        node: _of_node(
            node,
            drifts,
            observations[node].facts if node in observations else {},
            (takes_part or {}).get(node, everything) if full else (),
            durations,
        )
        for node, drifts in found.items()
    }
    busy = [node for node, plan in nodes.items() if plan.roles]
    silent = {node: said.error for node, said in observations.items() if said.error is not None}
    divided = rollout.waves(busy) if rollout else waves.make(busy, wave_size, first or {})
    return Plan(nodes, divided, silent)


def _of_node(
    node: str,
    drifts: Sequence[Drift],
    facts: Mapping[str, Any],
    anyway: Collection[str],
    durations: Minutes,
) -> NodePlan:
    needed = {drift.expectation.role for drift in drifts} - {HARDWARE}
    roles = tuple(role for role in roles_in_order() if role in anyway or role in needed)
    ours = [drift for drift in drifts if drift.expectation.role != HARDWARE]
    waiting = [drift for drift in ours if drift.expectation.reboot and not drift.unknown]
    asks = facts.get("boot.required") is True and bool(roles)
    expected = _durations(roles, ours, facts, durations, reboot=bool(waiting) or asks)
    return NodePlan(
        node,
        roles,
        tuple(drifts),
        bool(waiting) or asks,
        sum(each.minutes for each in expected),
        package_changes.of_node(ours, facts),
        tuple(dict.fromkeys(unit for drift in ours for unit in drift.expectation.restarts)),
        asks or any(_in_use(drift) for drift in waiting),
        (*(_because(drift) for drift in waiting), *([_asked_for(facts)] if asks else [])),
        min((each.runs for each in expected), default=0),
    )


def _durations(
    roles: Sequence[str],
    drifts: Sequence[Drift],
    facts: Mapping[str, Any],
    durations: Minutes,
    *,
    reboot: bool,
) -> list[Expected]:
    kind = kind_of(facts)
    installing = {d.expectation.role for d in drifts if package_changes.is_package(d.expectation.fact)}
    found = [durations.role(role, kind, role in installing) for role in roles]
    return [*found, durations.reboot(kind)] if reboot else found


def _in_use(drift: Drift) -> bool:
    """Whether the kernel has something else in memory than the declared, which no role takes from under its
    users. Where nothing is (no driver loaded), and for settings, the role first tries without a reboot."""
    return drift.expectation.fact.partition(".")[0] in _LOADED and drift.found not in (None, False, "", [])


def _because(drift: Drift) -> str:
    expectation = drift.expectation
    return f"{expectation.fact} ({expectation.role}): {expectation.why}"


def _asked_for(facts: Mapping[str, Any]) -> str:
    reason = facts.get("boot.reason")
    words = ", ".join(map(str, reason)) if isinstance(reason, list) else str(reason or "it gave no reason")
    return f"the node itself requests one: {words}"
