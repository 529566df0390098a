"""Conclusions from a slow group together with the pairs measured because of it."""

from __future__ import annotations

from typing import Any

import pytest

from provision.checks.judge import Verdict
from provision.checks.pairs import groups
from provision.checks.pairs.nccl_between import NCCL_GROUP
from provision.checks.pairs.pairing import Outcome, Result, Topology
from provision.checks.pairs.suspects import next_round

NODES = tuple(f"gpu-0{number}" for number in range(1, 7))
FLEET = Topology(NODES)
LEAST, GOOD = 150.0, 190.0


def group(value: float | None = GOOD, outcome: Outcome = Outcome.MEASURED, **more: Any) -> Result:
    return Result(NODES, 0, outcome, value, **{"expected": LEAST, "size": 6 if value else None, **more})


def pairs(slow: str = "") -> list[Result]:
    """Return all rounds of pairs, with pairs of the given node slow."""
    results: list[Result] = []
    number = 0
    while scheduled := next_round(FLEET, results):
        number += 1
        results += [
            Result(pair, number, value=20.0 if slow in pair else GOOD, expected=LEAST) for pair in scheduled
        ]
    return results


def told(*results: Result) -> Any:
    return groups.judged(FLEET, results, NCCL_GROUP.METRIC)


BAD = (
    group(100.0),
    group(None, Outcome.HANG, said="no end after 181 s"),
    group(None, Outcome.ERROR, said="Test NCCL failure"),
    group(None, Outcome.NOT_RUN, said="Requested nodes are busy"),
)


# --- groups alone ---


def test_a_group_that_is_as_it_should_be_clears_everybody_in_it() -> None:
    checks, fabric, lines = told(group())
    assert (fabric, lines) == ((), ())
    assert {node: check.verdict for node, check in checks.items()} == dict.fromkeys(NODES, Verdict.PASS)
    (finding,) = checks["gpu-01"].findings
    assert (finding.value, finding.unit, finding.message) == (
        GOOD,
        "GB/s",
        "passes with 5 other nodes at once",
    )
    (measured,) = checks["gpu-01"].measurements
    assert (measured.metric, measured.value, measured.unit) == ("busbw", GOOD, "GB/s")


def test_exactly_what_is_expected_is_enough() -> None:
    assert groups.as_expected([group(LEAST)])
    assert not groups.as_expected([group(LEAST - 0.01)])


@pytest.mark.parametrize("bad", [*BAD, group(expected=None)])
def test_what_is_not_known_to_be_right_is_not(bad: Result) -> None:
    assert not groups.as_expected([bad])
    assert not groups.as_expected([])
    assert not groups.as_expected([Result(NODES[:2], 1, value=GOOD, expected=LEAST)])


def test_a_node_that_was_not_in_the_group_is_not_cleared_by_it() -> None:
    checks, _, _ = groups.judged(Topology((*NODES, "gpu-07")), [group()], NCCL_GROUP.METRIC)
    assert "gpu-07" not in checks or checks["gpu-07"].verdict is not Verdict.PASS
    checks, _, _ = groups.judged(Topology(NODES[:5]), [group()], NCCL_GROUP.METRIC)
    assert set(checks) == set(NODES[:5])


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_group_alone_clears_nobody(bad: Result) -> None:
    checks, fabric, _ = told(bad)
    assert Verdict.PASS not in {check.verdict for check in checks.values()}
    assert fabric or {check.verdict for check in checks.values()} <= {Verdict.ERROR, Verdict.FAIL}


# --- groups with pairs ---


@pytest.mark.parametrize("bad", BAD)
def test_where_pairs_name_somebody_the_group_is_a_line_and_no_finding(bad: Result) -> None:
    checks, fabric, lines = told(bad, *pairs(slow="gpu-03"))
    assert fabric == ()
    assert {node for node, check in checks.items() if check.verdict is not Verdict.PASS} == {"gpu-03"}
    assert checks["gpu-03"].verdict is Verdict.FAIL
    assert lines[0].startswith("nccl_group: all 6 nodes at once: ")
    assert (bad.said or "100 GB/s, at least 150 GB/s expected") in lines[0]


@pytest.mark.parametrize(
    ("bad", "verdict"),
    [(BAD[0], Verdict.FAIL), (BAD[1], Verdict.FAIL), (BAD[2], Verdict.ERROR), (BAD[3], Verdict.ERROR)],
)
def test_where_every_pair_passes_the_group_itself_is_the_finding(bad: Result, verdict: Verdict) -> None:
    checks, fabric, _ = told(bad, *pairs())
    assert {check.verdict for check in checks.values()} == {Verdict.PASS}
    (finding,) = fabric
    assert (finding.check, finding.verdict, finding.device) == ("nccl_group", verdict, "group")
    assert "all 6 nodes at once" in finding.message
    assert (bad.said or "100 GB/s") in finding.message


def test_without_an_expectation_the_group_is_told_and_no_finding() -> None:
    checks, fabric, lines = told(group(expected=None), *pairs())
    assert fabric == ()
    assert {check.verdict for check in checks.values()} == {Verdict.PASS}
    assert lines[0] == "nccl_group: all 6 nodes at once: 190 GB/s; there is no expected value to judge it by"


def test_without_a_group_the_pairs_say_all() -> None:
    checks, fabric, _ = told(*pairs(slow="gpu-02"))
    assert (fabric, checks["gpu-02"].verdict, checks["gpu-01"].verdict) == ((), Verdict.FAIL, Verdict.PASS)


def test_hostile_words_of_a_tool_reach_no_terminal() -> None:
    _, (finding,), _ = told(group(None, Outcome.HANG, said="\x1b[2J\nfake: pass" * 100), *pairs())
    assert finding.message.isprintable()
    assert len(finding.message) < 500


def test_a_node_whose_own_end_kept_the_group_from_running_is_not_measured() -> None:
    bad = group(None, Outcome.ERROR, end="gpu-03", said="Permission denied (publickey)")
    checks, fabric, _ = told(bad, *pairs())
    assert fabric == ()
    assert {node: check.verdict for node, check in checks.items()} == {
        node: Verdict.ERROR if node == "gpu-03" else Verdict.PASS for node in NODES
    }
    assert "Permission denied (publickey)" in checks["gpu-03"].findings[-1].message
    hangs = told(group(None, Outcome.HANG, end="gpu-03"), *pairs())
    assert hangs[1][0].verdict is Verdict.FAIL, "a hang has no end of its own"
