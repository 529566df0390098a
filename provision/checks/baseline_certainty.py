"""The certainty of a derived limit (pure): its confidence interval, and the number of nodes that makes it
trustworthy.

GPUs of one node share its power, cooling, board and host, so they are not independent measurements: what
counts is how far nodes differ, and n nodes leave n - 1 degrees of freedom.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from provision.checks import student_t

CONFIDENCE = 0.95
# Standard errors of a sample median, and of the scaled median absolute deviation, of N normal values with
# standard deviation 1: these over sqrt(N) (Rousseeuw and Croux 1993, whose efficiencies are 64 % and 37 %).
_OF_MEDIAN = math.sqrt(math.pi / 2)
_OF_DEVIATION = math.sqrt(1 / (2 * 0.3674))
_MOST_NODES = 1 << 20


@dataclass(frozen=True)
class Healthy:
    """The healthy devices of a fleet: of how many nodes, and how many independent devices they are worth.

    `deviation`: how far they differ, the standard deviation of a device of any node, in the unit.
    """

    nodes: int
    deviation: float
    independent: float


@dataclass(frozen=True)
class Certainty:
    """A learnt limit's 95 % confidence interval and the nodes it was learnt from.

    `enough`: how many nodes would make it trustworthy; 0: more than can be said.
    """

    low: float
    high: float
    nodes: int
    enough: int

    @property
    def trustworthy(self) -> bool:
        return 0 < self.enough <= self.nodes


def healthy(nodes: Collection[Sequence[float]]) -> Healthy:
    """From the values of each node's devices; at least two nodes (else ValueError)."""
    if len(nodes) < 2:
        raise ValueError("one node does not show how far nodes differ")
    count = sum(len(values) for values in nodes)
    between = statistics.variance([statistics.fmean(values) for values in nodes])
    freedom = count - len(nodes)
    inside = sum(statistics.pvariance(values) * len(values) for values in nodes)
    inside = inside / freedom if freedom else 0.0
    # A node's mean holds its devices' noise already, divided by their number.
    total = between + inside * (1 - len(nodes) / count)
    independent = len(nodes) * total / between if between else float(count)
    return Healthy(len(nodes), math.sqrt(total), min(independent, count))


@dataclass(frozen=True)
class Rule:
    """How a limit follows from a median and its deviation: whichever of the two is farther off the median.

    `margin`: a share of the median. `deviations`: so many scaled median absolute deviations. `low`: the limit
    lies below the median, else above.
    """

    margin: float
    deviations: float
    low: bool

    def candidates(self, middle: float, deviation: float) -> tuple[float, float]:
        """The limit by the margin, and by the deviations."""
        sign = -1 if self.low else 1
        return middle * (1 + sign * self.margin), middle + sign * self.deviations * deviation

    def choose(self, candidates: Iterable[float]) -> float:
        return min(candidates) if self.low else max(candidates)


def of_limit(
    rule: Rule,
    middle: float,
    deviation: float,
    parts: Healthy,
    *,
    fraction: float,
    least: int,
    places: int = 1,
) -> Certainty:
    """The certainty of the limit that `rule` makes of a median and a deviation (both in the unit).

    It is trustworthy when its interval reaches no farther than `fraction` of its distance from the median;
    fewer nodes than `least` never make it so. `places`: of how many places this is the strictest limit. Who
    takes the lowest of many medians takes the one that chance has lowered most, so the interval is widened
    until it holds for all of them at once (Bonferroni).
    """
    candidates = rule.candidates(middle, deviation)
    limit = rule.choose(candidates)
    error = parts.deviation / math.sqrt(parts.independent)
    errors = (
        error * _OF_MEDIAN * candidates[0] / middle,
        error * math.hypot(_OF_MEDIAN, rule.deviations * _OF_DEVIATION),
    )

    def interval(nodes: int) -> tuple[float, float]:
        # Either candidate may be the true one, so the interval is that of the one farther off.
        times = _times(nodes, places) * math.sqrt(parts.nodes / nodes)
        both = list(zip(candidates, errors, strict=True))
        return rule.choose(c - times * e for c, e in both), rule.choose(c + times * e for c, e in both)

    def suffice(nodes: int) -> bool:
        low, high = interval(nodes)
        return max(limit - low, high - limit) <= fraction * abs(middle - limit)

    return Certainty(*interval(parts.nodes), parts.nodes, _fewest(suffice, least))


@cache
def _times(nodes: int, places: int) -> float:
    """How many standard errors an interval reaches to each side."""
    return student_t.quantile(1 - (1 - CONFIDENCE) / 2 / places, nodes - 1)


def _fewest(suffice: Callable[[int], bool], least: int) -> int:
    """The smallest number of nodes from `least` on that suffices, 0 if none; more suffice as well."""
    low, high = least - 1, least
    while not suffice(high):
        low, high = high, 2 * high
        if high > _MOST_NODES:
            return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffice(middle) else (middle, high)
    return high
