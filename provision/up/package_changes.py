"""Package changes of a plan, from version to version (pure): derived from drifts of `package.NAME.…`."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.drift.drifts import Drift

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
        return {
            "name": self.name,
            "change": self.change.value,
            "before": self.before,
            "after": self.after,
            "held": self.held,
            "roles": list(self.roles),
        }


@dataclass
class _Drifts:
    """What differs of one package, by attribute."""

    of: dict[str, list[Drift]] = field(default_factory=dict)
    roles: dict[str, None] = field(default_factory=dict)


def of_node(drifts: Sequence[Drift], facts: Mapping[str, Any]) -> tuple[PackageChange, ...]:
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
    after = _wanted(versions)
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
    ) or any(drift.expectation.value == "absent" for drift in states)


def _wanted(versions: Sequence[Drift]) -> str | None:
    """The most exact version that is declared: a whole one before one without revision."""
    exact = [drift.expectation.value for drift in versions if drift.expectation.operator == "equals"]
    loose = [
        drift.expectation.value for drift in versions if drift.expectation.operator in ("version", "at_least")
    ]
    return next((value for value in [*reversed(exact), *loose] if isinstance(value, str)), None)
