"""Pairs compared with their expected rate and with one another; results that prove nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.pairs.judge import Grade, judge
from provision.checks.pairs.pairing import Outcome, Result, Topology, across, within
from tests.support.fabric import RATE, Fabric, racked


def graded(fleet: Topology, results: Iterable[Result], **more: str) -> list[Grade]:
    return [one.grade for one in judge(fleet, results, **more).judged]  # type: ignore[arg-type]


def two_rounds(fabric: Fabric) -> list[Result]:
    first = across(fabric.fleet)
    return fabric.measure(first) + fabric.measure(within(fabric.fleet, first))


def pairs(*values: float, expected: float | None = None) -> tuple[Topology, list[Result]]:
    """Return disjoint pairs of one rack with these values."""
    fleet = racked(2 * len(values), 100)
    results = [
        Result((f"n{2 * i}", f"n{2 * i + 1}"), 1, value=value, expected=expected)
        for i, value in enumerate(values)
    ]
    return fleet, results


def test_slow_pairs_are_bad_and_the_others_pass() -> None:
    assert graded(*pairs(48, 47.5, 30, 48.2, 47.9, 10)) == ["ok", "ok", "bad", "ok", "ok", "bad"]


def test_three_quarters_may_be_slow_for_a_fault_never_makes_a_pair_fast() -> None:
    assert graded(*pairs(48, 48.1, 24, 24.1, 24, 12, 23.9, 24)) == ["ok", "ok", *["bad"] * 6]


def test_one_pair_that_is_too_fast_accuses_nobody() -> None:
    assert graded(*pairs(96, 48, 48.1, 47.9, 48)) == ["ok"] * 5


@given(st.integers(0, 10_000), st.floats(0.001, 0.02), st.sampled_from([4, 6, 20, 64]))
def test_noise_of_two_percent_makes_no_pair_bad(seed: int, noise: float, count: int) -> None:
    fabric = Fabric(racked(count, 8), noise=noise, seed=seed)
    assert "bad" not in graded(fabric.fleet, two_rounds(fabric))


def test_where_results_scatter_a_slow_one_is_neither_good_nor_bad() -> None:
    chance = random.Random(5)  # noqa: S311 - a seed reproduces it
    fleet, results = pairs(*[RATE * chance.gauss(1, 0.2) for _ in range(200)])
    judgement = judge(fleet, results)
    grades = [one.grade for one in judgement.judged]
    assert Grade.BAD not in grades
    assert Grade.UNKNOWN in grades
    assert any("neither good nor bad" in note for note in judgement.notes)


def test_what_is_expected_holds_also_where_there_is_nothing_to_compare_with() -> None:
    assert graded(*pairs(48, expected=45)) == ["ok"]
    assert graded(*pairs(40, expected=45)) == ["bad"]
    fleet, results = pairs(48)
    judgement = judge(fleet, results)
    assert judgement.judged[0].grade is Grade.UNKNOWN
    assert "too few to compare" in judgement.notes[0]


def test_that_a_comparison_alone_misses_what_all_share_is_said() -> None:
    assert "a fault that slows all results alike does not show" in judge(*pairs(48, 48, 48, 48)).notes[-1]
    assert judge(*pairs(48, 48, 48, 48, expected=45)).notes == ()


def test_the_same_pair_again_and_again_is_nothing_to_compare_with() -> None:
    fleet = racked(2, 2)
    results = [Result(("n0", "n1"), n, value=10.0 + n / 10) for n in range(1, 7)]
    assert set(graded(fleet, results)) == {Grade.UNKNOWN}


def test_all_equally_slow_accuses_nobody_and_is_said() -> None:
    fleet, results = pairs(*[24.0] * 8, expected=45)
    judgement = judge(fleet, results)
    assert {one.grade for one in judgement.judged} == {Grade.UNKNOWN}
    assert "hardly any reaches the expected value (45 GB/s)" in judgement.notes[0]
    slower = judge(*pairs(*[24.0] * 8, 12, expected=45))
    assert slower.judged[-1].grade is Grade.BAD, "slow even for them"


def test_an_oversubscribed_fabric_is_slower_across_racks_by_design() -> None:
    fleet = racked(32, 8)
    fabric = Fabric(fleet, {("uplink", f"r{i}"): 0.5 for i in range(4)})
    judgement = judge(fleet, two_rounds(fabric))
    assert Grade.BAD not in {one.grade for one in judgement.judged}
    assert "16 results across racks" in judgement.notes[0]
    assert "worse than elsewhere" in judgement.notes[0]
    crossing = [one for one in judgement.judged if fleet.spans(one.result.nodes)]
    assert {one.grade for one in crossing} == {Grade.UNKNOWN}, "half the rate hides a fault of half the rate"


def test_low_latency_is_good() -> None:
    grades = graded(*pairs(1.5, 1.51, 1.49, 1.5, 3.0), direction="at_most")
    assert grades == ["ok"] * 4 + ["bad"]
    one = judge(*pairs(1.5, 3.0, expected=2.0), direction="at_most").judged
    assert [each.grade for each in one] == ["ok", "bad"]
    assert one[1].limit == pytest.approx(2.0)
    assert one[1].line == "n2 and n3 in round 1: 3 GB/s, limit 2 GB/s"


def test_a_hang_and_an_error_are_bad_and_what_did_not_run_is_unknown() -> None:
    fleet, results = pairs(48, 48, 48, 48)
    odd = [Result(("n0", "n1"), 2, outcome) for outcome in (Outcome.HANG,)]
    odd += [Result(("n2", "n3"), 2, Outcome.ERROR), Result(("n4", "n5"), 2, Outcome.NOT_RUN)]
    assert graded(fleet, results + odd)[4:] == ["bad", "bad", "unknown"]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (Result(("n0", "x9"), 1, value=48), "x9 is not of this run"),
        (Result(("n0", "n0"), 1, value=48), "it takes different nodes"),
        (Result(("n0",), 1, value=48), "it takes different nodes"),
        (Result(("n0", "n1"), 1, value=math.nan), "not a number above 0"),
        (Result(("n0", "n1"), 1, value=0), "not a number above 0"),
        (Result(("n0", "n1"), 1), "not a number above 0"),
        (Result(("n0", "n1"), 1, value=48, expected=math.inf), "its expected value is not a number above 0"),
        (Result(("n0", "n1", "n2"), 1, value=48, size=2), "the tool ran on 2 nodes, not on 3"),
        (Result(("n0", "n1"), 1, Outcome.ERROR, end="n5"), "n5, which is reported as failed"),
    ],
)
def test_what_is_no_evidence_is_left_out_and_said(result: Result, said: str) -> None:
    judgement = judge(racked(6, 6), [result])
    assert judgement.judged == ()
    assert said in judgement.notes[0]


def test_a_node_in_two_pairs_at_once_is_no_evidence() -> None:
    results = [Result(("n0", "n1"), 1, value=20), Result(("n1", "n2"), 1, value=20)]
    judgement = judge(racked(6, 6), results)
    assert judgement.judged == ()
    assert all("n1 was in another one at the same time" in note for note in judgement.notes)


def test_a_result_that_comes_twice_counts_once_and_not_at_all_when_it_differs() -> None:
    fleet, results = pairs(48, 48, 48, 48)
    assert len(judge(fleet, results + results[:1]).judged) == 4
    turned = Result(("n1", "n0"), 1, value=12)
    judgement = judge(fleet, [*results, turned])
    assert [one.result for one in judgement.judged] == results[1:]
    assert "reported more than once" in judgement.notes[0]


def test_hostile_names_are_shown_on_one_line() -> None:
    name = "n\x1b[2J\n0"
    judgement = judge(Topology((name, "n1")), [Result((name, "n1"), 1, value=0)])
    assert "\x1b" not in judgement.notes[0]
    assert "\n" not in judgement.notes[0]
