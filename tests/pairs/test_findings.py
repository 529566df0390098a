"""Findings on pairs of nodes: a guilty node fails, nodes behind a bad link or switch get a warning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from provision.checks.health import CheckResult
from provision.checks.judge import ACTIONS, Finding, Verdict
from provision.checks.pairs.groups import judged_pairs
from provision.checks.pairs.pairing import Outcome, Pair, Result, Topology
from provision.checks.pairs.suspects import next_round
from provision.checks.pairs.write_bw import METRIC
from tests.support.fabric import racked

RAILS = ("mlx5_0", "mlx5_1/1")
LEAST = 360.0
GOOD = 394.0

Measure = Callable[[Pair, int, str], Result]


def answer(pair: Pair, number: int, rail: str, value: float = GOOD, expected: float = LEAST) -> Result:
    return Result(pair, number, value=value, rail=rail, unit="Gb/s", expected=expected)


def error(pair: Pair, number: int, rail: str, end: str = "", said: str = "ib_write_bw: gone") -> Result:
    return Result(pair, number, Outcome.ERROR, None, rail, "Gb/s", LEAST, end, said=said)


def campaign(fleet: Topology, measure: Measure, rails: Sequence[str] = RAILS) -> list[Result]:
    """Run all rounds of a fleet."""
    results: list[Result] = []
    number = 0
    while pairs := next_round(fleet, results):
        number += 1
        results += [measure(pair, number, rail) for pair in pairs for rail in rails]
    return results


def told(fleet: Topology, measure: Measure, rails: Sequence[str] = RAILS) -> Any:
    return judged_pairs(fleet, campaign(fleet, measure, rails), METRIC)


def verdicts(checks: Mapping[str, CheckResult], *nodes: str) -> set[Verdict]:
    return {checks[node].verdict for node in nodes}


def bad(check: CheckResult) -> list[Finding]:
    return [finding for finding in check.findings if finding.verdict is not Verdict.PASS]


def slow(names: Sequence[str], rail: str = "") -> Measure:
    """Return a fabric in which pairs of all these nodes are slow, on one rail or on all."""

    def measure(pair: Pair, number: int, on: str) -> Result:
        hit = set(names) <= set(pair) and rail in ("", on)
        return answer(pair, number, on, 150.0 if hit else GOOD)

    return measure


def with_n5(ends: Measure) -> Measure:
    """Return a fabric in which all pairs with n5 end like this."""
    return lambda pair, number, rail: (ends if "n5" in pair else answer)(pair, number, rail)


FLEET = racked(12, 4)  # n0 … n11 in racks r0, r1, r2


def test_a_healthy_fleet_passes_with_the_least_that_was_measured() -> None:
    checks, fabric, lines = told(FLEET, answer)
    assert verdicts(checks, *FLEET.nodes) == {Verdict.PASS}
    assert (fabric, lines) == ((), ())
    (finding,) = checks["n0"].findings
    assert (finding.value, finding.unit, finding.message) == (GOOD, "Gb/s", "passes with 2 other nodes")
    devices = [m.device for m in checks["n0"].measurements]
    assert len(devices) == 2 * len(RAILS) == len(set(devices))
    assert devices[0].startswith("mlx5_0->n")
    assert devices[0].endswith(" round 1")


def test_a_slow_node_fails_alone() -> None:
    checks, fabric, _ = told(FLEET, slow(["n5"]))
    assert fabric == ()
    assert verdicts(checks, *(n for n in FLEET.nodes if n != "n5")) == {Verdict.PASS}
    (finding,) = bad(checks["n5"])
    assert (finding.verdict, finding.device, finding.action) == (
        Verdict.FAIL,
        "node",
        "reseat or check cable",
    )
    assert "it is slow between nodes" in finding.message
    assert any("n5" in line and "150 Gb/s" in line for line in finding.evidence)


@pytest.mark.parametrize("rail", RAILS)
def test_a_slow_rail_is_named_also_one_with_a_slash(rail: str) -> None:
    checks, fabric, _ = told(FLEET, slow(["n5"], rail))
    assert fabric == ()
    (finding,) = bad(checks["n5"])
    assert (finding.verdict, finding.device) == (Verdict.FAIL, rail)
    assert f"its rail {rail} is slow" in finding.message


def test_a_name_that_looks_like_a_rail_is_a_name() -> None:
    fleet = Topology((*(f"n{i}" for i in range(7)), "n7/rail 3"), {})
    checks, _, _ = told(fleet, slow(["n7/rail 3"]), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"])
    (finding,) = bad(checks["n7/rail 3"])
    assert (finding.verdict, finding.device) == (Verdict.FAIL, "node")
    assert "its rail" not in finding.message


def test_with_one_rail_it_is_the_node() -> None:
    checks, fabric, _ = told(FLEET, slow(["n5"]), ["mlx5_0"])
    assert fabric == ()
    (finding,) = bad(checks["n5"])
    assert (finding.verdict, finding.device) == (Verdict.FAIL, "node")


def test_a_slow_link_is_the_fabrics_and_its_ends_are_warned() -> None:
    first = next_round(FLEET, [])[0]
    checks, fabric, _ = told(FLEET, slow(first))
    (finding,) = fabric
    assert (finding.verdict, finding.device) == (Verdict.FAIL, f"link {first[0]}-{first[1]}")
    assert verdicts(checks, *first) == {Verdict.WARN}
    assert verdicts(checks, *(n for n in FLEET.nodes if n not in first)) == {Verdict.PASS}
    (warning,) = bad(checks[first[0]])
    assert finding.device in warning.message


def test_nodes_called_like_gpus_are_not_taken_for_gpus() -> None:
    """A device `link gpu1-gpu2` would show the serial numbers of two GPUs of an unrelated node."""
    fleet = Topology(tuple(f"gpu{i}" for i in range(8)))
    first = next_round(fleet, [])[0]
    checks, _, _ = told(fleet, slow(first))
    assert {finding.device for node in first for finding in bad(checks[node])} == {"node"}


def test_a_slow_uplink_warns_the_nodes_behind_it() -> None:
    def measure(pair: Pair, number: int, rail: str) -> Result:
        racks = {FLEET.racks[node] for node in pair}
        return answer(pair, number, rail, 150.0 if len(racks) > 1 and "r1" in racks else GOOD)

    checks, fabric, _ = told(FLEET, measure)
    (finding,) = fabric
    assert finding.device == "uplink of rack r1"
    behind = FLEET.members["r1"]
    assert verdicts(checks, *behind) == {Verdict.WARN}
    assert "the node itself is not to blame" in bad(checks[behind[0]])[0].message
    assert len({finding for node in behind for finding in bad(checks[node])}) == 1, "told once, by the report"


def test_a_node_that_hangs_fails() -> None:
    def hang(pair: Pair, number: int, rail: str) -> Result:
        return Result(pair, number, Outcome.HANG, None, rail, "Gb/s", LEAST, said="no end after 13 s")

    checks, _, _ = told(FLEET, with_n5(hang))
    (finding,) = bad(checks["n5"])
    assert (finding.verdict, finding.action) == (Verdict.FAIL, "investigate")
    assert "it hangs between nodes" in finding.message


@pytest.mark.parametrize("rails", [RAILS, ("mlx5_0",)])
def test_a_program_that_is_missing_on_a_node_is_an_error_of_that_node(rails: Sequence[str]) -> None:
    """Unknown is not failed, since its cards may be fine."""
    missing = partial(error, end="n5", said="/usr/bin/ib_write_bw is not installed")
    checks, fabric, _ = told(FLEET, with_n5(missing), rails)
    assert fabric == ()
    (finding,) = bad(checks["n5"])
    assert finding.verdict is Verdict.ERROR
    assert "could not be measured" in finding.message
    assert "is not installed" in finding.evidence[0]
    assert verdicts(checks, *(n for n in FLEET.nodes if n != "n5")) == {Verdict.PASS}


def test_a_node_with_which_every_transfer_breaks_fails() -> None:
    checks, _, _ = told(FLEET, with_n5(error))
    (finding,) = bad(checks["n5"])
    assert finding.verdict is Verdict.FAIL
    assert "it fails between nodes" in finding.message


def test_what_is_bad_once_and_not_again_blames_nobody() -> None:
    def once(pair: Pair, number: int, rail: str) -> Result:
        return answer(pair, number, rail, 150.0 if number == 1 else GOOD)

    checks, fabric, lines = told(FLEET, with_n5(once))
    assert fabric == ()
    assert verdicts(checks, *FLEET.nodes) == {Verdict.PASS}
    assert any("bad once, then good" in line for line in lines)


def test_two_nodes_that_are_slow_are_both_suspects() -> None:
    fleet = Topology(("gpu-01", "gpu-02"))
    checks, fabric, lines = told(fleet, slow(["gpu-01", "gpu-02"]))
    (finding,) = fabric
    assert (finding.verdict, finding.device) == (Verdict.FAIL, "suspects")
    assert verdicts(checks, "gpu-01", "gpu-02") == {Verdict.WARN}
    assert any("two nodes have one pair" in line for line in lines)


def test_a_leaf_that_may_be_it_as_well_does_not_fail_its_one_measured_node() -> None:
    """The other node in n1's rack is unknown, so the leaf may be the slow part."""
    fleet = Topology(
        ("n1", "n2", "n3", "n4", "n5", "n6"), {"n1": "a", "n2": "a"} | {f"n{i}": "b" for i in (3, 4, 5, 6)}
    )
    results = [
        *(answer(("n1", f"n{other}"), number, "mlx5_0", 150.0) for number, other in ((1, 3), (2, 4))),
        *(answer(("n5", "n6"), number, "mlx5_0") for number in (1, 2)),
        *(answer(pair, 3, "mlx5_0") for pair in (("n3", "n5"), ("n4", "n6"))),
        Result(("n2", "n1"), 3, Outcome.NOT_RUN, said="they have no rail in common"),
    ]
    checks, fabric, _ = judged_pairs(fleet, results, METRIC)
    assert Verdict.FAIL not in verdicts(checks, *fleet.nodes)
    (finding,) = fabric
    assert "leaf of rack a" in finding.message
    assert checks["n1"].verdict is Verdict.WARN
    assert checks["n2"].verdict is Verdict.ERROR
    assert "no rail in common" in checks["n2"].findings[0].evidence[0]


