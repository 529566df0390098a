"""Strips of the fleet: the metrics drawn, the limits shown, and the labelled outliers."""

from __future__ import annotations

import dataclasses

from provision.checks.check import Measurement
from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.report.tables import Sku, Strip, glance
from tests.support import samples


def only(fleet: FleetHealth) -> Sku:
    seen = glance(fleet)
    assert seen.more_skus == 0
    (sku,) = seen.skus
    return sku


def strip(sku: Sku, what: str) -> Strip:
    (found,) = [each for each in sku.strips if each.what == what]
    return found


def test_the_strips_hold_every_value_and_the_limit_it_was_judged_by() -> None:
    sku = only(samples.healthy())
    assert (sku.name, sku.nodes) == ("h100-sxm", 3)
    burn = strip(sku, "burn rate")
    assert (burn.unit, burn.better, len(burn.values), burn.marks) == ("Gflop/s", "at_least", 24, ())
    assert (burn.limit, burn.limit_words, burn.silent) == (45000, "limit ≥ 45000 Gflop/s", 0)


def test_a_limit_no_finding_tells_is_the_shipped_one_and_named_so() -> None:
    read = strip(only(samples.healthy()), "peer read bandwidth")
    assert read.limit == 335
    assert read.limit_words == "shipped limit ≥ 335 GB/s"


def test_who_failed_stands_out_by_name_also_by_another_metric_of_the_check() -> None:
    sku = only(samples.demo())
    write = strip(sku, "peer write bandwidth")
    assert {(mark.label, mark.value, mark.verdict) for mark in write.marks} == {
        ("gpu-03 gpu2->gpu6", 61.3, Verdict.FAIL),
        ("gpu-03 gpu6->gpu2", 61.3, Verdict.FAIL),
    }
    assert len(write.values) == 3 * 56 - 2
    (mark,) = strip(sku, "burn rate").marks
    assert (mark.label, mark.verdict) == ("gpu-03 gpu5 (errors)", Verdict.FAIL)


def test_nodes_without_a_value_are_counted() -> None:
    sku = only(samples.unmeasured())
    assert sku.nodes == 5
    assert glance(samples.unmeasured()).nodes_unknown == 2  # two nodes were not reached
    assert strip(sku, "burn rate").silent == 1


def test_a_limit_of_the_peers_is_not_drawn_as_one_of_the_sku() -> None:
    slow = Finding(
        "gpu_burn", Verdict.WARN, "gpu1", "slow", "rate", 40.0, "Gflop/s", "≥ 46 Gflop/s",
        "median of the other GPUs of the node", "investigate",
    )  # fmt: skip
    found = strip(only(samples.fleet(with_rates("n1", slow))), "burn rate")
    assert found.limit is None or found.limit != 46
    assert [mark.label for mark in found.marks] == ["n1 gpu1"]


def test_what_is_no_number_is_left_out_and_an_unknown_sku_has_no_shipped_limit() -> None:
    node = with_rates("n1", rates=(float("nan"), float("inf"), -1.0, "a lot", True, 5.0))
    node = dataclasses.replace(node, facts={"sku": "h100-sxm\x1b[31m"})
    found = strip(only(samples.fleet(node)), "burn rate")
    assert found.values == (5.0,)
    assert (found.limit, found.limit_words) == (None, "")


def test_who_stands_out_is_drawn_before_what_is_merely_measured() -> None:
    names = ("p2p_bandwidth.h2d", "p2p_bandwidth.d2h", "p2p_bandwidth.p2p_read", "p2p_bandwidth.p2p_write",
             "nccl_all_reduce.busbw", "nccl_all_gather.busbw", "nccl_alltoall.busbw")  # fmt: skip
    results = [measured(check, metric) for check, metric in (name.split(".") for name in names)]
    bad = Finding("disk", Verdict.FAIL, "gpu0", "slow", "local_copy", 1.0, "GB/s", action="investigate")
    results.append(
        measured("memory_bandwidth", "local_copy", dataclasses.replace(bad, check="memory_bandwidth"))
    )
    sku = only(samples.fleet(NodeHealth("n1", Verdict.FAIL, tuple(results), facts={"sku": "x"})))
    assert len(sku.strips) == 6
    assert sku.left_out == 2
    assert strip(sku, "rate of copies within a GPU's memory").marks


def test_many_skus_are_counted_and_the_largest_is_first() -> None:
    def of(sku: str, number: int) -> NodeHealth:
        node = with_rates(f"{sku}-{number}")
        return dataclasses.replace(node, facts={"sku": sku})

    nodes = [of(f"sku{kind}", number) for kind in range(6) for number in range(1 + (kind == 5))]
    seen = glance(samples.fleet(*nodes))
    assert [sku.name for sku in seen.skus] == ["sku5", "sku0", "sku1", "sku2"]
    assert seen.more_skus == 2


def measured(check: str, metric: str, *findings: Finding) -> CheckResult:
    rows = (Measurement(metric, 1.0, "GB/s", "gpu0"), Measurement(metric, 2.0, "GB/s", "gpu1"))
    return CheckResult(check, Verdict.PASS, findings, rows, 1.0)


def with_rates(
    name: str, *findings: Finding, rates: tuple[float | int | str | bool, ...] = (50.0, 40.0, 51.0)
) -> NodeHealth:
    rows = [Measurement("rate", rate, "Gflop/s", f"gpu{i}") for i, rate in enumerate(rates)]
    return samples.node(name, (samples.result("gpu_burn", list(findings), rows, 1.0),))
