"""Outliers: nodes whose undeclared facts differ from the majority of their kind (pure).

A node's kind is its GPU product and its operating system. A majority is more than half of those of a kind
that answered; without one nobody can say who is right, and all sides are named. Which facts are compared is
in provision/data/majority.yml, whose head names the keys.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision import paths, yamlfile
from provision.errors import StackError

SMALLEST = 3  # nodes of a kind, and answers; two that differ say nothing about which one is odd
_KEYS = frozenset({"fact", "from", "pick", "per", "within", "declared_as", "why"})


@dataclass(frozen=True)
class ComparedFact:
    """One fact nodes of a kind share. `source` is the observed fact it is read from, `pick` the key of its
    entries, `per` what an entry stands for (GPU, card), `within` the facts in which nodes must agree to be
    compared; a node that declares one of `declared_by` is not compared."""

    fact: str
    source: str
    pick: str | None
    per: str
    within: tuple[str, ...]
    declared_by: frozenset[str]
    why: str

    def value(self, facts: Mapping[str, Any]) -> Any:
        """What a node's facts say: a scalar, or a list when its GPUs (cards) differ; None for no answer."""
        found = facts.get(self.source)
        if self.pick is not None and isinstance(found, list):
            found = [entry.get(self.pick) if isinstance(entry, dict) else None for entry in found]
            if self.source == "firmware.rdma":  # devices made in software have no board
                found = [value for value in found if value is not None]
        if self.per == "GPU" and isinstance(found, list):
            if not found or None in found:
                return None
            return found[0] if all(value == found[0] for value in found) else found
        return found


@functools.cache
def compared_facts() -> Mapping[str, ComparedFact]:
    """Every compared fact by name. Raises StackError on a bad data file."""
    file = paths.DATA / "majority.yml"
    data = yamlfile.load(file, StackError)
    found: dict[str, ComparedFact] = {}
    for entry in data if isinstance(data, list) else [None]:
        if not isinstance(entry, dict) or not {"fact", "why"} <= entry.keys() <= _KEYS:
            raise StackError(f"{file}: not an entry: {entry!r}", "the head of the file lists the valid keys")
        fact = str(entry["fact"])
        source = str(entry.get("from", fact))
        found[fact] = ComparedFact(
            fact=fact,
            source=source,
            pick=entry.get("pick"),
            per=str(entry.get("per", "")),
            within=tuple(entry.get("within", ())),
            declared_by=frozenset({fact, source, *entry.get("declared_as", ())}),
            why=str(entry["why"]),
        )
    return found


@functools.cache
def facts_to_ask() -> frozenset[str]:
    """The observed facts that the comparison needs."""
    facts = compared_facts()
    within = {name for fact in facts.values() for name in fact.within if name not in facts}
    return frozenset({fact.source for fact in facts.values()} | within)


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
    groups: dict[str, dict[str, Voter]] = defaultdict(dict)
    for name, voter in members.items():
        if fact.declared_by.isdisjoint(voter.declared) and fact.fact not in voter.ignored:
            groups[_key([_value(within, voter) for within in fact.within])][name] = voter
    return list(groups.values())


def _value(name: str, voter: Voter) -> Any:
    known = compared_facts().get(name)
    return known.value(voter.facts) if known else voter.facts.get(name)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


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
            values.setdefault(_key(value), value)
            sides[_key(value)].append(name)
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
    for number, (value, other) in enumerate(zip(outlier.found, usual, strict=True)):
        if value != other:
            found[value].append(number)
    return dict(found)
