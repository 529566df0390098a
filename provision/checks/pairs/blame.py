"""Attribution of bad pairs to parts: parts that passed are cleared, and the fewest culprits explain the rest
(pure).

A measurement passes through parts: its nodes, what joins them, their leaves and uplinks. One that passes
clears all of them; one that does not has at least one bad part among those not cleared. Every part has a
cost, the less likely the dearer, and so has chance, a disturbance of a single measurement. The cheapest
explanation of all bad measurements names a culprit only if every explanation without it is dearer by
`MARGIN`: that takes a second bad measurement, and leaves open what looks the same.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

from provision.checks.pairs.judge import Grade, Judged
from provision.checks.pairs.pairing import Outcome, Result, Topology


class Kind(enum.StrEnum):
    """What can be to blame. Of a node: its cards, cables and leaf ports included. `bundle`: an uplink of
    which only some paths are bad, so that a pair that passes does not clear it."""

    NODE = "node"
    LINK = "link"
    LEAF = "leaf"
    UPLINK = "uplink"
    PATH = "path"
    BUNDLE = "bundle"
    CHANCE = "chance"


# Bad nodes are a tenth of a new fleet (SuperBench), leaf switches and single paths less than a thousandth: a
# leaf explains what would take `pairing.ALIKE` nodes, a link what no node does.
COSTS = {
    Kind.NODE: 1,
    Kind.LINK: 2,
    Kind.LEAF: 2,
    Kind.UPLINK: 2,
    Kind.PATH: 2,
    Kind.BUNDLE: 4,
    Kind.CHANCE: 2,
}
MARGIN = 2
REFERENCE = 3  # bad pairs without a good one from which on what they share is in doubt, not they


class Part(NamedTuple):
    """Something a measurement passes through: nodes or racks by `names`, on one rail or, "", on all."""

    kind: Kind
    names: tuple[str, ...]
    rail: str = ""


class Parts(NamedTuple):
    """`sure`: passed through; `possible`: perhaps, so that it may explain a bad result and no good one clears
    it."""

    sure: frozenset[Part]
    possible: frozenset[Part] = frozenset()


def parts(fleet: Topology, nodes: Sequence[str], rail: str = "", round_: int = 0) -> Parts:
    """What a measurement of these nodes passes through. A leaf with one node of this fleet is that node's."""
    sure = [Part(Kind.NODE, (node,)) for node in nodes]
    possible: list[Part] = []
    racks = dict.fromkeys(fleet.racks[node] for node in nodes if node in fleet.racks)
    shared = [rack for rack in racks if len(fleet.members[rack]) > 1]
    spans = fleet.spans(nodes)
    sure += [Part(Kind.LEAF, (rack,)) for rack in shared]
    if spans is not False:
        through = sure if len(racks) > 1 else possible  # with nodes of unknown racks: perhaps
        through += [Part(Kind.UPLINK, (rack,)) for rack in shared]
        possible += [Part(Kind.BUNDLE, (rack,)) for rack in shared]
    if len(nodes) == 2:
        sure.append(Part(Kind.LINK, tuple(sorted(nodes, key=fleet.order.__getitem__))))
        if spans:
            sure.append(Part(Kind.PATH, tuple(sorted(racks))))
    sure.append(Part(Kind.CHANCE, (str(round_), *sorted(nodes))))
    return Parts(_with_rail(sure, rail), _with_rail(possible, rail))


def _with_rail(found: Iterable[Part], rail: str) -> frozenset[Part]:
    rails = {"", rail}
    return frozenset(part._replace(rail=one) for part in found for one in rails)


class Open(NamedTuple):
    """Bad measurements not yet explained beyond doubt: what each may come from, the parts that appear in an
    explanation close to the cheapest, and its cost."""

    rows: tuple[frozenset[Part], ...]
    suspects: tuple[Part, ...]
    cheapest: int


@dataclass(frozen=True)
class Blame:
    """`cleared`: parts that something passed through and did well. `culprits`: named beyond doubt. `open`:
    the rest. `rows`: each bad measurement with its possible causes. `rails`: those each node was measured on.
    `measured`: the nodes of each measurement that was made; `evidence`: whether any is good or bad."""

    fleet: Topology
    cleared: frozenset[Part]
    culprits: tuple[Part, ...]
    open: tuple[Open, ...]
    rows: Mapping[Judged, frozenset[Part]]
    rails: Mapping[str, tuple[str, ...]]
    measured: frozenset[frozenset[str]]
    evidence: bool

    @cached_property
    def suspected(self) -> frozenset[Part]:
        """Culprits and suspects."""
        return frozenset(self.culprits).union(*(one.suspects for one in self.open))

    def settled(self, node: str) -> bool:
        """Whether a node is known to be good or bad as a whole, or on every rail it was to be measured on."""
        blamed = {part for part in self.culprits if part.names == (node,)}
        if Part(Kind.NODE, (node,)) in blamed:
            return True
        return all(
            part in self.cleared or part in blamed
            for part in (Part(Kind.NODE, (node,), rail) for rail in self.rails.get(node, ("",)))
        )

    def may_pass(self, through: Collection[Part]) -> bool:
        """Whether some explanation close to the cheapest lets a measurement of these parts pass."""
        if not frozenset(self.culprits).isdisjoint(through):
            return False
        return all(
            cheapest(one.rows, _costs(one.rows), frozenset(through)).least < one.cheapest + MARGIN
            for one in self.open
            if any(not row.isdisjoint(through) for row in one.rows)
        )


