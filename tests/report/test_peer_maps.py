"""Peer heat maps: nodes with bad GPU pairs next to a healthy node, without invented values."""

from __future__ import annotations

import dataclasses

import pytest

from provision.checks.check import Measurement
from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.report import peer_maps
from provision.report.peer_maps import SkuMaps, peers
from tests.report.drawn import alt, boxes, source, words
from tests.support import samples

GOOD, WORST, UNKNOWN = "s0", "s4", "unknown"
LEGEND = 1


def only(fleet: FleetHealth) -> SkuMaps:
    (found,) = peers(fleet).skus
    return found


def changed(
    node: NodeHealth, verdict: Verdict, *findings: Finding, rows: list[Measurement] | None = None
) -> NodeHealth:
    """Replace the node's result of p2p_bandwidth."""
    checks = []
    for check in node.checks:
        if check.check == "p2p_bandwidth":
            kept = check.measurements if rows is None else tuple(rows)
            check = CheckResult(check.check, verdict, findings or check.findings, kept, 1.0)
        checks.append(check)
    return dataclasses.replace(node, checks=tuple(checks), verdict=verdict)


def test_the_bad_node_is_drawn_beside_a_typical_healthy_one() -> None:
    typical, bad = only(samples.demo()).shown
    assert (typical.typical, bad.typical) == (True, False)
    assert typical.node.node in {"gpu-01", "gpu-02"}
    assert (bad.node.node, bad.verdict) == ("gpu-03", Verdict.FAIL)
    shown = words(bad.heat)
    assert {"p2p_read, GB/s", "p2p_write, GB/s", "from", "to", "a finding fails it"} <= set(shown)
    assert (shown.count("✗"), shown.count("61.3")) == (4 + LEGEND, 4)
    assert boxes(bad.heat)[WORST] == 4
    assert "✗" not in words(typical.heat)
    assert "p2p_write: 56 of 56 pairs measured, 61.3 to" in alt(bad.heat)
    assert "✗ gpu2 to gpu6 61.3; ✗ gpu6 to gpu2 61.3" in alt(bad.heat)


def test_nothing_is_drawn_where_nothing_is_wrong() -> None:
    assert peers(samples.healthy()).skus == ()
    assert peers(samples.nothing()).skus == ()
    assert peers(samples.between()) == peer_maps.PeerMaps((), ()), "the check was not asked for"


def test_what_was_not_measured_is_named_where_a_map_would_be() -> None:
    found = peers(samples.unmeasured())
    assert found.unmeasured == ("gpu-02", "gpu-07", "gpu-08")
    assert found.skus == ()
    lost = dataclasses.replace(samples.node("gpu-09", samples.checks(9)[:2], 9), verdict=Verdict.ERROR)
    assert peers(samples.fleet(lost)).unmeasured == ("gpu-09",)


def test_a_skip_is_no_missing_map() -> None:
    one_gpu = Finding(
        "p2p_bandwidth", Verdict.SKIP, "node", "one GPU: there is no pair to measure", "p2p_read"
    )
    node = changed(samples.node("gpu-01", samples.checks(1)), Verdict.SKIP, one_gpu, rows=[])
    assert peers(samples.fleet(node)) == peer_maps.PeerMaps((), ())


def test_a_pair_without_a_number_looks_unlike_a_slow_one() -> None:
    node = samples.node("gpu-03", samples.checks(3, slow=(2, 6)), 3)
    rows = [row for check in node.checks if check.check == "p2p_bandwidth" for row in check.measurements]
    rows = [row for row in rows if row.device != "gpu1->gpu7"]  # two metrics
    rows = [dataclasses.replace(row, value="N/A") if row.device == "gpu0->gpu3" else row for row in rows]
    lost = changed(node, Verdict.FAIL, samples.SLOW, rows=rows)
    image = only(samples.fleet(lost)).shown[0].heat
    assert boxes(image)[UNKNOWN] == 4
    assert boxes(image)[WORST] == 4
    shown = words(image)
    assert (shown.count("?"), shown.count("N/A")) == (2 + LEGEND, 2)
    assert "not measured" in shown
    assert "54 of 56 pairs measured" in alt(image)
    assert "? gpu1 to gpu7 not measured" in alt(image)


def test_a_gpu_that_is_gone_from_the_numbers_keeps_its_row() -> None:
    node = samples.node("gpu-03", samples.checks(3, slow=(2, 6)), 3)
    rows = [
        row
        for check in node.checks
        for row in check.measurements
        if "->" in row.device and "7" not in row.device
    ]
    image = only(samples.fleet(changed(node, Verdict.FAIL, rows=rows))).shown[0].heat
    assert boxes(image)[UNKNOWN] == 2 * 14
    assert words(image).count("gpu7") == 4


def marks(finding: Finding, slow: tuple[str, ...]) -> list[str]:
    """Return the marked cells for a finding on a node where pairs with these GPUs run at 150 GB/s."""
    node = samples.node("gpu-03", samples.checks(3), 3)
    rows = [row for check in node.checks for row in check.measurements if row.metric == "p2p_write"]
    rows = [
        dataclasses.replace(row, value=150.0) if any(gpu in row.device for gpu in slow) else row
        for row in rows
    ]
    fleet = samples.fleet(changed(node, Verdict.FAIL, finding, rows=rows))
    return alt(only(fleet).shown[0].heat).split("; ✗ ")[1:]


