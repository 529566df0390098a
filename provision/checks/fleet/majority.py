"""Outliers: nodes with undeclared facts that differ from the majority of their kind (pure).

A node's kind is its GPU product and operating system. A majority is more than half of the kind's nodes that
have a value; without a majority nothing shows which value is right, and all are reported. The compared facts
are in provision/data/majority.yml, which describes its keys at the top.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.desired.compared import ComparedFact, compared_facts
from provision.node_names import fold
from provision.text import value_text

SMALLEST = 3  # nodes of a kind, and values; of two that differ either may be the odd one


@dataclass(frozen=True)
class Voter:
    """One node in the comparison: SKU, facts and `problems` that explain missing ones.

    Facts `declared` or `ignored` (`gpuprov_ignore_majority`) are not compared; others only within `group`."""

    sku: str | None
    facts: Mapping[str, Any]
    problems: Mapping[str, str] = field(default_factory=dict)
    declared: Collection[str] = ()
    ignored: Collection[str] = ()
    group: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The node's kind, `h100-sxm on debian 13`; nodes of a kind should be alike."""
        release = str(self.facts.get("os.version_id") or "").partition(".")[0]
        system = f"{self.facts.get('os.id') or 'an unknown system'} {release}".strip()
        return f"{self.sku or 'unknown GPUs'} on {system}"


@dataclass(frozen=True)
class Outlier:
    """A node that differs from its kind in one fact.

    `answered`: nodes of the kind with a value; `agree`: nodes with `majority`, which is None if no value has
    one. `unknown`: this node has no value, `problem`: why."""

    node: str
    fact: str
    found: Any
    majority: Any
    agree: int
    answered: int
    kind: str
    why: str
    per: str = ""
    unknown: bool = False
    problem: str = ""


@dataclass(frozen=True)
class Tie:
    """A fact without a majority in a kind: every value with its nodes, the most frequent first."""

    fact: str
    kind: str
    sides: tuple[tuple[Any, tuple[str, ...]], ...]
    why: str


@dataclass(frozen=True)
class Comparison:
    """A comparison of `compared` nodes; `alone`: kind → nodes of kinds with fewer than three nodes."""

    outliers: tuple[Outlier, ...] = ()
    ties: tuple[Tie, ...] = ()
    alone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    compared: int = 0

    @property
    def found(self) -> bool:
        return bool(self.outliers or self.ties)


def compare(voters: Mapping[str, Voter]) -> Comparison:
    """Compare every node with its kind in every fact of provision/data/majority.yml."""
    kinds: dict[tuple[str, tuple[str, ...]], dict[str, Voter]] = defaultdict(dict)
    for name, voter in voters.items():
        kinds[voter.kind, voter.group][name] = voter
    outliers: list[Outlier] = []
    ties: list[Tie] = []
    alone: dict[str, tuple[str, ...]] = defaultdict(tuple)
    count = 0
    for (kind, _), members in kinds.items():
        if len(members) < SMALLEST:
            alone[kind] += tuple(members)
            continue
        count += len(members)
        for fact in compared_facts().values():
            for group in _groups(fact, members):
                _vote(fact, kind, group, outliers, ties)
    order = {name: number for number, name in enumerate(voters)}
    outliers.sort(key=lambda outlier: order[outlier.node])
    return Comparison(tuple(outliers), tuple(ties), dict(alone), count)


def _groups(fact: ComparedFact, members: Mapping[str, Voter]) -> list[dict[str, Voter]]:
    """Group nodes by the facts that this fact depends on."""
    groups: dict[tuple[str, ...], dict[str, Voter]] = defaultdict(dict)
    for name, voter in members.items():
        if fact.declared_by.isdisjoint(voter.declared) and fact.fact not in voter.ignored:
            groups[tuple(_key(_value(within, voter)) for within in fact.within)][name] = voter
    return list(groups.values())


def _value(name: str, voter: Voter) -> Any:
    compared_fact = compared_facts().get(name)
    return compared_fact.value(voter.facts) if compared_fact else voter.facts.get(name)


