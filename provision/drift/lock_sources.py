"""Selection of a lock file's package sets from good nodes, or why they cannot be used (pure)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.desired import lockfile
from provision.desired.expectations import HARDWARE
from provision.desired.lockfile import Group
from provision.desired.role import all_roles
from provision.drift.assess import Assessment, Observe
from provision.errors import StackError
from provision.fleet import Fleet, Node
from provision.node_names import fold
from provision.remote.reach.observe import Observation
from provision.text import many

PATTERNS = "package_lock_patterns"
_KERNELS = ("linux-", "kernel-")  # excluded, since the driver role follows the kernel that will boot
_SHOWN = 12  # packages listed if nodes disagree


def asking_also(observe: Observe, fleet: Fleet, overrides: Mapping[str, Any]) -> Observe:
    """Wrap `observe` to read all facts a lock file needs from every node in the same round trip."""
    patterns = {name: _patterns(node, overrides) for name, node in fleet.nodes.items()}

    def ask_more(
        nodes: Collection[Node], ask: Mapping[str, Collection[str]], **options: Any
    ) -> dict[str, Observation]:
        return observe(
            nodes, {name: _with_packages(facts, patterns[name]) for name, facts in ask.items()}, **options
        )

    return ask_more


def _patterns(node: Node, overrides: Mapping[str, Any]) -> Sequence[str]:
    default = all_roles()[lockfile.ROLE].defaults[PATTERNS]
    patterns = overrides.get(PATTERNS, node.variables.get(PATTERNS, default))
    # Variables are not rendered here: a template would reach the node as a literal pattern.
    if not isinstance(patterns, list) or not all(
        isinstance(each, str) and each and "{{" not in each for each in patterns
    ):
        raise StackError(f"{node.name}: {PATTERNS} must be a list of shell patterns, not {patterns!r}", "")
    return patterns


def _with_packages(facts: Collection[str], patterns: Iterable[str]) -> frozenset[str]:
    # `package.libnccl2.held` needs `package.libnccl2.version`, too; a name may have dots.
    promised = {f"{fact.rpartition('.')[0]}.version" for fact in facts if fact.startswith("package.")}
    return frozenset(facts).union(promised, (f"packages.{pattern}.versions" for pattern in patterns))


def unfit(seen: Assessment) -> dict[str, str]:
    """Return each node that cannot be a source, with the reason: unknown or not as declared.

    Drifts of the role package_lock do not count, because the lock file is about to be rewritten."""
    reasons = seen.troubles  # a new dict each time, so it may be extended
    for node, refusals in seen.refused.items():
        reasons[node] = f"refused: {refusals[0].what.removeprefix(f'{node}: ')} → {refusals[0].fix}"
    for node, drifts in seen.drifts.items():
        other = [drift for drift in drifts if drift.expectation.role != lockfile.ROLE]
        if other:
            first = other[0].expectation
            blame = "" if first.role == HARDWARE else f" ({first.role})"
            reasons[node] = f"{many(len(other), 'expectation')} not held, the first is {first.fact}{blame}"
    for node, observed in seen.observations.items():
        unread = [problem for fact, problem in observed.problems.items() if fact.startswith("packages.")]
        if unread and node not in reasons:
            reasons[node] = f"its packages could not be read: {unread[0]}"
    return reasons


def packages_of(seen: Assessment, node: str) -> dict[str, str]:
    """Return the packages a lock file takes from a node: those promised by name or matching a pattern."""
    facts = seen.observations[node].facts
    packages: dict[str, Any] = {}
    for fact, value in facts.items():
        if fact.startswith("packages.") and isinstance(value, dict):
            packages.update(value)
    for expectation in seen.expected.get(node, ()):
        name, _, attribute = expectation.fact.removeprefix("package.").rpartition(".")
        if expectation.fact.startswith("package.") and attribute in ("version", "status"):
            version = facts.get(f"package.{name}.version")
            if version is not None and expectation.value is not None:  # null: it must be absent
                packages[name] = version
    kernel = str(facts.get("kernel.release"))
    return {
        name: version
        for name, version in packages.items()
        # `nvidia-kernel-6.12` belongs to one kernel, and kernels are not locked.
        if not name.startswith(_KERNELS) and kernel not in name and _fits(node, name, version)
    }


def _undeclared(seen: Assessment, node: str) -> list[str]:
    """Return undeclared packages of declared series: cuda-toolkit-13-2 if cuda-toolkit-12-9 is declared."""
    facts = {each.fact for each in seen.expected.get(node, ()) if each.fact.startswith("package.")}
    declared = {fact.removeprefix("package.").rpartition(".")[0] for fact in facts}
    # A name without digits is no series: unrelated packages may differ from it by a digit.
    series = {re.sub(r"\d+", "", name) for name in declared if re.search(r"\d", name)}
    return [n for n in packages_of(seen, node) if n not in declared and re.sub(r"\d+", "", n) in series]


def _fits(node: str, name: str, version: Any) -> bool:
    if lockfile.is_a("package", name) and lockfile.is_a("version", version):
        return True
    raise StackError(
        f"{node}: {name!r} {version!r} is not a package with a version",
        "look at that node's package database",
    )


@dataclass(frozen=True)
class Found:
    """The groups, the nodes outvoted by a majority, and packages that belong to another stack."""

    groups: tuple[Group, ...]
    overruled: tuple[str, ...]
    strange: tuple[str, ...]


def groups(seen: Assessment, nodes: Collection[str], *, majority: bool = False) -> Found:
    """Group nodes by OS release and architecture, and by SKU if needed. Raises StackError for a conflict."""
    kinds: dict[tuple[str, str, str], dict[str, Mapping[str, str]]] = {}
    for node in nodes:
        kinds.setdefault(lockfile.place_of(seen.described[node]), {})[node] = packages_of(seen, node)
    made: dict[tuple[Any, ...], Group] = {}
    overruled: list[str] = []
    disagreements: list[str] = []
    for (os, arch, sku), members in sorted(kinds.items()):
        packages, others = _agreed(members, majority)
        if packages is None:
            # All kinds of machine are reported at once, so that one repair is enough.
            disagreements += [f"{os} {arch} {sku}: {line}" for line in _differences(members)]
            continue
        if not packages:
            raise StackError(
                f"{fold(members)}: none of the packages to lock is installed", "gpuprov up first"
            )
        overruled += others
        key = (os, arch, tuple(sorted(packages.items())))
        from_nodes = [node for node in members if node not in others]
        same = made.get(key)  # of another SKU: `key` has none, so equal sets become one group
        skus = (*same.skus, sku) if same else (sku,)
        # From `kinds`, because a group has its nodes only as folded text.
        names = fold([*from_nodes, *(_members_of(same, kinds, overruled) if same else ())])
        made[key] = Group(os, arch, skus, names, packages)
    if disagreements:
        more = len(disagreements) - _SHOWN
        lines = [*disagreements[:_SHOWN], *([f"and {many(more, 'more package')}"] if more > 0 else [])]
        fix = "make them equal with gpuprov up, choose nodes with --nodes, or follow most with --majority"
        raise StackError("nodes of one kind do not have the same packages:\n  " + "\n  ".join(lines), fix)
    strange = sorted({name for node in nodes for name in _undeclared(seen, node)})
    return Found(tuple(made.values()), tuple(overruled), tuple(strange))


def _members_of(
    group: Group, kinds: Mapping[tuple[str, str, str], Mapping[str, Any]], overruled: Collection[str]
) -> list[str]:
    return [node for sku in group.skus for node in kinds[group.os, group.arch, sku] if node not in overruled]


def _agreed(
    members: Mapping[str, Mapping[str, str]], majority: bool
) -> tuple[Mapping[str, str] | None, list[str]]:
    """Return the package set all nodes share (None without one), and the nodes with another set.

    With `majority`, more than half of the nodes are enough."""
    count = Counter(frozenset(packages.items()) for packages in members.values())
    (most, number), *_ = count.most_common(1)
    if len(count) > 1 and not (majority and 2 * number > len(members)):
        return None, []
    return dict(most), [node for node, packages in members.items() if frozenset(packages.items()) != most]


def _differences(members: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return one line per differing package: `libnccl2 is 2.29.7-1 on gpu-[01-07], absent on gpu-08`."""
    names = sorted({name for packages in members.values() for name in packages})
    lines = []
    for name in names:
        where: dict[str, list[str]] = {}
        for node, packages in members.items():
            where.setdefault(packages.get(name, "absent"), []).append(node)
        if len(where) > 1:
            ordered = sorted(where.items(), key=lambda item: -len(item[1]))
            lines.append(
                f"{name} is " + ", ".join(f"{version} on {fold(nodes)}" for version, nodes in ordered)
            )
    return lines