def blame(fleet: Topology, judged: Iterable[Judged]) -> Blame:
    """The culprits of what was judged. Without any good measurement to compare with, nobody is one."""
    judged = _without_single_rail(judged)
    good = [one for one in judged if one.grade is Grade.OK]
    bad = [one for one in judged if one.grade is Grade.BAD]
    run = [one.result for one in judged if one.result.outcome is not Outcome.NOT_RUN]
    evidence = bool(good or bad)
    if not good and len({one.result.nodes for one in bad if not one.result.end}) >= REFERENCE:
        bad = [one for one in bad if one.result.end]
    cleared = frozenset().union(*(_through(fleet, one.result).sure for one in good))
    rows = _narrowed({one: frozenset().union(*_through(fleet, one.result)) - cleared for one in bad})
    culprits = [part for group in components(list(rows.values())) for part in _certain(group)]
    rest = [row for row in rows.values() if row.isdisjoint(culprits)]
    rails: dict[str, dict[str, None]] = defaultdict(dict)
    for one in judged:
        for node in one.result.nodes:
            rails[node][one.result.rail] = None
    return Blame(
        fleet,
        cleared,
        tuple(sorted(culprits)),
        tuple(_open(group) for group in components(rest)),
        rows,
        {node: tuple(found) for node, found in rails.items()},
        frozenset(frozenset(result.nodes) for result in run),
        evidence,
    )


def _through(fleet: Topology, result: Result) -> Parts:
    """A result's parts; of one whose own end is proved to have failed, that end."""
    if result.end:
        own = parts(fleet, (result.end,), result.rail, result.round).sure
        return Parts(frozenset(part for part in own if part.kind in (Kind.NODE, Kind.CHANCE)))
    return parts(fleet, result.nodes, result.rail, result.round)


def _without_single_rail(judged: Iterable[Judged]) -> list[Judged]:
    """Where all results are of one rail, it cannot be told from the whole: then it is the whole."""
    judged = list(judged)
    if len({one.result.rail for one in judged}) > 1:
        return judged
    return [replace(one, result=replace(one.result, rail="")) for one in judged]


def _narrowed(rows: Mapping[Judged, frozenset[Part]]) -> dict[Judged, frozenset[Part]]:
    """Rows in which a part with all its rails gives way to one rail of it that is in the same rows."""
    counts = Counter(part for row in rows.values() for part in row)
    wide = {
        part._replace(rail="")
        for part in counts
        if part.rail and counts[part] == counts[part._replace(rail="")]
    }
    return {one: row - wide for one, row in rows.items()}


def _costs(rows: Iterable[frozenset[Part]]) -> dict[Part, int]:
    return {part: COSTS[part.kind] for row in rows for part in row}


def _certain(rows: Sequence[frozenset[Part]]) -> list[Part]:
    """The culprits without whom the cheapest explanation is dearer by the margin. That each rail of a part is
    bad by itself is no other explanation than the part."""
    costs = _costs(rows)
    best = cheapest(rows, costs)

    def forms(part: Part) -> set[Part]:
        return {part, *(one for one in costs if not part.rail and one._replace(rail="") == part)}

    return [
        part
        for part in best.causes
        if part.kind is not Kind.CHANCE and cheapest(rows, costs, forms(part)).least >= best.most + MARGIN
    ]


def _open(rows: Sequence[frozenset[Part]]) -> Open:
    costs = _costs(rows)
    best = cheapest(rows, costs)
    suspects = []
    for part in sorted(costs):
        rest = cheapest([row for row in rows if part not in row], costs)
        if part.kind is not Kind.CHANCE and costs[part] + rest.least < best.most + MARGIN:
            suspects.append(part)
    return Open(tuple(rows), tuple(suspects), best.most)


# --- the cheapest set of causes that explains every observation: a weighted hitting set, by branch and bound.
# Observations that share no cause are solved apart, so the problems stay small. One that is not small is
# bounded from both sides instead: `least` is then below `most`, and nobody is named on a guess.


C = TypeVar("C", bound=Hashable)

IMPOSSIBLE = 10**6  # the cost of explaining what no cause is left for
_STEPS = 400  # of one search; a dozen culprits that hide one another take some dozens


@dataclass(frozen=True)
class Cover(Generic[C]):
    """`causes` explain everything and cost `most`; no other set costs less than `least`."""

    causes: tuple[C, ...]
    least: int
    most: int


