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

_LOADED = ("driver", "kernel", "module", "rdma")  # families of facts about what the kernel has loaded
FORKS = 50  # default number of nodes that `up` changes at the same time


@dataclass(frozen=True)
class NodePlan:
    """The work of `up` on one node: `roles` in the order they run, with `drifts` as the reasons.

    Drifts of the hardware are included although no role can repair them. `packages`: those promised by name,
    without dependencies. `restarts`: units. `reboot`: one may be needed; `reboot_sure`: one will be;
    `reboot_because`: one line per reason. `learnt_from`: number of runs that `minutes` were learnt from (the
    fewest of its parts), 0 if a part is estimated."""

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
    """The work of `up` on the fleet. `unreachable`: node → why its state is unknown.

    `scheduler`: node → why its scheduler could not drain it, so that `up` would not touch it."""

    nodes: Mapping[str, NodePlan]
    waves: tuple[waves.Wave, ...]
    unreachable: Mapping[str, str]
    scheduler: Mapping[str, str] = field(default_factory=dict)

    def minutes(self, forks: int = FORKS) -> Expected:
        """Return the time of all waves in sequence, with `forks` nodes of a wave at a time."""
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
    """Plan the work for `found`, the drifts of each node that answered.

    `full`: plan every role a node takes part in (`takes_part`, default all). `remove`: roles to remove, in
    their order. `minutes`: known durations (default: estimates). `rollout` divides nodes with work into
    waves. A fact that could not be read requires its role, because the plan cannot promise that the node is
    as declared."""
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
    silent = {node: observed.error for node, observed in observations.items() if observed.error is not None}
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
    expected = _durations(roles, ours, facts, durations, reboot=sure)  # most nodes without a driver need none
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
    expected = [durations.role(role, kind, role in installing) for role in roles]
    return [*expected, durations.reboot(kind)] if reboot else expected


def _in_use(drift: Drift) -> bool:
    """Return whether the kernel uses an undeclared state, which no role replaces while it is in use.

    If nothing is loaded, and for settings, the role first tries without a reboot."""
    return drift.expectation.fact.partition(".")[0] in _LOADED and drift.found not in (None, False, "", [])


def because(drift: Drift) -> str:
    """Return the reason why a drift needs a reboot, in a form for programs."""
    expectation = drift.expectation
    return f"{expectation.fact} ({expectation.role}): {expectation.why}"


def _asked_for(facts: Mapping[str, Any]) -> str:
    reason = facts.get("boot.reason")
    words = ", ".join(map(str, reason)) if isinstance(reason, list) else str(reason or "it gave no reason")
    return f"the node itself requests one: {words}"


_FAMILY = "package."
# Packages promised by function, because their names vary, with their usual names.
_KINDS = {"fabric.manager_": "nvidia-fabricmanager", "fabric.imex_": "nvidia-imex"}
_ABSENT = ("absent", "config-files", None)  # dpkg's states of a package that is not installed


class Change(enum.StrEnum):
    """The change of a package; the first that applies."""

    UNKNOWN = "unknown"  # installed version could not be read
    REMOVE = "remove"
    INSTALL = "install"
    REPLACE = "replace"  # by another version, newer or older
    REPAIR = "repair"  # same version again, because it is half-installed
    HOLD = "hold"
    RELEASE = "release"  # no longer held


@dataclass(frozen=True)
class PackageChange:
    """One package of one node.

    `before`: installed version, None if absent. `after`: declared version (perhaps without distribution
    revision); None if it is removed, or if none is declared and the repository decides. `held`: new hold
    state; None if unchanged. `roles`: roles that need it, in the order they run."""

    name: str
    change: Change
    before: str | None
    after: str | None
    held: bool | None
    roles: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Return the change as plain values for JSON."""
        return {**vars(self), "change": self.change.value, "roles": list(self.roles)}


@dataclass
class _Drifts:
    """The drifts of one package, by attribute."""

    of: dict[str, list[Drift]] = field(default_factory=dict)
    roles: dict[str, None] = field(default_factory=dict)


def packages_of(drifts: Sequence[Drift], facts: Mapping[str, Any]) -> tuple[PackageChange, ...]:
    """Return the packages these drifts of one node concern, in the order of their first drift."""
    by_name: dict[str, _Drifts] = {}
    headers: list[PackageChange] = []
    for drift in drifts:
        fact = drift.expectation.fact
        if fact == "kernel.headers" and not drift.unknown:
            headers.append(_of_headers(drift, facts))
        elif named := _package_of(fact, facts):
            name, attribute = named
            package = by_name.setdefault(name, _Drifts())
            package.of.setdefault(attribute, []).append(drift)
            package.roles[drift.expectation.role] = None
    return (*headers, *(_change(name, package, facts) for name, package in by_name.items()))


def _package_of(fact: str, facts: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the package and attribute that a fact describes; None if it describes no package."""
    if fact.startswith(_FAMILY):
        name, _, attribute = fact[len(_FAMILY) :].rpartition(".")
        return name, attribute
    for kind, usual in _KINDS.items():
        attribute = fact.removeprefix(kind)
        if attribute in ("version", "held") and attribute != fact:
            return str(facts.get(f"{kind}package") or usual), attribute
    return None


def is_package(fact: str) -> bool:
    """Return whether a fact is about a package that a role installs."""
    return _package_of(fact, {}) is not None


def _of_headers(drift: Drift, facts: Mapping[str, Any]) -> PackageChange:
    """Return the kernel headers, promised by content; the package name has the kernel's release."""
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
    """Return the most exact declared version, preferring one with a revision."""
    exact = [drift.expectation.value for drift in versions if drift.expectation.operator == "equals"]
    loose = [
        drift.expectation.value for drift in versions if drift.expectation.operator in ("version", "at_least")
    ]
    return next((value for value in [*reversed(exact), *loose] if isinstance(value, str)), None)
