"""The plan of `up`, from drifts: roles, package changes, restarts, reboots, minutes, waves (pure)."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.desired.expectations import HARDWARE, roles_in_order
from provision.drift.drifts import Drift
from provision.remote.reach.observe import Observation
from provision.up import waves
from provision.up.durations import Expected, Minutes, kind_of

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
    """What `up` would do to the fleet. `unreachable`: node → why nothing can be said about it; `scheduler`:
    node → why its scheduler could not take it out of service, so that `up` would not touch it."""

    nodes: Mapping[str, NodePlan]
    waves: tuple[waves.Wave, ...]
    unreachable: Mapping[str, str]
    scheduler: Mapping[str, str] = field(default_factory=dict)

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
    full: bool = False,
    takes_part: Mapping[str, Collection[str]] | None = None,
    remove: Sequence[str] = (),
    rollout: waves.Rollout | None = None,
    minutes: Minutes | None = None,
) -> Plan:
    """`found` has the drifts of each node that answered. `full`: every role a node takes part in
    (`takes_part`, by default all). `remove`: the order of the roles, where these are taken off. `minutes`:
    what is known of durations (default: estimates).

    `rollout` divides the nodes with something to do into waves. A fact that could not be read calls for its
    role: the plan cannot promise that the node is as declared."""
    order = tuple(remove) or roles_in_order()
    everything = order if full else ()
    durations = minutes or Minutes()
    nodes = {
        node: _of_node(
            node,
            drifts,
            observations[node].facts if node in observations else {},
            (takes_part or {}).get(node, everything) if full else (),
            durations,
            order,
        )
        for node, drifts in found.items()
    }
    busy = [node for node, plan in nodes.items() if plan.roles]
    silent = {node: said.error for node, said in observations.items() if said.error is not None}
    return Plan(nodes, (rollout or waves.Rollout(canary=False)).waves(busy), silent)


def _of_node(
    node: str,
    drifts: Sequence[Drift],
    facts: Mapping[str, Any],
    anyway: Collection[str],
    durations: Minutes,
    order: Sequence[str],
) -> NodePlan:
    needed = {drift.expectation.role for drift in drifts} - {HARDWARE}
    roles = tuple(role for role in order if role in anyway or role in needed)
    ours = [drift for drift in drifts if drift.expectation.role != HARDWARE]
    waiting = [drift for drift in ours if drift.expectation.reboot and not drift.unknown]
    asks = facts.get("boot.required") is True and bool(roles)
    sure = asks or any(_in_use(drift) for drift in waiting)
    expected = _durations(roles, ours, facts, durations, reboot=sure)  # most bare nodes need none
    return NodePlan(
        node,
        roles,
        tuple(drifts),
        bool(waiting) or asks,
        sum(each.minutes for each in expected),
        packages_of(ours, facts),
        tuple(dict.fromkeys(unit for drift in ours for unit in drift.expectation.restarts)),
        sure,
        (*(because(drift) for drift in waiting), *([_asked_for(facts)] if asks else [])),
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
    installing = {d.expectation.role for d in drifts if is_package(d.expectation.fact)}
    found = [durations.role(role, kind, role in installing) for role in roles]
    return [*found, durations.reboot(kind)] if reboot else found


def _in_use(drift: Drift) -> bool:
    """Whether the kernel has something else in memory than the declared, which no role takes from under its
    users. Where nothing is (no driver loaded), and for settings, the role first tries without a reboot."""
    return drift.expectation.fact.partition(".")[0] in _LOADED and drift.found not in (None, False, "", [])


def because(drift: Drift) -> str:
    """Why a drift takes a reboot, as programs are told."""
    expectation = drift.expectation
    return f"{expectation.fact} ({expectation.role}): {expectation.why}"


def _asked_for(facts: Mapping[str, Any]) -> str:
    reason = facts.get("boot.reason")
    words = ", ".join(map(str, reason)) if isinstance(reason, list) else str(reason or "it gave no reason")
    return f"the node itself requests one: {words}"


_FAMILY = "package."
# Promised by what they are, because their names vary; and what they are called until that is known.
_KINDS = {"fabric.manager_": "nvidia-fabricmanager", "fabric.imex_": "nvidia-imex"}
_ABSENT = ("absent", "config-files", None)  # of what dpkg calls a package that is not there


class Change(enum.StrEnum):
    """What happens to a package; the first that is true of it."""

    UNKNOWN = "unknown"  # what is installed could not be read
    REMOVE = "remove"
    INSTALL = "install"
    REPLACE = "replace"  # another version of it, newer or older
    REPAIR = "repair"  # the same version again: it is half-installed
    HOLD = "hold"
    RELEASE = "release"  # no longer held


@dataclass(frozen=True)
class PackageChange:
    """One package of one node. `before`: the installed version, None when absent. `after`: the version as
    declared (perhaps without distribution revision); None when it is removed, and when nobody declared one:
    then the repository decides. `held`: whether it is held afterwards; None when that does not change.
    `roles`: who wants it, in the order they run."""

    name: str
    change: Change
    before: str | None
    after: str | None
    held: bool | None
    roles: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {**vars(self), "change": self.change.value, "roles": list(self.roles)}


@dataclass
class _Drifts:
    """What differs of one package, by attribute."""

    of: dict[str, list[Drift]] = field(default_factory=dict)
    roles: dict[str, None] = field(default_factory=dict)


def packages_of(drifts: Sequence[Drift], facts: Mapping[str, Any]) -> tuple[PackageChange, ...]:
    """The packages these drifts of one node are about, in the order of their first drift."""
    found: dict[str, _Drifts] = {}
    headers: list[PackageChange] = []
    for drift in drifts:
        fact = drift.expectation.fact
        if fact == "kernel.headers" and not drift.unknown:
            headers.append(_of_headers(drift, facts))
        elif named := _package_of(fact, facts):
            name, attribute = named
            package = found.setdefault(name, _Drifts())
            package.of.setdefault(attribute, []).append(drift)
            package.roles[drift.expectation.role] = None
    return (*headers, *(_change(name, package, facts) for name, package in found.items()))


def _package_of(fact: str, facts: Mapping[str, Any]) -> tuple[str, str] | None:
    """The package a fact is about, and which attribute of it; None when it is about none."""
    if fact.startswith(_FAMILY):
        name, _, attribute = fact[len(_FAMILY) :].rpartition(".")
        return name, attribute
    for kind, usual in _KINDS.items():
        attribute = fact.removeprefix(kind)
        if attribute in ("version", "held") and attribute != fact:
            return str(facts.get(f"{kind}package") or usual), attribute
    return None


def is_package(fact: str) -> bool:
    """Whether a fact is about a package that a role installs."""
    return _package_of(fact, {}) is not None


def _of_headers(drift: Drift, facts: Mapping[str, Any]) -> PackageChange:
    """The one package that is promised by what it brings: its name holds the kernel's release."""
    prefix = "kernel-devel-" if facts.get("os.family") == "redhat" else "linux-headers-"
    name = f"{prefix}{drift.expectation.value}"
    return PackageChange(name, Change.INSTALL, None, None, None, (drift.expectation.role,))