@dataclass
class _Search(Generic[C]):
    costs: Mapping[C, int]
    best: int
    causes: tuple[C, ...]
    steps: int = 0
    complete: bool = field(default=True)


def components(rows: Collection[frozenset[C]]) -> list[list[frozenset[C]]]:
    """The rows (each the possible causes of an observation) in groups that share no cause."""
    by_cause: dict[C, list[frozenset[C]]] = defaultdict(list)
    for row in rows:
        for cause in row:
            by_cause[cause].append(row)
    found: list[list[frozenset[C]]] = []
    seen: set[frozenset[C]] = set()
    for first in rows:
        if first in seen:
            continue
        seen.add(first)
        group, waiting = [], [first]
        while waiting:
            row = waiting.pop()
            group.append(row)
            for cause in row:
                for other in by_cause.pop(cause, ()):
                    if other not in seen:
                        seen.add(other)
                        waiting.append(other)
        found.append(group)
    return found


def cheapest(
    rows: Iterable[frozenset[C]], costs: Mapping[C, int], without: Collection[C] = frozenset()
) -> Cover[C]:
    """The cheapest cover of `rows` that uses none of `without`.

    >>> cheapest([frozenset("ab"), frozenset("bc")], {"a": 1, "b": 1, "c": 1}).causes
    ('b',)
    """
    least = most = 0
    causes: list[C] = []
    for group in components(list(dict.fromkeys(row.difference(without) for row in rows))):
        part = _solved(_minimal(_worthwhile(group, costs)), costs)
        least, most = least + part.least, most + part.most
        causes += part.causes
    return Cover(tuple(causes), min(least, IMPOSSIBLE), min(most, IMPOSSIBLE))


def _worthwhile(rows: Sequence[frozenset[C]], costs: Mapping[C, int]) -> list[frozenset[C]]:
    """The rows without causes that explain nothing that another one, no dearer, does not explain as well."""
    masks: dict[C, int] = defaultdict(int)
    for place, row in enumerate(rows):
        for cause in row:
            masks[cause] |= 1 << place
    kept: list[C] = []
    for cause in sorted(masks, key=lambda one: (costs[one], -masks[one].bit_count(), str(one))):
        if all(masks[cause] & ~masks[other] for other in kept):
            kept.append(cause)
    return [row.intersection(kept) for row in rows]


def _minimal(rows: Sequence[frozenset[C]]) -> list[frozenset[C]]:
    """Without rows that another one, having fewer causes, implies."""
    kept: list[frozenset[C]] = []
    for row in sorted(rows, key=len):
        if not any(other <= row for other in kept):
            kept.append(row)
    return kept


def _solved(rows: list[frozenset[C]], costs: Mapping[C, int]) -> Cover[C]:
    if not all(rows):
        return Cover((), IMPOSSIBLE, IMPOSSIBLE)
    guess = _greedy(rows, costs)
    search = _Search(costs, sum(costs[cause] for cause in guess), guess)
    bound = _bound(rows, costs)
    if bound < search.best:
        _branch(search, rows, (), 0)
    return Cover(search.causes, search.best if search.complete else bound, search.best)


def _branch(search: _Search[C], rows: list[frozenset[C]], chosen: tuple[C, ...], spent: int) -> None:
    if not rows:
        if spent < search.best:
            search.best, search.causes = spent, chosen
        return
    search.steps += 1
    if search.steps > _STEPS:
        search.complete = False
        return
    if not all(rows) or spent + _bound(rows, search.costs) >= search.best:
        return
    counts = _counts(rows)
    tried: set[C] = set()
    row = min(rows, key=len)
    for cause in sorted(row, key=lambda one: (search.costs[one] / counts[one], str(one))):
        rest = [other - tried for other in rows if cause not in other]
        _branch(search, rest, (*chosen, cause), spent + search.costs[cause])
        tried.add(cause)


def _bound(rows: Sequence[frozenset[C]], costs: Mapping[C, int]) -> int:
    """A cost no cover is below: rows that share no cause need one each."""
    used: set[C] = set()
    total = 0
    for row in sorted(rows, key=lambda one: (len(one), sorted(map(str, one)))):
        if used.isdisjoint(row):
            used |= row
            total += min(costs[cause] for cause in row)
    return total


def _greedy(rows: Sequence[frozenset[C]], costs: Mapping[C, int]) -> tuple[C, ...]:
    chosen: list[C] = []
    rest = list(rows)
    while rest:
        counts = _counts(rest)
        cause = min(counts, key=lambda one: (costs[one] / counts[one], str(one)))
        chosen.append(cause)
        rest = [row for row in rest if cause not in row]
    return tuple(chosen)


def _counts(rows: Iterable[frozenset[C]]) -> dict[C, int]:
    counts: dict[C, int] = defaultdict(int)
    for row in rows:
        for cause in row:
            counts[cause] += 1
    return counts
