"""ib_write_lat between two nodes: the command at each end, the expected latency, and the results."""

from __future__ import annotations

from typing import Any

import pytest

from provision.checks.check import CheckNode, Output
from provision.checks.judge import ACTIONS, Verdict
from provision.checks.pairs.groups import judged_pairs
from provision.checks.pairs.pairing import Outcome, Pair, Result, Topology
from provision.checks.pairs.perftest_ends import shared
from provision.checks.pairs.suspects import next_round
from provision.checks.pairs.write_lat import METRIC, commands, expected, results
from tests.support.fabric import racked
from tests.support.pair_nodes import NO_DEVICE, NOBODY, SERVING, facts, output, printed, printed_latency

PAIR = ("gpu-01", "gpu-02")
GPUS = {"gpu": {"count": 8, "sku": "h100-sxm"}}
MOST = 10.0
RAILS = ("mlx5_0", "mlx5_1")


def node(name: str = "gpu-01", **more: Any) -> CheckNode:
    return CheckNode(name, GPUS, more.pop("variables", {}), facts(**more))


# --- commands ---


def test_both_ends_send_small_messages_on_the_same_rails_and_tcp_ports() -> None:
    serving, asking = commands(node(), node("gpu-02"), "10.0.0.1")
    assert [one.name for one in serving] == [one.name for one in asking] == ["mlx5_0", "mlx5_1"]
    for its, other in zip(serving, asking, strict=True):
        assert other.argv == (*its.argv, "10.0.0.1")
        assert its.argv[:3] == ("/usr/bin/ib_write_lat", "-d", its.name)
        assert its.argv[its.argv.index("-s") + 1] == "2"
        assert (other.retry_on in NOBODY, its.retry_on) == (True, "")
        assert its.deadline > other.deadline


def test_a_slow_port_is_as_quick() -> None:
    fast, slow = (commands(node(), node("gpu-02", rate=rate), "a")[1][0].deadline for rate in (400, 25))
    assert fast == slow < 20


def test_the_inventory_says_where_the_program_is() -> None:
    other = node("gpu-02", variables={"validation_tools_ib_write_lat_path": "/opt/ib_write_lat"})
    (its, _), (asks, _) = commands(node(), other, "a")
    assert (its.argv[0], asks.argv[0]) == ("/usr/bin/ib_write_lat", "/opt/ib_write_lat")


@pytest.mark.parametrize("racks", [{}, {"gpu-01": "a", "gpu-02": "a"}, {"gpu-01": "a", "gpu-02": "b"}])
@pytest.mark.parametrize("oversubscription", [1, 3])
def test_the_same_is_expected_wherever_they_are(racks: dict[str, str], oversubscription: float) -> None:
    (ports, _) = shared(node(), node("gpu-02", rate=200))
    assert expected(Topology(PAIR, racks), PAIR, ports, oversubscription) == MOST


# --- results ---

SERVED = output(stdout=SERVING + printed_latency(1.87))


def read(server: Output | None, client: Output | None) -> Result:
    outputs = {name: {one.name: one} for name, one in zip(PAIR, (server, client), strict=True) if one}
    (result,) = results(PAIR, 2, [("mlx5_0", MOST)], outputs)
    assert (result.nodes, result.round, result.rail, result.expected) == (PAIR, 2, "mlx5_0", MOST)
    return result


def test_the_median_is_measured_and_the_percentile_beside_it() -> None:
    result = read(SERVED, output(stdout=printed_latency(1.87)))
    assert (result.outcome, result.value, result.unit) == (Outcome.MEASURED, 1.87, "us")
    assert result.said == "99 % within 2.06 us"


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (output(stdout=printed_latency(1.87)[:-88]), "stops before its end"),
        (output(stdout=printed_latency(1.87), truncated=True), "ib_write_lat: the output was cut"),
        (output(stdout=printed_latency(1.87, size=4)), "something other than requested"),
        (output(stdout=printed_latency(float("nan"))), "row not understood"),
        (output(stdout=printed_latency(0.0)), "row not understood"),
        (output(stdout=printed(394.0)), "header not understood"),
        (output(stdout=""), "nothing printed"),
        (output(stdout="\x1b[31m" * 9000), "no result"),
    ],
)
def test_an_output_that_is_not_understood_is_an_error(client: Output, said: str) -> None:
    result = read(SERVED, client)
    assert (result.outcome, result.value, result.end) == (Outcome.ERROR, None, "gpu-02")
    assert said in result.said


def test_what_ends_badly_is_told_as_of_every_program() -> None:
    waited = output(rc=None, timed_out=True, stdout=SERVING)
    assert read(waited, output(rc=None, timed_out=True, seconds=14.0)).outcome is Outcome.HANG
    failed = read(waited, output(rc=1, stderr=NO_DEVICE))
    assert (failed.outcome, failed.end) == (Outcome.ERROR, "gpu-02")


