"""Evidence for limits: the fraction of healthy parts that fail, their age, and docs/thresholds.md."""

from __future__ import annotations

import importlib
import math
import random
import subprocess
import sys
from pathlib import Path
from statistics import NormalDist, fmean, stdev

import pytest

from provision.checks import thresholds
from provision.checks.judging.threshold_evidence import (
    general_spread,
    share_failed,
    share_text,
)
from provision.checks.thresholds import Spread, Threshold, TypicalValue

ROOT = Path(__file__).resolve().parents[2]
PAGE = (sys.executable, str(ROOT / "scripts" / "thresholds_page.py"))


def limit(
    value: float,
    typical: float | None = 100.0,
    machines: int | None = 1,
    spread: tuple[float, int | None] | None = None,
    direction: str = "at_least",
) -> Threshold:
    found = Threshold("p2p_bandwidth.h2d", value, "GB/s", direction, "a test", "measured", "2026-05", 1)
    return Threshold(
        **{
            **vars(found),
            "typical": TypicalValue(typical, machines, "a test") if typical is not None else None,
            "spread": Spread(*spread, "a test") if spread else None,
        }
    )


def share(of: Threshold) -> float:
    found = share_failed(of)
    assert found is not None
    return found


def test_of_a_large_population_it_is_the_normal_distribution() -> None:
    many = 10**9
    assert share(limit(98, machines=many, spread=(1, None))) == pytest.approx(NormalDist().cdf(-2), rel=1e-6)
    assert share(limit(90, machines=many)) == pytest.approx(
        NormalDist().cdf(-10 / general_spread().percent), rel=1e-6
    )


def test_few_machines_widen_it() -> None:
    # One machine: its own deviation counts again, hence two variances.
    assert share(limit(98, machines=1, spread=(1, None))) == pytest.approx(
        NormalDist().cdf(-2 / math.sqrt(2))
    )
    # The 97.5 % quantile of t with 3 degrees of freedom is 3.1824; 4 machines have 1 + 1/4 variances.
    far = 3.182446 * math.sqrt(1.25)
    assert share(limit(100 - far, machines=4, spread=(1, 4))) == pytest.approx(0.025, rel=1e-5)
    shares = [share(limit(96, machines=n, spread=(1, n))) for n in (2, 3, 5, 10, 100)]
    assert shares == sorted(shares, reverse=True)
    # A source that does not state the number of machines counts as one.
    assert share(limit(98, machines=None, spread=(1, None))) == share(limit(98, spread=(1, None)))


def test_a_limit_from_above_is_its_mirror_image() -> None:
    above = limit(104, machines=5, spread=(2, 5), direction="at_most")
    assert share(above) == pytest.approx(share(limit(96, machines=5, spread=(2, 5))))


def test_without_a_typical_value_it_is_unknown() -> None:
    assert share_failed(limit(90, typical=None)) is None
    assert share_failed(limit(90, direction="equal")) is None
    assert share(limit(90, spread=(0, 4))) == 0
    assert share_text(None) == "unknown"


def test_the_prediction_is_right_on_average() -> None:
    """Fleets of four nodes, each with a limit three standard deviations low, match the predicted failures."""
    chance = random.Random(7)  # noqa: S311 - a seed reproduces it
    predicted, failed = [], []
    for _ in range(4000):
        nodes = [chance.gauss(100, 2) for _ in range(4)]
        middle, deviation = fmean(nodes), stdev(nodes)
        value = middle - 3 * deviation
        predicted.append(share(limit(value, middle, 4, (100 * deviation / middle, 4))))
        failed.append(NormalDist(100, 2).cdf(value))
    assert fmean(predicted) == pytest.approx(fmean(failed), rel=0.1)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "< 0.01 %"), (0.00009, "< 0.01 %"), (0.00101, "≤ 0.11 %"), (0.0379, "≤ 3.8 %"), (0.211, "≤ 22 %")],
)
def test_a_share_is_rounded_up(value: float, text: str) -> None:
    assert share_text(value) == text
    assert share_text(value, "about") == text.replace("≤", "about")


def test_the_age_is_counted_in_months(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    age_months = importlib.import_module("thresholds_page").age_months
    assert age_months(limit(1), "2026-05") == 0
    assert age_months(limit(1), "2027-02") == 9
    assert age_months(limit(1), "2027-02-28") == 9
    undated = Threshold("p2p_bandwidth.h2d", 1, "GB/s", "at_least", "a test", "measured")
    assert age_months(undated, "2027-02") is None


def test_what_our_sources_say_of_their_machines() -> None:
    h200 = thresholds.for_sku("h200-sxm")
    assert h200["nccl_all_reduce.busbw_8gpu"].machines is None  # a file that gates a fleet
    assert h200["nccl_all_reduce.busbw_ring_8gpu"].machines == 1  # "on an H200 node"
    assert h200["gpu_inventory.pcie_width"].machines == 0  # a data sheet
    # 367.2 less 10.1 %, a spread of 4 % and one machine: 37.2 / (367.2 * 4 % * sqrt 2) = 1.79 deviations.
    assert share(h200["nccl_all_reduce.busbw_ring_8gpu"]) == pytest.approx(
        NormalDist().cdf(-1.7909), rel=1e-3
    )
    everyone = [each for sku in thresholds.available() for each in thresholds.for_sku(sku).values()]
    assert all(each.machines == 0 for each in everyone if each.kind == "vendor")
    assert all(share_failed(each) is not None for each in everyone if each.typical)
    assert sum(each.typical is not None for each in everyone) > 40


def test_the_document_is_what_the_command_writes(tmp_path: Path) -> None:
    document = ROOT / "docs" / "thresholds.md"
    copy = tmp_path / "thresholds.md"
    copy.write_text(document.read_text("utf-8").partition("<!-- limits: begin -->")[0], "utf-8")
    subprocess.run([*PAGE, "--write", str(copy)], check=True, cwd=ROOT)
    assert copy.read_text("utf-8") == document.read_text("utf-8"), (
        "write it again: python scripts/thresholds_page.py --write docs/thresholds.md"
    )
    assert f"a spread of {general_spread().percent:g} %" in document.read_text("utf-8")


def test_the_command_prints_ages_at_a_month() -> None:
    printed = subprocess.run(
        [*PAGE, "--at", "2027-05"], check=True, cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert (
        "| `p2p_bandwidth.h2d` | ≥ 48 GB/s | measured | not stated | 12 | 55.43 GB/s (1) | ≤ 0.90 % |"
        in printed
    )
