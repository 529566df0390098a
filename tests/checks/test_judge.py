"""Comparison of numbers with limits, and of devices with their peers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import Measurement
from provision.checks.judge import (
    ACTIONS,
    Finding,
    Verdict,
    below_peers,
    by_threshold,
    limit_text,
    meets,
    spread,
    unmeasured,
    worst,
)
from provision.checks.thresholds import Threshold
from provision.paths import DATA


def threshold(direction: str = "at_least", limit: float = 238.0) -> Threshold:
    return Threshold("p2p_bandwidth.p2p_read", limit, "GB/s", direction, "somewhere", "measured")


@pytest.mark.parametrize(
    ("direction", "below", "at", "above"),
    [("at_least", False, True, True), ("at_most", True, True, False), ("equal", False, True, False)],
)
def test_directions(direction: str, below: bool, at: bool, above: bool) -> None:
    limit = threshold(direction)
    assert [meets(value, limit) for value in (237.9, 238.0, 238.1)] == [below, at, above]


def test_a_finding_tells_limit_and_source() -> None:
    measured = Measurement("p2p_read", 100.0, "GB/s", "gpu0->gpu5")
    finding = by_threshold("p2p_bandwidth", "P2P read", measured, threshold(), action="investigate")
    assert (finding.verdict, finding.device, finding.action) == (Verdict.FAIL, "gpu0->gpu5", "investigate")
    assert (finding.limit, finding.source) == ("≥ 238 GB/s", "somewhere")
    counted = replace(threshold(), date="2026-05", machines=12)
    cited = by_threshold("p2p_bandwidth", "P2P read", measured, counted, action="investigate")
    assert cited.source == "somewhere; 12 machines, 2026-05"
    good = by_threshold(
        "p2p_bandwidth", "P2P read", Measurement("p2p_read", 300.0, "GB/s"), threshold(), action="watch"
    )
    assert (good.verdict, good.action) == (Verdict.PASS, "none")


def test_no_limit_is_a_warning_and_no_number_an_error() -> None:
    measured = Measurement("p2p_read", 100.0, "GB/s")
    assert by_threshold("c", "what", measured, None, action="watch").verdict is Verdict.WARN
    word = Measurement("p2p_read", "N/A", "GB/s")
    assert by_threshold("c", "what", word, threshold(), action="watch").verdict is Verdict.ERROR
    assert unmeasured("c", "why").verdict is Verdict.ERROR


def test_limit_text() -> None:
    assert limit_text(threshold("at_most", 7.875)) == "≤ 7.875 GB/s"


def test_worst_of_nothing_is_an_error_and_a_skip_does_not_count() -> None:
    assert worst([]) is Verdict.ERROR
    assert worst([Verdict.SKIP]) is Verdict.SKIP
    assert worst([Verdict.PASS, Verdict.SKIP]) is Verdict.PASS
    assert worst([Verdict.PASS, Verdict.WARN, Verdict.SKIP]) is Verdict.WARN
    assert worst([Verdict.ERROR, Verdict.FAIL, Verdict.WARN]) is Verdict.FAIL


@given(st.lists(st.sampled_from(list(Verdict)), min_size=1), st.sampled_from([Verdict.ERROR, Verdict.FAIL]))
def test_what_failed_or_was_not_measured_never_disappears(verdicts: list[Verdict], bad: Verdict) -> None:
    assert worst([*verdicts, bad]).badness >= bad.badness


def test_spread_is_robust() -> None:
    assert spread([10, 10, 10, 10, 1000]) == (10, 0)
    middle, deviation = spread([9, 10, 11])
    assert middle == 10
    assert deviation == pytest.approx(1.4826)


def test_a_straggler_is_named_with_its_shortfall() -> None:
    rates = {f"gpu{i}": 100.0 + i / 10 for i in range(7)} | {"gpu7": 80.0}
    ((device, (middle, shortfall)),) = below_peers(rates, 0.10).items()
    assert device == "gpu7"
    assert middle == pytest.approx(100.3)
    assert shortfall == pytest.approx(0.20, abs=0.01)


@pytest.mark.parametrize(
    "values",
    [
        {"gpu0": 100.0, "gpu1": 50.0, "gpu2": 100.0},  # two peers are not a group
        {f"gpu{i}": 100.0 - i for i in range(8)},  # within the tolerance
        {f"gpu{i}": 100.0 / (i + 1) for i in range(8)},  # a group without a common value
        {f"gpu{i}": 0.0 for i in range(8)},
    ],
)
def test_nobody_is_named_without_a_reason(values: dict[str, float]) -> None:
    assert below_peers(values, 0.10) == {}


@given(st.lists(st.floats(95, 105), min_size=4, max_size=16))
def test_five_percent_of_noise_names_nobody(values: list[float]) -> None:
    assert below_peers({f"gpu{i}": value for i, value in enumerate(values)}, 0.10) == {}


def test_actions_are_words_of_the_vocabulary() -> None:
    assert len(set(ACTIONS)) == len(ACTIONS)


def test_an_unknown_action_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="'pray' is not an action"):
        Finding("gpu_burn", Verdict.FAIL, "gpu3", "slow", action="pray")


def test_every_action_in_data_is_one_of_the_vocabulary() -> None:
    """The actions of Xids come from data/xid.yml, and a report rejects unknown actions."""
    rows = yaml.safe_load((DATA / "xid.yml").read_text()).values()
    found = {row["action"] for row in rows if isinstance(row, dict) and "action" in row}
    assert found
    assert found <= set(ACTIONS)
