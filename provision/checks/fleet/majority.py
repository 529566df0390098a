"""Outliers: nodes whose undeclared facts differ from the majority of their kind (pure).

A node's kind is its GPU product and its operating system. A majority is more than half of those of a kind
that answered; without one nobody can say who is right, and all sides are named. Which facts are compared is
in provision/data/majority.yml, whose head names the keys.
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

SMALLEST = 3  # nodes of a kind, and answers; two that differ say nothing about which one is odd


@dataclass(frozen=True)
class Voter:
    """One node that answered: its SKU, its facts, why others are missing, and the facts not to compare:
    those it declares, and those of its `gpuprov_ignore_majority`. Nodes are compared with those of the same
    `group` only."""

    sku: str | None
    facts: Mapping[str, Any]
    problems: Mapping[str, str] = field(default_factory=dict)
    declared: Collection[str] = ()
    ignored: Collection[str] = ()
    group: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`h100-sxm on debian 13`: nodes of one kind should be alike."""
        release = str(self.facts.get("os.version_id") or "").partition(".")[0]
        system = f"{self.facts.get('os.id') or 'an unknown system'} {release}".strip()
        return f"{self.sku or 'unknown GPUs'} on {system}"


@dataclass(frozen=True)
class Outlier:
    """A node that differs from its kind in one fact. `answered`: how many of the kind have a value, `agree`
    how many of them have `majority`. `unknown`: this node has no answer, `problem` says why; `majority` is
    None when those that answered do not agree either."""

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
    """A fact in which a kind has no majority: every value with its nodes, the most frequent first."""

    fact: str
    kind: str
    sides: tuple[tuple[Any, tuple[str, ...]], ...]
    why: str


@dataclass(frozen=True)
class Comparison:
    """What the comparison found. `alone`: kind → its nodes, fewer than three, which nothing was compared
    with. `compared`: nodes that were."""

    outliers: tuple[Outlier, ...] = ()
    ties: tuple[Tie, ...] = ()
    alone: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    compared: int = 0

    @property
    def found(self) -> bool:
        return bool(self.outliers or self.ties)


def compare(voters: Mapping[str, Voter]) -> Comparison:
    """Compare every node with its kind, in every fact of provision/data/majority.yml."""
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
    """The nodes to compare in this fact: those that agree in what it depends on."""
    groups: dict[tuple[str, ...], dict[str, Voter]] = defaultdict(dict)
    for name, voter in members.items():
        if fact.declared_by.isdisjoint(voter.declared) and fact.fact not in voter.ignored:
            groups[tuple(_key(_value(within, voter)) for within in fact.within)][name] = voter
    return list(groups.values())


def _value(name: str, voter: Voter) -> Any:
    known = compared_facts().get(name)
    return known.value(voter.facts) if known else voter.facts.get(name)


def _key(value: Any) -> str:
    """Equal for equal values of equal types. (No JSON begins with a quotation mark but a text's.)"""
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
    if len(group) >= SMALLEST:  # where nobody has a value there is none to miss; what failed is said anyhow
        outliers += [
            outlier(name, None, unknown=True)
            for name, problem in silent.items()
            if problem or answered >= SMALLEST
        ]


def _problem(fact: str, problems: Mapping[str, str]) -> str:
    return problems.get(fact) or problems.get(fact.partition(".")[0]) or ""


def places(outlier: Outlier) -> dict[Any, Sequence[int]]:
    """Where an outlier with a value for each GPU (card) differs: value → its positions, from 0.

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
    found: dict[Any, list[int]] = defaultdict(list)
    for number, (value, other) in enumerate(zip(outlier.found, usual)):
        if value != other:
            found[value].append(number)
    return dict(found)


# --- the wording of outliers and ties


def outlier_text(outlier: Outlier) -> str:
    """How a node differs from its kind, in one line without its name."""
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
    """Which nodes have which value, where no value has a majority."""
    sides = (f"{len(nodes)} have {value_text(value)} ({fold(nodes)})" for value, nodes in tie.sides)
    return f"ambiguous, no value has a majority of {tie.kind}: {', '.join(sides)}"
