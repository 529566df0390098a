"""Comparison of nodes with the fleet: slow ones are named; noise and quantised readings flag nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks.check import Measurement
from provision.checks.fleet import fleet_judge
from provision.checks.health import CheckResult, NodeHealth
from provision.checks.judge import Finding, Verdict, typical
from provision.checks.judging.registry import CHECKS
from provision.errors import GpuprovError

RATE = 50_000.0


def node(
    name: str,
    values: Mapping[str, float | str],
    *,
    check: str = "gpu_burn",
    metric: str = "rate",
    sku: str = "h100-sxm",
    findings: Sequence[Finding] = (),
    system: str = "debian 13",
) -> NodeHealth:
    measured = tuple(Measurement(metric, value, "GB/s", device) for device, value in values.items())
    result = CheckResult(
        check, Verdict.PASS, tuple(findings) or (Finding(check, Verdict.PASS, "node", "fine"),), measured, 1.0
    )
    facts = {"sku": sku, "gpus": 8, "os": system}
    return NodeHealth(name, Verdict.PASS, (result,), (), facts)


def burning(name: str, rates: Sequence[float], **more: str) -> NodeHealth:
    return node(name, {f"gpu{i}": rate for i, rate in enumerate(rates)}, **more)  # type: ignore[arg-type]


def noise(seed: int, sigma: float = 0.006) -> random.Random:
    return random.Random(seed * 1000 + int(sigma * 1e4))  # noqa: S311 - a seed reproduces it


def fleet(count: int, seed: int = 1, sigma: float = 0.006) -> list[list[float]]:
    chance = noise(seed, sigma)
    return [[RATE * chance.gauss(1, sigma) for _ in range(8)] for _ in range(count)]


def accused(nodes: Sequence[NodeHealth]) -> dict[tuple[str, str], Verdict]:
    judged, _ = fleet_judge.judge(nodes)
    return {
        (one.node, finding.device): finding.verdict
        for one in judged
        for check in one.checks
        for finding in check.findings
        if finding.verdict in (Verdict.WARN, Verdict.FAIL)
    }


def nodes_of(rates: Sequence[Sequence[float]]) -> list[NodeHealth]:
    return [burning(f"gpu-{i:02}", row) for i, row in enumerate(rates)]


def test_a_node_all_of_whose_gpus_are_slow_is_named_once_as_a_node() -> None:
    rates = fleet(6)
    rates[2] = [rate * 0.92 for rate in rates[2]]
    rates[4] = [rate * 0.7 for rate in rates[4]]
    assert accused(nodes_of(rates)) == {("gpu-02", "node"): Verdict.WARN, ("gpu-04", "node"): Verdict.FAIL}
    judged, left = fleet_judge.judge(nodes_of(rates))
    finding = judged[2].checks[0].findings[-1]
    assert left == ()
    assert judged[2].verdict is judged[2].checks[0].verdict is Verdict.WARN
    assert finding.value == pytest.approx(46_000, rel=0.01)
    assert "8% below the" in finding.message
    assert "median of 6 nodes of h100-sxm" in finding.message
    assert finding.action == "investigate"
    assert finding.limit
    assert any("median" in line for line in finding.evidence)


def test_one_slow_gpu_is_named_and_its_node_is_not() -> None:
    rates = fleet(5)
    rates[3][6] *= 0.85
    assert accused(nodes_of(rates)) == {("gpu-03", "gpu6"): Verdict.WARN}
    rates[3][6] *= 0.8
    assert accused(nodes_of(rates)) == {("gpu-03", "gpu6"): Verdict.FAIL}


def test_a_gpu_that_is_slow_even_for_its_slow_node_is_named_beside_it() -> None:
    rates = fleet(6)
    rates[1] = [rate * 0.85 for rate in rates[1]]
    rates[1][5] *= 0.6
    assert set(accused(nodes_of(rates))) == {("gpu-01", "node"), ("gpu-01", "gpu5")}


@given(st.integers(4, 24), st.data())
def test_any_minority_of_slow_gpus_is_found_and_nobody_else(count: int, data: st.DataObject) -> None:
    """Up to nearly half of all values are slow, all in the same way or each in a different one."""
    everyone = [(i, gpu) for i in range(count) for gpu in range(8)]
    most = (len(everyone) - 1) // 2
    bad = data.draw(st.lists(st.sampled_from(everyone), unique=True, max_size=most))
    same = data.draw(st.booleans())
    rates = fleet(count, seed=data.draw(st.integers(0, 999)))
    for i, gpu in bad:
        rates[i][gpu] *= 0.7 if same else data.draw(st.floats(0.1, 0.8))
    found = set(accused(nodes_of(rates)))
    expected = {(f"gpu-{i:02}", f"gpu{gpu}") for i, gpu in bad}
    whole = {name for name, device in found if device == "node"}
    assert found - {(name, "node") for name in whole} <= expected, "a good GPU was accused"
    for name, device in expected - found:
        assert name in whole, f"{name} {device} went unseen"
    for name in whole:
        assert sum(f"gpu-{i:02}" == name for i, _ in bad) >= 6


@given(
    st.lists(st.lists(st.floats(0.98 * RATE, 1.02 * RATE), min_size=8, max_size=8), min_size=1, max_size=12)
)
def test_no_value_within_the_tolerance_is_ever_accused(rates: list[list[float]]) -> None:
    assert accused(nodes_of(rates)) == {}


@pytest.mark.parametrize("sigma", [0.006, 0.02, 0.08, 0.2])
def test_noise_of_any_width_accuses_almost_nobody(sigma: float) -> None:
    """With purely normal noise, one group in a hundred is flagged by design."""
    named = [accused(nodes_of(fleet(12, seed=seed, sigma=sigma))) for seed in range(60)]
    assert sum(bool(found) for found in named) <= 3


@given(st.permutations(range(9)), st.integers(0, 99))
def test_the_order_of_nodes_does_not_matter(order: list[int], seed: int) -> None:
    rates = fleet(9, seed=seed)
    rates[0] = [rate * 0.8 for rate in rates[0]]
    rates[5][1] *= 0.5
    nodes = nodes_of(rates)
    there = {one.node: one for one in fleet_judge.judge(nodes)[0]}
    back = {one.node: one for one in fleet_judge.judge([nodes[i] for i in order])[0]}
    assert there == back


def test_readings_in_steps_do_not_make_the_next_step_an_outlier() -> None:
    """When all readings except one are equal, the deviation is 0, and the tolerance still applies."""
    values = [[50_000.0] * 8 for _ in range(20)]
    values[7][3] = 47_500.0
    assert accused(nodes_of(values)) == {}
    values[7][3] = 44_000.0
    assert set(accused(nodes_of(values))) == {("gpu-07", "gpu3")}


def test_half_against_half_accuses_nobody() -> None:
    rates = fleet(8)
    for row in rates[:4]:
        row[:] = [rate * 0.7 for rate in row]
    assert accused(nodes_of(rates)) == {}


def test_a_small_group_is_said_once_and_nothing_passes_by_it() -> None:
    rates = fleet(3)
    rates[1] = [rate * 0.5 for rate in rates[1]]
    warned = Finding("gpu_burn", Verdict.WARN, "node", "no limit is known", action="fix configuration")
    nodes = [
        node(f"gpu-{i}", {f"gpu{g}": value for g, value in enumerate(row)}, findings=[warned])
        for i, row in enumerate(rates)
    ]
    judged, left = fleet_judge.judge(nodes)
    assert list(judged) == nodes
    assert left == ("h100-sxm: 3 nodes; it takes 4 to compare them",)


def test_groups_are_skus_whatever_their_system() -> None:
    slow = [burning(f"a100-{i}", [20_000.0] * 8, sku="a100-sxm-80", system=f"rocky {i}") for i in range(4)]
    fast = [burning(f"h100-{i}", [50_000.0] * 8) for i in range(4)]
    assert accused([*slow, *fast]) == {}
    odd = burning("a100-9", [15_000.0] * 8, sku="a100-sxm-80")
    assert set(accused([*slow, *fast, odd])) == {("a100-9", "node")}


def matrix(base: float, slow: Mapping[tuple[int, int], float] | None = None) -> dict[str, float | str]:
    return {
        f"gpu{a}->gpu{b}": (slow or {}).get((a, b), base * (2.0 if a // 2 == b // 2 else 1.0))
        for a in range(8)
        for b in range(8)
        if a != b
    }


def pairs(name: str, values: Mapping[str, float | str]) -> NodeHealth:
    return node(name, values, check="p2p_bandwidth", metric="p2p_read")


def test_pairs_are_compared_with_the_same_pair_elsewhere() -> None:
    """On a PCIe machine it is normal for a bridged pair to be twice as fast as the others."""
    nodes = [pairs(f"gpu-{i}", matrix(20.0 + i / 100)) for i in range(6)]
    assert accused(nodes) == {}
    nodes[2] = pairs("gpu-2", matrix(20.0, {(2, 3): 20.0, (3, 2): 20.0}))
    assert accused(nodes) == {("gpu-2", "gpu2-gpu3"): Verdict.FAIL}
    nodes[4] = pairs("gpu-4", matrix(10.0))
    assert accused(nodes)["gpu-4", "node"] is Verdict.FAIL


def test_pairs_of_a_node_without_one_of_its_gpus_are_no_pairs_of_the_others() -> None:
    """The GPUs behind the missing one move up, so that gpu2 and gpu3 are no longer adjacent."""
    nodes = [pairs(f"gpu-{i:02}", matrix(40.0)) for i in range(5)]
    moved = pairs("gpu-05", matrix(40.0, {(2, 3): 40.0, (3, 2): 40.0}))
    assert set(accused([*nodes, moved])) == {("gpu-05", "gpu2-gpu3")}
    assert accused([*nodes, replace(moved, facts={**moved.facts, "gpus": 7})]) == {}


def test_what_is_accused_already_is_not_accused_twice() -> None:
    nodes = nodes_of(fleet(5))
    known = Finding(
        "gpu_burn", Verdict.FAIL, "gpu1", "slow", "rate", 1.0, "GB/s", "≥ 2 GB/s", "x", "replace part"
    )
    values = {f"gpu{i}": RATE for i in range(8)} | {"gpu1": 0.5 * RATE}
    nodes[0] = node("gpu-00", values, findings=[known])
    judged, _ = fleet_judge.judge(nodes)
    assert judged[0].checks[0].findings == (known,)


def test_a_warning_that_no_limit_is_known_does_not_hide_a_slow_node() -> None:
    unknown = Finding("nccl_all_reduce", Verdict.WARN, "node", "no limit is known", "busbw", 300.0, "GB/s")
    nodes = [
        node(
            f"gpu-{i}",
            {"node": 470.0 if i else 300.0},
            check="nccl_all_reduce",
            metric="busbw",
            findings=[unknown],
        )
        for i in range(5)
    ]
    assert accused(nodes)["gpu-0", "node"] is Verdict.FAIL
    assert accused(nodes)["gpu-1", "node"] is Verdict.WARN, "what was a warning stays one"


def test_words_and_infinities_are_no_values() -> None:
    nodes = nodes_of(fleet(5))
    nodes[0] = node("gpu-00", {"gpu0": "N/A", "gpu1": float("nan"), "gpu2": float("inf"), "gpu3": RATE})
    assert accused(nodes) == {}
    assert fleet_judge.judge([]) == ((), ())
    assert accused([burning(f"gpu-{i}", [0.0] * 8) for i in range(5)]) == {}


def test_ten_thousand_nodes_take_seconds() -> None:
    chance = random.Random(7)  # noqa: S311 - as above
    nodes = [burning(f"n{i}", [RATE * chance.gauss(1, 0.006) for _ in range(8)]) for i in range(10_000)]
    nodes[1234] = burning("n1234", [RATE * 0.9] * 8)
    begin = time.process_time()
    assert set(accused(nodes)) == {("n1234", "node")}
    assert time.process_time() - begin < 10


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=60), st.floats(0.01, 0.2))
def test_what_most_are_like_rests_on_more_than_half(values: list[float], tolerance: float) -> None:
    usual = typical(values, tolerance)
    assert usual.core > len(values) // 2
    assert min(values) <= usual.middle <= max(values)
    assert typical(values[::-1], tolerance) == usual


def test_slots_with_fewer_lanes_are_compared_with_their_like() -> None:
    rates = {f"gpu{i}": 55.0 for i in range(8)}
    whole = [node(f"gpu-{i}", rates, check="p2p_bandwidth", metric="h2d") for i in range(6)]
    narrow = node("gpu-6", dict.fromkeys(rates, 27.5), check="p2p_bandwidth", metric="h2d")
    assert {name for name, _ in accused([*whole, narrow])} == {"gpu-6"}
    declared = replace(narrow, facts={**narrow.facts, "pcie_width": 8})
    assert accused([*whole, declared]) == {}


def test_ports_of_another_rate_are_compared_with_their_like() -> None:
    """A split cable runs at 200 Gb/s by design, under other limits than a 400 Gb/s port."""

    def over(name: str, share: float, rate: float) -> NodeHealth:
        one = node(name, {"": share}, check="nccl_network", metric="rail_share")
        (check,) = one.checks
        ports = (Measurement("cards", 8, "cards"), Measurement("rate", rate, "Gb/s"))
        return replace(one, checks=(replace(check, measurements=(*check.measurements, *ports)),))

    whole = [over(f"gpu-{i}", 84.0, 400.0) for i in range(5)]
    assert {name for name, _ in accused([*whole, over("gpu-5", 79.0, 400.0)])} == {"gpu-5"}
    assert accused([*whole, over("gpu-5", 79.0, 200.0)]) == {}


def test_the_shipped_table_names_checks_that_exist() -> None:
    table = fleet_judge.shipped()
    assert {metric.check for metric in table.metrics.values()} <= set(CHECKS)
    assert table.smallest >= 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"warn": 0.5, "fail": 0.2}, "warn the smaller"),
        ({"direction": "up"}, "direction must be one of"),
        ({"action": "pray"}, "action must be one of"),
        ({"source": ""}, "source is missing"),
        ({"wran": 0.1}, "wran"),
    ],
)
def test_a_bad_table_is_refused(change: dict[str, object], said: str) -> None:
    row = {"what": "rate", "direction": "at_least", "compare": "devices", "warn": 0.1, "fail": 0.2}
    row |= {"action": "investigate", "source": "a known paper", "why": "it costs throughput"} | change
    with pytest.raises(GpuprovError, match=said):
        fleet_judge.read({"smallest_group": {"nodes": 4}, "metrics": {"gpu_burn.rate": row}}, "t.yml")


@pytest.mark.parametrize("seed", range(10))
def test_nearly_half_that_are_slow_do_not_hide_behind_the_scatter_they_make(seed: int) -> None:
    """They attract a plain median and its deviations: 45 % of the nodes are slow, with 2 % of noise."""
    rates = fleet(20, seed=seed, sigma=0.02)
    for row in rates[:9]:
        row[:] = [rate * 0.8 for rate in row]
    assert {name for name, _ in accused(nodes_of(rates))} == {f"gpu-{i:02}" for i in range(9)}