# --- verdicts ---

FLEET = racked(12, 4)


def campaign(fleet: Topology, late: tuple[str, ...] = (), rail: str = "", by: float = 5.0) -> Any:
    """Judge all rounds of a fleet in which pairs of all these nodes are late, on one rail or on all.
    Racks are three switches apart."""

    def latency(pair: Pair, on: str) -> float:
        usual = 1.87 if fleet.spans(pair) else 1.25
        hit = late and set(late) <= set(pair) and rail in ("", on)
        return usual * (by if hit else 1.0)

    results: list[Result] = []
    number = 0
    while pairs := next_round(fleet, results, tolerance=METRIC.tolerance, direction=METRIC.direction):
        number += 1
        results += [
            Result(pair, number, value=latency(pair, on), rail=on, unit="us", expected=MOST)
            for pair in pairs
            for on in RAILS
        ]
    return judged_pairs(fleet, results, METRIC)


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 12])
def test_a_healthy_fleet_passes_with_its_latest_message_shown(nodes: int) -> None:
    checks, fabric, _ = campaign(racked(nodes, 4))
    assert fabric == ()
    assert {check.verdict for check in checks.values()} == {Verdict.PASS}
    (finding,) = checks["n0"].findings
    values = [one.value for one in checks["n0"].measurements]
    assert (finding.value, finding.unit) == (max(values), "us")
    assert {(one.metric, one.unit) for one in checks["n0"].measurements} == {("latency", "us")}


@pytest.mark.parametrize(
    ("rail", "device", "what"), [("", "node", "it"), ("mlx5_1",) * 2 + ("its rail mlx5_1",)]
)
def test_a_late_node_and_a_late_rail_are_named(rail: str, device: str, what: str) -> None:
    checks, fabric, _ = campaign(FLEET, ("n5",), rail)
    assert fabric == ()
    assert [name for name, check in checks.items() if check.verdict is not Verdict.PASS] == ["n5"]
    (finding,) = [one for one in checks["n5"].findings if one.verdict is Verdict.FAIL]
    assert (finding.device, finding.action) == (device, "investigate")
    assert finding.message.startswith(f"{what} has a high latency between nodes: ")
    assert "slow" not in finding.message
    assert any(line.endswith("usual 1.25 us") or "usual 1.87 us" in line for line in finding.evidence)


def test_a_late_link_is_the_fabrics() -> None:
    first = next_round(FLEET, [])[0]
    checks, fabric, _ = campaign(FLEET, first)
    (finding,) = fabric
    link = f"link {first[0]}-{first[1]}"
    assert (finding.verdict, finding.device, finding.action in ACTIONS) == (Verdict.FAIL, link, True)
    assert finding.message.startswith(f"{link} has a high latency: ")
    assert {name for name, check in checks.items() if check.verdict is Verdict.WARN} == set(first)
    assert f"it is connected to {link}, which has a high latency" in {
        one.message for one in checks[first[0]].findings
    }


def test_two_switches_more_are_no_fault_and_twice_the_usual_is() -> None:
    assert campaign(FLEET, ("n5",), by=1.9)[0]["n5"].verdict is Verdict.PASS
    assert campaign(FLEET, ("n5",), by=2.2)[0]["n5"].verdict is Verdict.FAIL


@pytest.mark.parametrize(("by", "suspected"), [(5.0, False), (10.0, True)])
def test_two_nodes_have_the_absolute_limit(by: float, suspected: bool) -> None:
    """6.25 us may be normal for this fabric; 12.5 us is too much anywhere."""
    fleet = racked(2, 4)
    checks, fabric, _ = campaign(fleet, ("n0", "n1"), by=by)
    assert {check.verdict for check in checks.values()} == {Verdict.WARN if suspected else Verdict.PASS}
    assert [finding.device for finding in fabric] == ["suspects"] * suspected
    if suspected:
        assert "at least one has a high latency" in fabric[0].message
        assert "limit 10 us" in fabric[0].evidence[0]


def test_what_all_miss_alike_names_nobody_and_passes_nobody() -> None:
    late = [
        Result(pair, 1, value=25.0, rail=on, unit="us", expected=MOST)
        for pair in next_round(FLEET, [])
        for on in RAILS
    ]
    checks, fabric, lines = judged_pairs(FLEET, late, METRIC)
    assert fabric == ()
    assert Verdict.PASS not in {check.verdict for check in checks.values()}
    assert any("25 us is usual and hardly any reaches the expected value (10 us)" in line for line in lines)
