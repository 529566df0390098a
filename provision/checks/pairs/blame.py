"""Attribution of bad pairs to the cheapest set of culprits that explains them all (pure).

A measurement passes through parts: its nodes, the link between them, their leaf switches and uplinks. A good
measurement clears all of them; a bad one has at least one bad part among the parts not cleared. Each part
has a cost, which is higher for less likely faults. Chance, a disturbance of a single measurement, has a cost
too. A part of the cheapest explanation of all bad measurements is a culprit only if every explanation without
it costs at least `MARGIN` more: that takes a second bad measurement, and leaves indistinguishable parts open.
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
    """Kind of a cause."""

    NODE = "node"  # including its cards, cables and leaf ports
    LINK = "link"
    LEAF = "leaf"
    UPLINK = "uplink"
    PATH = "path"
    BUNDLE = "bundle"  # an uplink with some bad paths and some good ones; a good pair does not clear it
    CHANCE = "chance"


# A tenth of the nodes of a new fleet are bad (SuperBench), but fewer than a thousandth of leaf switches and
# single paths. So a leaf is blamed before `pairing.ALIKE` of its nodes, and a link only if no node can be.
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
REFERENCE = 3  # if so many pairs are bad and none is good, their common reference is in doubt, not parts


class Part(NamedTuple):
    """A part that measurements pass through."""

    kind: Kind
    names: tuple[str, ...]  # nodes or racks
    rail: str = ""  # "": all rails


class Parts(NamedTuple):
    """Parts of a measurement."""

    sure: frozenset[Part]  # certainly passed through
    possible: frozenset[Part] = frozenset()  # may explain a bad result; a good result does not clear them


def parts(fleet: Topology, nodes: Sequence[str], rail: str = "", round_: int = 0) -> Parts:
    """Return the parts that a measurement passes through; a leaf with one node counts as that node."""
    sure = [Part(Kind.NODE, (node,)) for node in nodes]
    possible: list[Part] = []
    racks = dict.fromkeys(fleet.racks[node] for node in nodes if node in fleet.racks)
    shared = [rack for rack in racks if len(fleet.members[rack]) > 1]
    spans = fleet.spans(nodes)
    sure += [Part(Kind.LEAF, (rack,)) for rack in shared]
    if spans is not False:
        through = sure if len(racks) > 1 else possible  # if racks are unknown, the nodes may share one
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
    """Bad measurements not yet explained beyond doubt."""

    rows: tuple[frozenset[Part], ...]  # possible causes of each measurement
    suspects: tuple[Part, ...]  # parts of explanations within `MARGIN` of the cheapest
    cheapest: int  # cost of the cheapest explanation


@dataclass(frozen=True)
class Blame:
    """Outcome of an attribution."""

    fleet: Topology
    cleared: frozenset[Part]  # parts of good measurements
    culprits: tuple[Part, ...]  # named beyond doubt
    open: tuple[Open, ...]  # bad measurements that no culprit explains
    rows: Mapping[Judged, frozenset[Part]]  # each bad measurement with its possible causes
    rails: Mapping[str, tuple[str, ...]]  # rails on which each node was measured
    measured: frozenset[frozenset[str]]  # nodes of each measurement that ran
    evidence: bool  # whether any measurement is graded good or bad

    @cached_property
    def suspected(self) -> frozenset[Part]:
        """All culprits and suspects."""
        return frozenset(self.culprits).union(*(one.suspects for one in self.open))

    def settled(self, node: str) -> bool:
        """Return whether a node is known to be good or bad, as a whole or on each of its rails."""
        blamed = {part for part in self.culprits if part.names == (node,)}
        if Part(Kind.NODE, (node,)) in blamed:
            return True
        return all(
            part in self.cleared or part in blamed
            for part in (Part(Kind.NODE, (node,), rail) for rail in self.rails.get(node, ("",)))
        )

    def may_pass(self, through: Collection[Part]) -> bool:
        """Return whether some explanation within `MARGIN` of the cheapest blames none of these parts."""
        if not frozenset(self.culprits).isdisjoint(through):
            return False
        return all(
            cheapest(one.rows, _costs(one.rows), frozenset(through)).least < one.cheapest + MARGIN
            for one in self.open
            if any(not row.isdisjoint(through) for row in one.rows)
        )


def blame(fleet: Topology, judged: Iterable[Judged]) -> Blame:
    """Find the culprits; if `REFERENCE` or more pairs are bad and none is good, only proven ones."""
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
    """Return a result's parts; if it proves a node at fault, only this node and chance."""
    if result.end:
        own = parts(fleet, (result.end,), result.rail, result.round).sure
        return Parts(frozenset(part for part in own if part.kind in (Kind.NODE, Kind.CHANCE)))
    return parts(fleet, result.nodes, result.rail, result.round)


def _without_single_rail(judged: Iterable[Judged]) -> list[Judged]:
    """Drop the rail if all results have the same one, since rail and node are then one suspect."""
    judged = list(judged)
    if len({one.result.rail for one in judged}) > 1:
        return judged
    return [replace(one, result=replace(one.result, rail="")) for one in judged]


def _narrowed(rows: Mapping[Judged, frozenset[Part]]) -> dict[Judged, frozenset[Part]]:
    """Drop a part as a whole (all rails) if the part on a single rail explains the same rows."""
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
    """Return the culprits without which the cheapest explanation costs at least `MARGIN` more.

    Blaming each rail of a part separately counts as blaming the part."""
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


# --- The cheapest set of causes that explains every observation: a weighted hitting set, by branch and bound.
# Observations without a common cause are solved separately, so the problems stay small. The search of a large
# problem stops after `_STEPS` with two bounds of the cost, `least` < `most`, and names no culprit on a guess.


C = TypeVar("C", bound=Hashable)

IMPOSSIBLE = 10**6  # cost if an observation has no cause left
_STEPS = 400  # limit of one search; a dozen overlapping culprits take a few dozen steps


@dataclass(frozen=True)
class Cover(Generic[C]):
    """A set of causes that explains everything and costs `most`; no set costs less than `least`."""

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
    """Group the rows (each the possible causes of one observation) so that groups share no cause."""
    by_cause: dict[C, list[frozenset[C]]] = defaultdict(list)
    for row in rows:
        for cause in row:
            by_cause[cause].append(row)
    groups: list[list[frozenset[C]]] = []
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
        groups.append(group)
    return groups


def cheapest(
    rows: Iterable[frozenset[C]], costs: Mapping[C, int], without: Collection[C] = frozenset()
) -> Cover[C]:
    """Return the cheapest cover of `rows` that uses none of `without`.

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
    """Drop causes that another cause can replace in every row at no higher cost."""
    masks: dict[C, int] = defaultdict(int)
    for index, row in enumerate(rows):
        for cause in row:
            masks[cause] |= 1 << index
    kept: list[C] = []
    for cause in sorted(masks, key=lambda one: (costs[one], -masks[one].bit_count(), str(one))):
        if all(masks[cause] & ~masks[other] for other in kept):
            kept.append(cause)
    return [row.intersection(kept) for row in rows]


def _minimal(rows: Sequence[frozenset[C]]) -> list[frozenset[C]]:
    """Drop rows that contain another row: any cover of the smaller row covers them too."""
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
    """Return a lower bound of the cost of a cover; rows without a common cause need one each."""
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