@pytest.mark.parametrize("nodes", [0, 1])
def test_without_a_pair_nobody_passes(nodes: int) -> None:
    fleet = Topology(("gpu-01",)[:nodes])
    checks, fabric, lines = told(fleet, answer)
    assert fabric == ()
    assert [check.verdict for check in checks.values()] == [Verdict.ERROR] * nodes
    assert any("there is no pair to measure" in line for line in lines)


@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_of_any_number_of_nodes_all_are_measured(count: int) -> None:
    fleet = Topology(tuple(f"n{i}" for i in range(count)))
    checks, _, _ = told(fleet, answer)
    assert verdicts(checks, *fleet.nodes) == {Verdict.PASS}


def test_a_rack_that_is_missing_on_some_is_said() -> None:
    fleet = Topology(FLEET.nodes, {node: rack for node, rack in FLEET.racks.items() if node != "n3"})
    checks, fabric, lines = told(fleet, answer)
    assert (verdicts(checks, *fleet.nodes), fabric) == ({Verdict.PASS}, ())
    assert any("gpuprov_rack is missing on n3" in line for line in lines)


@pytest.mark.parametrize("rails", [RAILS, ("mlx5_0",)])
@pytest.mark.parametrize(("nodes", "size"), [(4, 2), (6, 3), (6, 2), (9, 3), (16, 4)])
@pytest.mark.parametrize("across", [GOOD, LEAST / 3 + 5])
def test_an_oversubscribed_fabric_blames_nobody_whether_its_uplinks_are_full_or_not(
    rails: Sequence[str], nodes: int, size: int, across: float
) -> None:
    fleet = racked(nodes, size)

    def measure(pair: Pair, number: int, rail: str) -> Result:
        far = bool(fleet.spans(pair))
        return answer(pair, number, rail, across if far else GOOD, LEAST / 3 if far else LEAST)

    checks, fabric, _ = told(fleet, measure, rails)
    assert fabric == ()
    assert verdicts(checks, *fleet.nodes) == {Verdict.PASS}


def test_results_of_strangers_are_left_out_and_said() -> None:
    results = campaign(FLEET, answer)
    strange = [answer(("n0", "gone-01"), 1, "mlx5_0"), answer(("n0", "n0"), 2, "mlx5_0")]
    checks, _, lines = judged_pairs(FLEET, [*results, *strange], METRIC)
    assert verdicts(checks, *FLEET.nodes) == {Verdict.PASS}
    assert any("gone-01 is not of this run" in line for line in lines)
    assert any("it takes different nodes" in line for line in lines)


def test_what_nodes_say_stays_on_its_line_and_every_action_is_known() -> None:
    hostile = partial(error, said="\x1b[31mred\nnext\u202e" * 99)
    checks, fabric, lines = told(FLEET, with_n5(hostile), ["x\n\x1b[2J"])
    findings = [finding for check in checks.values() for finding in check.findings] + list(fabric)
    assert {finding.action for finding in findings} <= set(ACTIONS)
    for text in (*lines, *(f.message for f in findings), *(line for f in findings for line in f.evidence)):
        assert text.isprintable(), text
        assert len(text) < 1000