def slow_gpu(metric: str, limit: str = "≥ 335 GB/s", device: str = "gpu4") -> Finding:
    return Finding("p2p_bandwidth", Verdict.FAIL, device, "its pairs are slow", metric, 150.0, "GB/s", limit)


def test_a_finding_of_a_gpu_marks_its_slow_pairs_and_no_other() -> None:
    found = marks(slow_gpu("p2p_write"), ("gpu4", "gpu6"))
    assert len(found) == 8
    assert all("gpu4" in cell for cell in found)
    assert found[-1].endswith("and 6 more marked")


@pytest.mark.parametrize("limit", ["≥ 335 GB/s", "", "peer access"])
def test_a_finding_of_a_pair_marks_the_slow_direction(limit: str) -> None:
    found = marks(slow_gpu("p2p_write", limit, "gpu2-gpu6"), ("gpu2->gpu6", "gpu1->gpu3"))
    assert found == ["gpu2 to gpu6 150"]


def test_a_finding_of_the_copies_to_the_host_marks_no_pair() -> None:
    assert marks(slow_gpu("h2d"), ("gpu4",)) == []


def test_pairs_that_differ_by_design_are_compared_with_the_same_pair_of_healthy_nodes() -> None:
    """With bridged cards only some pairs are fast, and a healthy node must not look half broken."""

    def bridged(name: str, lost: bool) -> NodeHealth:
        pairs = [(a, b) for a in range(8) for b in range(8) if a != b]
        fast = {(a, b) for a, b in pairs if a // 2 == b // 2 and not (lost and a < 2)}
        rows = [
            Measurement("p2p_write", 200.0 if pair in fast else 25.0, "GB/s", "gpu{}->gpu{}".format(*pair))
            for pair in pairs
        ]
        node = samples.node(name, samples.checks(1), 1)
        return changed(node, Verdict.FAIL if lost else Verdict.PASS, rows=rows)

    maps = only(samples.fleet(bridged("gpu-01", False), bridged("gpu-02", False), bridged("gpu-03", True)))
    typical, bad = (boxes(one.heat) for one in maps.shown)
    assert typical[GOOD] == 56
    assert (bad[GOOD], bad[WORST]) == (54, 2)


def test_of_many_bad_nodes_the_worst_are_drawn_and_the_others_named() -> None:
    warned = dataclasses.replace(samples.SLOW, verdict=Verdict.WARN)
    nodes = [samples.node(f"gpu-{i:02d}", samples.checks(i, slow=(2, 6)), i) for i in range(1, 10)]
    nodes = [changed(n, Verdict.WARN, warned) if int(n.node[-2:]) < 6 else n for n in nodes]
    maps = only(samples.fleet(*nodes))
    assert [one.node.node for one in maps.shown] == [f"gpu-0{i}" for i in (6, 7, 8, 9, 1)]
    assert maps.left_out == ("gpu-02", "gpu-03", "gpu-04", "gpu-05")
    assert "!" in words(maps.shown[-1].heat)
    assert "no node of this SKU is healthy" in " ".join(words(maps.shown[0].heat))


def test_the_maps_stay_within_their_room(monkeypatch: pytest.MonkeyPatch) -> None:
    one = only(samples.demo()).shown[1].heat.size
    monkeypatch.setattr(peer_maps, "_BYTES", one + 100)
    maps = only(samples.demo())
    assert (maps.shown, maps.left_out) == ((), ("gpu-03",))


def test_hostile_devices_and_numbers_are_not_drawn() -> None:
    devices = ["gpu0->gpu1<script>", "<b>0->gpu1", "gpu99999->gpu0", "gpu0->gpu0", "gpu0->gpu1\n", "->", ""]
    values: list[float | str] = ["<script>", float("nan"), float("inf"), -1.0, 1e300, True]
    rows = [Measurement("p2p_write", 300.0, "GB/s", device) for device in devices]
    rows += [Measurement("<script>", value, "GB/s", "gpu0->gpu1") for value in values]
    rows += [Measurement("p2p_read", 300.0, "<script>", "gpu0->gpu1")]
    node = samples.node("<script>$x^{$", samples.checks(1), 1)
    fleet = samples.fleet(changed(node, Verdict.FAIL, samples.SLOW, rows=rows))
    assert peers(fleet).unmeasured == ("<script>$x^{$",)
    real = [Measurement("<b>$x^{$", 300.0, "GB/s", f"gpu{a}->gpu{1 - a}") for a in (0, 1)]
    fleet = samples.fleet(changed(node, Verdict.FAIL, samples.SLOW, rows=[*rows, *real]))
    image = only(fleet).shown[0].heat
    assert "<b>" not in source(image)
    assert "<b>$x^{$, GB/s" in words(image)


def test_more_gpus_than_a_map_has_room_for_are_no_map() -> None:
    rows = [Measurement("p2p_write", 300.0, "GB/s", f"gpu0->gpu{i}") for i in range(1, 100)]
    node = changed(samples.node("gpu-01", samples.checks(1), 1), Verdict.FAIL, samples.SLOW, rows=rows)
    assert peers(samples.fleet(node)).unmeasured == ("gpu-01",)
