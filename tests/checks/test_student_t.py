"""The t distribution, compared with published quantiles and exact values."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

from provision.checks.judging.threshold_evidence import cdf, quantile


@pytest.mark.parametrize(
    ("p", "freedom", "t"),  # NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2
    [
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 3, 3.182),
        (0.975, 5, 2.571),
        (0.975, 10, 2.228),
        (0.975, 30, 2.042),
        (0.975, 100, 1.984),
        (0.95, 7, 1.895),
        (0.90, 4, 1.533),
        (0.99, 20, 2.528),
        (0.999, 9, 4.297),
        (0.975, math.inf, 1.960),
    ],
)
def test_quantiles_are_the_published_ones(p: float, freedom: float, t: float) -> None:
    assert quantile(p, freedom) == pytest.approx(t, abs=6e-4)
    assert quantile(1 - p, freedom) == pytest.approx(-t, abs=6e-4)


@pytest.mark.parametrize("t", [-300.0, -4.0, -0.3, 0.0, 1e-9, 0.7, 25.0])
def test_one_and_two_degrees_of_freedom_have_closed_forms(t: float) -> None:
    assert cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, rel=1e-9)
    assert cdf(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), rel=1e-6)


def test_with_many_degrees_of_freedom_it_is_the_normal_distribution() -> None:
    for t in (-4.0, -1.0, 0.5, 3.0):
        assert cdf(t, 999_999) == pytest.approx(NormalDist().cdf(t), rel=1e-4)
        assert cdf(t, 1_000_001) == NormalDist().cdf(t)