def _key(value: Any) -> str:
    """Return a key that is equal for equal values of equal types. (Only JSON strings begin with a quote.)"""
    return f'"{value}' if type(value) is str else json.dumps(value, sort_keys=True)


def _vote(
    fact: ComparedFact, kind: str, group: Mapping[str, Voter], outliers: list[Outlier], ties: list[Tie]
) -> None:
    sides: dict[str, list[str]] = defaultdict(list)
    values: dict[str, Any] = {}
    silent: dict[str, str] = {}
    for name, voter in group.items():
        value = fact.value(voter.facts)
        if value is None:
            silent[name] = _problem(fact.source, voter.problems)
        else:
            key = _key(value)
            values.setdefault(key, value)
            sides[key].append(name)
    answered = sum(map(len, sides.values()))
    ranked = sorted(sides.items(), key=lambda side: -len(side[1]))
    agree = len(ranked[0][1]) if ranked else 0
    clear = answered >= SMALLEST and 2 * agree > answered
    majority = values[ranked[0][0]] if clear else None

    def outlier(name: str, value: Any, unknown: bool = False) -> Outlier:
        votes = agree if clear else 0
        problem = (silent[name] or "the node has no such value") if unknown else ""
        return Outlier(
            name, fact.fact, value, majority, votes, answered, kind, fact.why, fact.per, unknown, problem
        )

    if clear:
        outliers += [outlier(name, values[key]) for key, names in ranked[1:] for name in names]
    elif answered >= SMALLEST:
        ties.append(
            Tie(fact.fact, kind, tuple((values[key], tuple(names)) for key, names in ranked), fact.why)
        )
    if len(group) >= SMALLEST:  # a fact that no node has is not missing; failures are reported anyway
        outliers += [
            outlier(name, None, unknown=True)
            for name, problem in silent.items()
            if problem or answered >= SMALLEST
        ]


def _problem(fact: str, problems: Mapping[str, str]) -> str:
    return problems.get(fact) or problems.get(fact.partition(".")[0]) or ""


def places(outlier: Outlier) -> dict[Any, Sequence[int]]:
    """Return where a per-GPU (or per-card) fact differs: value → its positions, from 0.

    >>> places(Outlier("n", "f", [16, 8, 16], 16, 3, 4, "", "", "GPU"))
    {8: [1]}
    """
    if not isinstance(outlier.found, list):
        return {}
    usual = outlier.majority
    if not isinstance(usual, list):
        usual = [usual] * len(outlier.found)
    if len(usual) != len(outlier.found):
        return {}
    positions: dict[Any, list[int]] = defaultdict(list)
    for number, (value, other) in enumerate(zip(outlier.found, usual)):
        if value != other:
            positions[value].append(number)
    return dict(positions)


# --- the wording of outliers and ties


def outlier_text(outlier: Outlier) -> str:
    """Describe in one line how a node differs from its kind, without the node's name."""
    usual = value_text(outlier.majority)
    most = f"{outlier.agree} of {outlier.answered} ({outlier.kind}) have {usual}"
    if outlier.majority is None:
        most = "and the other nodes do not agree either" if outlier.answered >= SMALLEST else ""
    if outlier.unknown:
        return f"has no value ({value_text(outlier.problem)})" + (f", {most}" if most else "")
    where = places(outlier)
    if where:
        text = ", ".join(
            f"{value_text(value)} on {outlier.per} {','.join(map(str, at))}" for value, at in where.items()
        )
        return f"is {text}, {most}"
    return f"is {value_text(outlier.found)}, {most}"


def tie_text(tie: Tie) -> str:
    """Describe which nodes have which value if no value has a majority."""
    sides = (f"{len(nodes)} have {value_text(value)} ({fold(nodes)})" for value, nodes in tie.sides)
    return f"ambiguous, no value has a majority of {tie.kind}: {', '.join(sides)}"
