"""The evidence behind a limit: number of machines, age, and the share of healthy parts it would fail.

The share is a prediction for a part that nobody has measured yet: normal noise around the typical value.
The errors of that value and of the spread count too (Student's t), so that few machines give a larger share.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from provision import yamlfile
from provision.checks.thresholds import Spread, Threshold
from provision.paths import DATA

FILE = DATA / "healthy_spread.yml"


@cache
def general_spread() -> Spread:
    """The spread of healthy parts where a limit does not state its own: an upper bound, see the file."""
    document = yamlfile.load_mapping(FILE)
    return Spread(float(document["percent"]), None, document["source"])


def share_failed(limit: Threshold) -> float | None:
    """The share of healthy parts, 0 to 1, that the limit would fail; None when no typical value is known.

    A typical value whose source does not say of how many machines it is counts as one machine's.
    """
    typical, spread = limit.typical, limit.spread or general_spread()
    if typical is None or limit.direction == "equal":
        return None
    room = typical.value - limit.limit if limit.direction == "at_least" else limit.limit - typical.value
    # The next part differs from the true mean, and the mean of n machines does too: 1 + 1/n variances.
    error = typical.value * spread.percent / 100 * math.sqrt(1 + 1 / max(typical.machines or 1, 1))
    if error == 0:
        return 0.0 if room >= 0 else 1.0
    freedom = math.inf if spread.machines is None else spread.machines - 1
    return cdf(-room / error, freedom)


def share_text(share: float | None, sign: str = "≤") -> str:
    """As a person reads it, rounded up to two digits: `≤ 3.8 %`, `< 0.01 %`, or `unknown`. With a spread that
    was measured a share is no bound but what is expected: its sign is `about`.
    """
    if share is None:
        return "unknown"
    percent = 100 * share
    if percent < 0.01:
        return "< 0.01 %"
    digits = 1 - math.floor(math.log10(percent))
    up = math.ceil(round(percent * 10**digits, 6)) / 10**digits
    return f"{sign} {up:.{max(digits, 0)}f} %"


# --- Student's t distribution, which the standard library lacks


_NORMAL_FROM = 1e6  # degrees of freedom, from which t and the normal distribution agree to six digits


def cdf(t: float, freedom: float) -> float:
    """The probability of a value up to `t`; `freedom`: degrees of freedom, above 0, may be infinite."""
    if freedom >= _NORMAL_FROM:
        return NormalDist().cdf(t)
    tail = 0.5 * _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)
    return tail if t < 0 else 1 - tail


def quantile(p: float, freedom: float) -> float:
    """The value that `cdf` gives `p` for, 0 < p < 1; found by bisection, to nine digits."""
    if p < 0.5:
        return -quantile(1 - p, freedom)
    low, high = 0.0, 1.0
    while cdf(high, freedom) < p:
        low, high = high, high * 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle, freedom) < p else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction (NIST DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, its mirror image converges fast
        return 1 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)), from its end: 400 terms are more than 1e6 degrees of freedom need."""
    value = 1.0
    for n in range(400, 0, -1):
        m = n // 2
        if n % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        value = 1 + d / value
    return value


# --- the certainty of a derived limit: its confidence interval, and the number of nodes that makes it
# trustworthy. GPUs of one node share its power, cooling, board and host, so they are not independent
# measurements: what counts is how far nodes differ, and n nodes leave n - 1 degrees of freedom.


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
    return quantile(1 - (1 - CONFIDENCE) / 2 / places, nodes - 1)


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
