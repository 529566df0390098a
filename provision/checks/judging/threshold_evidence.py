"""The evidence behind a limit: number of machines, age, and the share of healthy parts it would fail.

The share is a prediction for a part not yet measured, with normal noise around the typical value. It includes
the errors of that value and of the spread (Student's t), so fewer machines give a larger share.
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
    """Load the spread of healthy parts for limits without their own: an upper bound, see the file."""
    document = yamlfile.load_mapping(FILE)
    return Spread(float(document["percent"]), None, document["source"])


def share_failed(limit: Threshold) -> float | None:
    """Return the share of healthy parts, 0 to 1, that fail the limit; None without a typical value.

    A typical value without a stated number of machines counts as that of one machine.
    """
    typical, spread = limit.typical, limit.spread or general_spread()
    if typical is None or limit.direction == "equal":
        return None
    room = typical.value - limit.limit if limit.direction == "at_least" else limit.limit - typical.value
    # The next part differs from the true mean, and so does the mean of n machines: 1 + 1/n variances.
    error = typical.value * spread.percent / 100 * math.sqrt(1 + 1 / max(typical.machines or 1, 1))
    if error == 0:
        return 0.0 if room >= 0 else 1.0
    freedom = math.inf if spread.machines is None else spread.machines - 1
    return cdf(-room / error, freedom)


def share_text(share: float | None, sign: str = "≤") -> str:
    """Format a share, rounded up to two digits: `≤ 3.8 %`, `< 0.01 %`, or `unknown`.

    A share by a measured spread is an expectation rather than a bound; its `sign` is `about`."""
    if share is None:
        return "unknown"
    percent = 100 * share
    if percent < 0.01:
        return "< 0.01 %"
    digits = 1 - math.floor(math.log10(percent))
    up = math.ceil(round(percent * 10**digits, 6)) / 10**digits
    return f"{sign} {up:.{max(digits, 0)}f} %"


# --- Student's t distribution, which the standard library lacks


_NORMAL_FROM = 1e6  # degrees of freedom from which t and the normal distribution agree to six digits


def cdf(t: float, freedom: float) -> float:
    """Return the probability of a value up to `t`; `freedom`: degrees of freedom, above 0 or infinite."""
    if freedom >= _NORMAL_FROM:
        return NormalDist().cdf(t)
    tail = 0.5 * _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)
    return tail if t < 0 else 1 - tail


def quantile(p: float, freedom: float) -> float:
    """Return the value at which `cdf` is `p`, 0 < p < 1, found by bisection to nine digits."""
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
    """Return the regularised incomplete beta I_x(a, b) by continued fraction (NIST DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly, its mirror image converges fast
        return 1 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate 1 + d1/(1 + d2/(1 + ...)) backwards; 400 terms suffice for 1e6 degrees of freedom."""
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
# measurements: only differences between nodes count, and n nodes leave n - 1 degrees of freedom.


CONFIDENCE = 0.95
# Standard errors of a sample median and of the scaled median absolute deviation of N normal values with
# standard deviation 1, times sqrt(N) (Rousseeuw and Croux 1993: efficiencies of 64 % and 37 %).
_OF_MEDIAN = math.sqrt(math.pi / 2)
_OF_DEVIATION = math.sqrt(1 / (2 * 0.3674))
_MOST_NODES = 1 << 20


@dataclass(frozen=True)
class Healthy:
    """The healthy devices of a fleet: number of nodes, and equivalent number of independent devices.

    `deviation`: standard deviation of a device of any node, in the metric's unit.
    """

    nodes: int
    deviation: float
    independent: float


@dataclass(frozen=True)
class Certainty:
    """A learnt limit's 95 % confidence interval and the number of nodes it was learnt from.

    `enough`: number of nodes that would make it trustworthy; 0 if no number can be given.
    """

    low: float
    high: float
    nodes: int
    enough: int

    @property
    def trustworthy(self) -> bool:
        return 0 < self.enough <= self.nodes


def healthy(nodes: Collection[Sequence[float]]) -> Healthy:
    """Summarise the values of each node's devices; raise ValueError for fewer than two nodes."""
    if len(nodes) < 2:
        raise ValueError("one node does not show how far nodes differ")
    count = sum(len(values) for values in nodes)
    between = statistics.variance([statistics.fmean(values) for values in nodes])
    freedom = count - len(nodes)
    inside = sum(statistics.pvariance(values) * len(values) for values in nodes)
    inside = inside / freedom if freedom else 0.0
    # A node's mean already contains its devices' noise, divided by their number.
    total = between + inside * (1 - len(nodes) / count)
    independent = len(nodes) * total / between if between else float(count)
    return Healthy(len(nodes), math.sqrt(total), min(independent, count))


@dataclass(frozen=True)
class Rule:
    """The rule that sets a limit at a margin or at some deviations from a median, whichever is farther.

    `margin`: a fraction of the median. `deviations`: number of scaled median absolute deviations. `low`: the
    limit lies below the median, else above.
    """

    margin: float
    deviations: float
    low: bool

    def candidates(self, middle: float, deviation: float) -> tuple[float, float]:
        """Return the limit by margin and the limit by deviations."""
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
    """Return the certainty of the limit that `rule` derives from a median and a deviation (in the unit).

    It is trustworthy if its interval is within `fraction` of its distance from the median; never with fewer
    than `least` nodes. `places`: number of positions of which this limit is the strictest. The lowest of many
    medians is the one that chance has lowered most, so the interval is widened until it holds for all
    positions at once (Bonferroni).
    """
    candidates = rule.candidates(middle, deviation)
    limit = rule.choose(candidates)
    error = parts.deviation / math.sqrt(parts.independent)
    errors = (
        error * _OF_MEDIAN * candidates[0] / middle,
        error * math.hypot(_OF_MEDIAN, rule.deviations * _OF_DEVIATION),
    )

    def interval(nodes: int) -> tuple[float, float]:
        # Either candidate may be the true limit, so the interval is that of the one farther off.
        times = _times(nodes, places) * math.sqrt(parts.nodes / nodes)
        both = list(zip(candidates, errors, strict=True))
        return rule.choose(c - times * e for c, e in both), rule.choose(c + times * e for c, e in both)

    def suffice(nodes: int) -> bool:
        low, high = interval(nodes)
        return max(limit - low, high - limit) <= fraction * abs(middle - limit)

    return Certainty(*interval(parts.nodes), parts.nodes, _fewest(suffice, least))


@cache
def _times(nodes: int, places: int) -> float:
    """Return the number of standard errors that an interval extends to each side."""
    return quantile(1 - (1 - CONFIDENCE) / 2 / places, nodes - 1)


def _fewest(suffice: Callable[[int], bool], least: int) -> int:
    """Return the smallest sufficient number of nodes from `least` on, or 0; sufficiency is monotonic."""
    low, high = least - 1, least
    while not suffice(high):
        low, high = high, 2 * high
        if high > _MOST_NODES:
            return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffice(middle) else (middle, high)
    return high
