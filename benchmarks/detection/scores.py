"""Scores of outcomes: recall, blame, false alarms, curves, mixes, with confidence intervals."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.detection.cases import Entry

BUCKETS = 6
ENOUGH = 20  # trials at or above a severity that a claim needs
SURE = 0.99

Outcomes = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Share:
    """A number of hits out of a total."""

    hits: int
    of: int

    @property
    def value(self) -> float:
        return self.hits / self.of if self.of else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the true share."""
        if not self.of:
            return 0.0, 1.0
        z, n, p = 1.959964, self.of, self.value
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def __str__(self) -> str:
        return f"{self.hits}/{self.of}" if self.of else "-"


@dataclass(frozen=True)
class ClassScore:
    """The score of one class of faults. `curve`: (from, to, share noticed) for each bucket of severities.
    `smallest`: the least severity from which on 99 % are noticed, None if no such claim can be made.
    """

    entry: Entry
    recall: Share
    blame: Share
    curve: tuple[tuple[float, float, Share], ...] = ()
    smallest: float | None = None


def share(outcomes: Outcomes, what: str) -> Share:
    return Share(sum(bool(one[what]) for one in outcomes), len(outcomes))


def of_class(entry: Entry, outcomes: Outcomes) -> ClassScore:
    """Compute the score of one class of faults from its clear and graded trials."""
    clear = [one for one in outcomes if not one["graded"]]
    caught = [one for one in clear if one["caught"]]
    graded = [one for one in outcomes if one["graded"]]
    return ClassScore(
        entry, share(clear, "caught"), share(caught, "blamed"), _curve(entry, graded), _smallest(outcomes)
    )


def _curve(entry: Entry, graded: Outcomes) -> tuple[tuple[float, float, Share], ...]:
    if not entry.graded or not graded:
        return ()
    low, high = entry.graded
    edges = [low + (high - low) * i / BUCKETS for i in range(BUCKETS + 1)]
    return tuple(
        (a, b, share([one for one in graded if a <= one["severity"] <= b], "flagged"))
        for a, b in itertools.pairwise(edges)
    )


def _smallest(outcomes: Outcomes) -> float | None:
    """Return the least severity down to which 99 % of the trials, and the last one, were noticed."""
    known = sorted((one for one in outcomes if one["severity"] is not None), key=lambda one: -one["severity"])
    noticed, least = 0, None
    for number, one in enumerate(known, 1):
        noticed += bool(one["flagged"])
        if noticed < SURE * number:
            break
        if number >= ENOUGH and one["flagged"]:
            least = float(one["severity"])
    return least if any(one["graded"] for one in known) else None


@dataclass(frozen=True)
class Healthy:
    """False alarms on healthy nodes: any warning, failure or error (`alarms`), without warnings (`bad`)."""

    alarms: Share
    bad: Share
    by_sku: Mapping[str, Share]
    seconds: Mapping[str, tuple[float, float]]  # stage -> cumulative (median, worst) seconds of node time


def of_healthy(outcomes: Outcomes) -> Healthy:
    by_sku: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for one in outcomes:
        by_sku[one["sku"]].append(one)
    seconds, so_far = {}, [0.0] * len(outcomes)
    for stage in outcomes[0]["seconds"] if outcomes else ():
        so_far = [before + one["seconds"][stage] for before, one in zip(so_far, outcomes, strict=True)]
        seconds[stage] = (statistics.median(so_far), max(so_far))
    return Healthy(
        share(outcomes, "flagged"),
        Share(sum(one["verdict"] in ("fail", "error") for one in outcomes), len(outcomes)),
        {sku: share(found, "flagged") for sku, found in sorted(by_sku.items())},
        seconds,
    )


def precision(outcomes: Outcomes) -> Share:
    """Return the share of correct blame among all failures that named a part, on any node."""
    accused = sum(one["accused"] for one in outcomes)
    return Share(accused - sum(one["innocent"] for one in outcomes), accused)


@dataclass(frozen=True)
class Mixed:
    """The recall under a mix of causes. `covered`: the share of the mix's weight that could be tried."""

    recall: float
    covered: float
    families: Mapping[str, float | None]


def of_mix(mix: Mapping[str, tuple[float, tuple[int, ...]]], scores: Mapping[str, ClassScore]) -> Mixed:
    """Compute weighted recall; all tried classes of a family weigh the same, untried ones nothing."""
    families: dict[str, float | None] = {}
    total = tried = found = 0.0
    for family, (weight, numbers) in mix.items():
        given = [scores.get(str(number)) for number in numbers]
        known = [score.recall.value for score in given if score is not None and score.recall.of]
        families[family] = statistics.mean(known) if known else None
        total += weight
        if known:
            part = weight * len(known) / len(numbers)
            tried += part
            found += part * statistics.mean(known)
    return Mixed(found / tried if tried else math.nan, tried / total, families)
