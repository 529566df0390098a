"""Limits learnt from runs: the value most devices reach, less a margin; none from unusable samples."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.checks import thresholds
from provision.checks.check import Measurement
from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.checks.judging import baseline
from provision.checks.judging.baseline import Sample, learn, render, rules
from provision.checks.judging.threshold_evidence import Certainty, Healthy, Rule, healthy, of_limit, quantile
from provision.checks.thresholds import for_sku

Values = Mapping[str, Mapping[str, float | str]]  # node → device → value


def made(metric: str, values: Values, sku: str = "h100-sxm", run: str = "r1") -> list[Sample]:
    return [
        Sample(sku, metric, run, node, device, float(value))
        for node, found in values.items()
        for device, value in found.items()
    ]


def rates(
    nodes: int, seed: int = 1, sigma: float = 0.005, middle: float = 50_000
) -> dict[str, dict[str, float]]:
    chance = random.Random(seed)  # noqa: S311 - a seed reproduces it
    return {f"gpu-{i}": {f"gpu{g}": middle * chance.gauss(1, sigma) for g in range(8)} for i in range(nodes)}


def limit_of(found: baseline.Baseline, metric: str, sku: str = "h100-sxm") -> float:
    return next(limit.limit for limit in found.limits[sku] if limit.metric == metric)


def test_a_limit_is_the_median_less_the_margin_and_says_what_it_rests_on() -> None:
    found = learn(made("gpu_burn.rate", rates(6)), "2026-11")
    (limit,) = found.limits["h100-sxm"]
    assert limit.limit == pytest.approx(45_000, rel=0.002)
    assert (limit.kind, limit.date, limit.unit) == ("measured", "2026-11", "Gflop/s")
    for said in ("48 devices of 6 nodes", "less 10%", "runs r1", "48 of 48 alike"):
        assert said in limit.source
    assert found.unlearnt == ()


def test_bad_parts_are_left_out() -> None:
    values = rates(8)
    values["gpu-0"] = dict.fromkeys(values["gpu-0"], 20_000.0)
    values["gpu-3"]["gpu5"] = 30_000.0
    limit = limit_of(learn(made("gpu_burn.rate", values), "2026-11"), "gpu_burn.rate")
    assert limit == pytest.approx(45_000, rel=0.005)


def test_a_device_measured_often_counts_once() -> None:
    values = rates(4)
    often = [
        replace(s, run=f"r{i}")
        for i in range(50)
        for s in made("gpu_burn.rate", {"gpu-0": {"gpu0": 30_000.0}})
    ]
    found = learn([*made("gpu_burn.rate", values), *often], "2026-11")
    assert limit_of(found, "gpu_burn.rate") == pytest.approx(45_000, rel=0.005)


def test_a_wide_scatter_widens_the_margin_until_it_teaches_nothing() -> None:
    wide = learn(made("gpu_burn.rate", rates(30, sigma=0.035)), "2026-11")
    assert limit_of(wide, "gpu_burn.rate") == pytest.approx(50_000 * (1 - 4 * 0.035), rel=0.02)
    assert "less 4 deviations" in wide.limits["h100-sxm"][0].source
    wilder = learn(made("gpu_burn.rate", rates(30, sigma=0.08)), "2026-11")
    assert wilder.limits == {}
    assert "scatter by" in wilder.unlearnt[0].why


def test_too_few_nodes_and_too_many_opinions_teach_nothing() -> None:
    (few,) = learn(made("gpu_burn.rate", rates(3)), "2026-11").unlearnt
    assert few.why == "measured on 3 nodes, it takes 4"
    values = rates(10)
    for i in range(3):
        values[f"gpu-{i}"] = dict.fromkeys(values[f"gpu-{i}"], 20_000.0)
    (split,) = learn(made("gpu_burn.rate", values), "2026-11").unlearnt
    assert split.why.startswith("only 56 of 80 values are alike")


def test_where_the_place_matters_the_slowest_place_counts() -> None:
    """A bridged pair is ten times as fast, and one limit must also fit pairs across the socket."""
    values = {f"gpu-{i}": {"gpu0->gpu1": 250.0 + i, "gpu0->gpu2": 25.0 + i / 10} for i in range(5)}
    found = learn(made("p2p_bandwidth.p2p_read", values, sku="a100-pcie-80"), "2026-11")
    (limit,) = found.limits["a100-pcie-80"]
    assert limit.limit == pytest.approx(0.9 * 25.2)
    assert "in the slowest of 2 places" in limit.source


def test_links_and_lanes_are_what_most_have() -> None:
    values: dict[str, dict[str, float]] = {f"gpu-{i}": {f"gpu{g}": 18.0 for g in range(8)} for i in range(5)}
    values["gpu-2"]["gpu3"] = 17.0
    found = learn(made("gpu_inventory.nvlink_links", values), "2026-11")
    assert limit_of(found, "gpu_inventory.nvlink_links") == 18


def test_a_fleet_that_is_broken_as_a_whole_is_refused_by_the_linter() -> None:
    """With every slot at a quarter of its speed, the limit would detect nothing and is not learnt."""
    values = {f"gpu-{i}": {f"gpu{g}": 13.0 for g in range(8)} for i in range(5)}
    (one,) = learn(made("p2p_bandwidth.h2d", values), "2026-11").unlearnt
    assert "limit is not plausible" in one.why
    assert "too loose" in one.why


@given(
    st.sampled_from(sorted(thresholds.table())),
    st.floats(0.5, 1.0),
    st.integers(4, 8),
    st.integers(0, 1000),
)
def test_whatever_is_learnt_can_be_read_back(name: str, share: float, nodes: int, seed: int) -> None:
    import tempfile

    metric = thresholds.table()[name]
    middle = share * (thresholds.of_sku("h100-sxm").get(metric.ceiling, (50_000.0,))[0])
    middle = min(middle, metric.most or middle)
    found = learn(made(name.replace("*", "8"), rates(nodes, seed=seed, middle=middle)), "2026-11")
    if not found.limits:
        assert found.unlearnt
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.yml"
        path.write_text(render(found, "2026-11-21"), encoding="utf-8")
        for limit in found.limits["h100-sxm"]:
            assert for_sku("h100-sxm", path)[limit.metric] == limit


@given(st.integers(4, 12), st.integers(0, 1000))
def test_no_healthy_device_fails_its_own_baseline(nodes: int, seed: int) -> None:
    values = rates(nodes, seed=seed, sigma=0.01)
    limit = limit_of(learn(made("gpu_burn.rate", values), "2026-11"), "gpu_burn.rate")
    assert all(value >= limit for found in values.values() for value in found.values())


def health(
    measurements: Sequence[Measurement], check: str, findings: Sequence[Finding] = (), sku: str = "h100-sxm"
) -> FleetHealth:
    result = CheckResult(check, Verdict.PASS, tuple(findings), tuple(measurements), 1.0)
    node = NodeHealth("gpu-01", Verdict.PASS, (result,), (), {"sku": sku, "gpus": 8})
    return FleetHealth("r1", "0", "i", "2026-11-21T00:00:00Z", "", (check,), (node,))


def test_collectives_are_told_apart_by_gpus_and_algorithm() -> None:
    def named(algorithm: str, sku: str = "h100-sxm") -> list[str]:
        found = [Measurement("busbw", 400.0, "GB/s"), Measurement("ranks", 8, "GPUs")]
        found += [Measurement("algorithm", algorithm, "")] if algorithm else []
        return [s.metric for s in baseline.samples(health(found, "nccl_all_reduce", sku=sku))]

    assert named("nvls") == named("") == ["nccl_all_reduce.busbw_8gpu"]
    assert named("ring") == ["nccl_all_reduce.busbw_ring_8gpu"]
    assert named("ring", "a100-sxm-80") == ["nccl_all_reduce.busbw_8gpu"]


def test_what_a_run_found_broken_teaches_nothing() -> None:
    rate = [Measurement("rate", 50_000.0, "Gflop/s", f"gpu{i}") for i in range(8)]
    broken = Finding("gpu_burn", Verdict.FAIL, "gpu3", "computed wrong results", action="replace part")
    other = [Measurement("rate", "N/A", "Gflop/s", "gpu8"), Measurement("rate", 1.0, "GB/s", "gpu9")]
    found = baseline.samples(health([*rate, *other], "gpu_burn", [broken]))
    assert {sample.device for sample in found} == {f"gpu{i}" for i in range(8)} - {"gpu3"}
    assert list(baseline.samples(health(rate, "gpu_burn", sku=""))) == []


def test_the_rules_say_why() -> None:
    assert rules().nodes >= 4
    assert 0 < rules().margin < 0.2
    assert 0 < rules().trustworthy < 0.5


def fleet(nodes: int, seed: int, between: float, within: float) -> dict[str, dict[str, float]]:
    """Return nodes that differ by `between` and GPUs that also differ by `within` (standard deviations)."""
    chance = random.Random(seed)  # noqa: S311 - a seed reproduces it
    values = {}
    for i in range(nodes):
        node = chance.gauss(1, between)
        values[f"gpu-{i}"] = {f"gpu{g}": 50_000 * (node + chance.gauss(0, within)) for g in range(8)}
    return values


def certainty_of(values: Values, use: baseline.Rules | None = None) -> Certainty:
    return learn(made("gpu_burn.rate", values), "2026-11", use).certainty["h100-sxm", "gpu_burn.rate"]


@pytest.mark.parametrize(
    ("nodes", "between", "within"),
    [(4, 0.01, 0.005), (6, 0.0, 0.01), (12, 0.012, 0.0), (12, 0.03, 0.01), (30, 0.01, 0.01)],
)
def test_the_interval_holds_the_true_limit_in_95_of_100_fleets(
    nodes: int, between: float, within: float
) -> None:
    """GPUs that share a node correlate; treated as independent, the interval misses in every other fleet."""
    true = 50_000 * (1 - max(0.10, 4 * math.hypot(between, within)))
    fleets = [
        learn(made("gpu_burn.rate", fleet(nodes, seed, between, within)), "2026-11") for seed in range(150)
    ]
    found = [each for learnt in fleets for each in learnt.certainty.values()]
    assert len(found) > 130, "a few fleets scatter too much to teach anything"
    assert sum(each.low <= true <= each.high for each in found) >= 0.93 * len(found)


def test_the_interval_holds_of_the_strictest_of_many_places_as_well() -> None:
    """The lowest of eight medians is biased low, so the interval of a single median misses too often."""
    holds = []
    for seed in range(120):
        values = fleet(32, seed, 0.003, 0.01)
        slots = {node: {gpu: v / 1000 for gpu, v in gpus.items()} for node, gpus in values.items()}
        certain = learn(made("p2p_bandwidth.h2d", slots), "2026-11").certainty[
            "h100-sxm", "p2p_bandwidth.h2d"
        ]
        holds.append(certain.low <= 45 <= certain.high)
    assert sum(holds) >= 0.93 * len(holds)


def test_the_interval_is_no_wider_than_it_must_be() -> None:
    """Half its width: t times the standard error of a median, 1.2533/√n deviations, 0.9 for the limit."""
    widths = [certainty_of(fleet(12, seed, 0.01, 0.001)) for seed in range(60)]
    usual = statistics.median((each.high - each.low) / 2 for each in widths)
    assert usual == pytest.approx(50_000 * 2.201 * 1.2533 * 0.9 * 0.01 / math.sqrt(12), rel=0.2)


def test_the_number_of_nodes_that_make_a_limit_trustworthy_is_enough() -> None:
    values = fleet(6, 3, 0.02, 0.004)
    few = certainty_of(values)
    assert not few.trustworthy
    assert few.enough > 6
    # Repeating the same nodes keeps their deviation and reaches the required number.
    copies = {
        f"{node}-{i}": found for i in range(math.ceil(few.enough / 6) + 1) for node, found in values.items()
    }
    assert certainty_of(copies).trustworthy
    assert certainty_of(fleet(6, 3, 0.001, 0.004)).trustworthy
    assert certainty_of(values, replace(rules(), margin=0.3)).enough < few.enough


def test_nodes_that_measure_the_same_need_no_more_than_the_least() -> None:
    found = certainty_of({f"gpu-{i}": {"gpu0": 50_000.0} for i in range(4)})
    assert (found.low, found.high, found.enough, found.trustworthy) == (45_000, 45_000, 4, True)


def test_one_nodes_values_alone_teach_nothing() -> None:
    values = {"gpu-0": {f"gpu{g}": 50_000.0 + g for g in range(30)}}
    values |= {f"gpu-{i}": {"gpu0": 10_000.0 * i} for i in range(1, 4)}
    (one,) = learn(made("gpu_burn.rate", values), "2026-11").unlearnt
    assert "come from one node" in one.why


def test_what_is_learnt_says_what_it_rests_on() -> None:
    values = fleet(6, 1, 0.01, 0.005)
    (limit,) = learn(made("gpu_burn.rate", values), "2026-11").limits["h100-sxm"]
    assert limit.machines == 6
    assert limit.typical is not None
    assert limit.spread is not None
    assert (limit.typical.machines, limit.spread.machines) == (6, 6)
    assert limit.limit == pytest.approx(0.9 * limit.typical.value, rel=1e-3)
    every = [100 * value / 50_000 for found in values.values() for value in found.values()]
    assert limit.spread.percent == pytest.approx(statistics.stdev(every), rel=0.15)
    links = {f"gpu-{i}": {f"gpu{g}": 18.0 for g in range(8)} for i in range(5)}
    found = learn(made("gpu_inventory.nvlink_links", links), "2026-11")
    (count,) = found.limits["h100-sxm"]
    assert (count.machines, count.typical, count.spread, found.certainty) == (5, None, None, {})


def test_the_spread_of_all_fleets_is_the_true_one() -> None:
    """For a device of any node, the variances between nodes and within nodes add up."""
    spreads = []
    for seed in range(80):
        (limit,) = learn(made("gpu_burn.rate", fleet(8, seed, 0.01, 0.01)), "2026-11").limits["h100-sxm"]
        assert limit.spread is not None
        spreads.append(limit.spread.percent**2)
    assert math.sqrt(statistics.fmean(spreads)) == pytest.approx(math.sqrt(2), rel=0.05)


def test_devices_of_one_node_are_worth_less_than_as_many_nodes() -> None:
    """Node means 2 and 6, variance 8; within nodes 2, half of which the means already contain: 8 + 1."""
    found = healthy([(1.0, 3.0), (5.0, 7.0)])
    assert (found.nodes, found.deviation) == (2, 3.0)
    assert found.independent == pytest.approx(2 * 9 / 8)
    alone = healthy([(1.0,), (3.0,), (5.0,)])
    assert (alone.nodes, alone.deviation, alone.independent) == (3, 2.0, 3.0)
    assert healthy([(1.0, 3.0), (1.0, 3.0)]).independent == 4, "no more than there are devices"
    with pytest.raises(ValueError, match="one node"):
        healthy([(1.0, 2.0)])


@pytest.mark.parametrize(("low", "limit"), [(True, 90.0), (False, 110.0)])
def test_the_interval_is_that_of_t(low: bool, limit: float) -> None:
    """Four nodes, three degrees of freedom: t is 3.1824; a median's standard error 1.2533 deviations / √4."""
    found = of_limit(Rule(0.1, 4.0, low=low), 100.0, 0.0, Healthy(4, 1.0, 4.0), fraction=0.2, least=4)
    half = 3.182446 * 1.253314 * limit / 100 / 2
    assert (found.low, found.high) == pytest.approx((limit - half, limit + half))
    # A fifth of the distance from the median is 2.
    fewer = [n for n in range(4, 13) if quantile(0.975, n - 1) * 1.253314 * limit / 100 / math.sqrt(n) <= 2]
    assert found.enough == fewer[0]
