"""The cheapest set of causes that explains every observation: a weighted hitting set (pure).

Branch and bound. Observations that share no cause are solved apart, so the problems stay small. One that is
not small is bounded from both sides instead: `least` is then below `most`, and nobody is named on a guess.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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