def _change(name: str, package: _Drifts, facts: Mapping[str, Any]) -> PackageChange:
    every = [drift for drifts in package.of.values() for drift in drifts]
    versions, states = package.of.get("version", []), package.of.get("status", [])
    before = next(
        (drift.found for drift in versions if not drift.unknown), facts.get(f"package.{name}.version")
    )
    after = _wanted_version(versions)
    holds = [drift.expectation.value for drift in package.of.get("held", []) if not drift.unknown]
    held = holds[-1] if holds and isinstance(holds[-1], bool) else None
    if all(drift.unknown for drift in every):
        change, after, held = Change.UNKNOWN, None, None
    elif _goes(versions, states):
        change, after, held = Change.REMOVE, None, None
    elif versions:
        change = Change.INSTALL if before is None else Change.REPLACE
    elif states:
        absent = any(drift.found in _ABSENT for drift in states)
        change, before = (Change.INSTALL, None) if absent else (Change.REPAIR, before)
        after = None if absent else before
    else:
        change, after = (Change.HOLD if held else Change.RELEASE), before
    return PackageChange(name, change, before, after, held, tuple(package.roles))


def _goes(versions: Iterable[Drift], states: Iterable[Drift]) -> bool:
    return any(
        drift.expectation.operator == "equals" and drift.expectation.value is None for drift in versions
    ) or any(drift.expectation.value in ("absent", ["absent", "config-files"]) for drift in states)


def _wanted_version(versions: Sequence[Drift]) -> str | None:
    """The most exact version that is declared: a whole one before one without revision."""
    exact = [drift.expectation.value for drift in versions if drift.expectation.operator == "equals"]
    loose = [
        drift.expectation.value for drift in versions if drift.expectation.operator in ("version", "at_least")
    ]
    return next((value for value in [*reversed(exact), *loose] if isinstance(value, str)), None)
