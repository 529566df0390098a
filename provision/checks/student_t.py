"""Student's t distribution, which the standard library lacks: its distribution function and its quantile."""

from __future__ import annotations

import math
from statistics import NormalDist

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
