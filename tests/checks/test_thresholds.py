"""Limits: shipped ones are consistent, and a user's limits are validated before use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision.checks import thresholds
from provision.checks.thresholds import Spread, Threshold, ThresholdError, TypicalValue, available, for_sku
from provision.paths import DATA

RATED = ("a100-pcie-80", "a100-sxm-40", "a100-sxm-80", "b200", "h100-nvl", "h100-sxm", "h200-sxm", "l40s")
INSTINCT = ("mi210", "mi250", "mi250x", "mi300a", "mi300x", "mi300x-hf", "mi308x", "mi308x-hf", "mi325x")
CARDS = ("a100-pcie-40", "a30", "a40", "h100-pcie", "h200-nvl", "l40")
# No limit for copies to the host has been published, or clouds wire their slots with 8 lanes.
FEW = ("a10", "b300", "gb200", "gb300", "gh200", "l4", "t4", *CARDS)
SKUS = tuple(sorted((*RATED, *FEW, *INSTINCT, "mi350p", "mi350x", "mi355x")))

GOOD = {
    "limit": 300,
    "unit": "GB/s",
    "direction": "at_least",
    "source": "our own fleet, May",
    "kind": "measured",
}
TYPICAL: dict[str, Any] = {"value": 380, "machines": 12, "source": "our own fleet, May"}
SPREAD: dict[str, Any] = {"percent": 0.5, "machines": 12, "source": "our own fleet, May"}


def write(path: Path, *documents: object) -> Path:
    path.write_text(yaml.safe_dump_all(documents))
    return path


def test_the_shipped_skus() -> None:
    assert available() == SKUS


@pytest.mark.parametrize("sku", SKUS)
def test_every_shipped_limit_has_a_source_and_its_sku_exists(sku: str) -> None:
    limits = for_sku(sku)
    assert limits
    for name, limit in limits.items():
        assert limit.metric == name
        assert len(limit.source) > 20
        assert "2020-01" < limit.date < "2027-01", name
    assert (DATA / "skus" / f"{sku}.yml").is_file()


@pytest.mark.parametrize(
    ("sku", "metric", "limit"),
    [
        ("h100-sxm", "p2p_bandwidth.p2p_read", 335),
        ("h100-sxm", "nccl_all_reduce.busbw_8gpu", 460),
        ("h200-sxm", "nccl_all_reduce.busbw_8gpu", 431),
        ("a100-sxm-80", "p2p_bandwidth.p2p_read", 238),
        ("a100-sxm-80", "nccl_all_reduce.busbw_8gpu", 228),
        ("a100-sxm-80", "gpu_inventory.nvlink_links", 12),
        ("a100-pcie-80", "nccl_all_reduce.busbw_4gpu", 25),
        ("l40s", "p2p_bandwidth.h2d", 21),
        ("a100-sxm-40", "p2p_bandwidth.p2p_read", 235),
        ("h100-nvl", "nccl_all_reduce.busbw_2gpu", 208),
        ("b200", "gpu_inventory.nvlink_speed", 50),
        # AMD, ROCm/system-acceptance-docs.
        ("mi210", "nccl_all_reduce.busbw_4gpu", 30),
        ("mi250", "nccl_all_reduce.busbw_8gpu", 125),
        ("mi300a", "nccl_all_reduce.busbw_4gpu", 230),
        ("mi300a", "p2p_bandwidth.p2p_both_ways", 155),
        ("mi325x", "p2p_bandwidth.all_to_all", 32.9),
        ("gb200", "nccl_all_reduce.busbw_4gpu", 432),
        ("b300", "nccl_all_reduce.busbw_8gpu", 800),
    ],
)
def test_limits_that_operators_published(sku: str, metric: str, limit: float) -> None:
    assert for_sku(sku)[metric].limit == limit


@pytest.mark.parametrize("sku", [*RATED, *CARDS])
def test_no_limit_is_so_low_that_half_a_link_would_pass(sku: str) -> None:
    """A slot at half its width must fail, and so must a pair with half its NVLinks behind NVSwitches."""
    limits = for_sku(sku)
    links = yaml.safe_load((DATA / "thresholds" / f"{sku}.yml").read_text())["links"]
    assert limits["p2p_bandwidth.h2d"].limit > links["pcie"] / 2
    if sku in ("a100-sxm-40", "a100-sxm-80", "b200", "h100-sxm", "h200-sxm"):
        assert limits["p2p_bandwidth.p2p_read"].limit > links["peer"] / 2


def test_an_unknown_sku_has_no_limits() -> None:
    assert for_sku(None) == {}
    assert for_sku("l2") == {}


def test_a_users_limit_wins_and_the_others_stay(tmp_path: Path) -> None:
    file = write(tmp_path / "t.yml", {"sku": "h100-sxm", "thresholds": {"p2p_bandwidth.p2p_read": GOOD}})
    limits = for_sku("h100-sxm", file)
    assert limits["p2p_bandwidth.p2p_read"].limit == 300
    assert limits["p2p_bandwidth.p2p_write"].limit == 335
    assert for_sku("h200-sxm", file)["p2p_bandwidth.p2p_read"].limit == 335
    assert for_sku("h100-sxm")["p2p_bandwidth.p2p_read"].limit == 335


def test_slots_with_fewer_lanes_lower_what_pcie_carries_and_nothing_else(tmp_path: Path) -> None:
    whole, half = for_sku("h100-sxm"), for_sku("h100-sxm", lanes=8)
    changed = {name for name in whole if half[name].limit != whole[name].limit}
    assert changed == {"gpu_inventory.pcie_width", "p2p_bandwidth.h2d", "p2p_bandwidth.d2h"}
    assert half["gpu_inventory.pcie_width"].limit == 8
    assert half["p2p_bandwidth.h2d"].limit == whole["p2p_bandwidth.h2d"].limit / 2
    assert "8 lanes (gpuprov_pcie_width)" in half["p2p_bandwidth.h2d"].source
    assert for_sku("h100-sxm", lanes=16) == whole
    # Without NVLink, GPUs reach each other through their slots.
    peers = "p2p_bandwidth.p2p_read"
    assert for_sku("l40s", lanes=4)[peers].limit == for_sku("l40s")[peers].limit / 4
    own = write(
        tmp_path / "own.yml", {"sku": "l40s", "thresholds": {"p2p_bandwidth.h2d": {**GOOD, "limit": 20}}}
    )
    assert for_sku("l40s", own, 8)["p2p_bandwidth.h2d"].limit == 20, (
        "what a user states, they state of their machines"
    )


def test_one_file_for_several_skus_and_for_any(tmp_path: Path) -> None:
    rate = {**GOOD, "unit": "Gflop/s"}
    file = write(
        tmp_path / "t.yml",
        {"sku": "any", "thresholds": {"gpu_burn.rate": rate}},
        {"sku": "t4", "thresholds": {"gpu_burn.rate": {**rate, "limit": 7}}},
    )
    assert for_sku("b200", file)["gpu_burn.rate"].limit == 300
    assert for_sku(None, file)["gpu_burn.rate"].limit == 300
    assert for_sku("t4", file)["gpu_burn.rate"].limit == 7


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"limit": "300"}, "must be a number above 0"),
        ({"limit": True}, "must be a number above 0"),
        ({"limit": -1}, "must be a number above 0"),
        ({"limit": float("nan")}, "must be a number above 0"),
        ({"limit": 900}, "above what the link can carry"),
        ({"unit": "Gb/s"}, "must be GB/s"),
        ({"direction": "at_most"}, "must be at_least"),
        ({"kind": "guessed"}, "must be one of measured, vendor, derived"),
        ({"source": ""}, "must name the source"),
        ({"date": "May 2026"}, "must be the year and month"),
        ({"date": "2026-13"}, "must be the year and month"),
        ({"date": 2026}, "must be the year and month"),
        ({"limit": 200}, "too loose to find anything"),
        ({"extra": 1}, "must have exactly"),
        ({"machines": -1}, r"p2p_read\.machines: must be a whole number"),
        ({"machines": 1.5}, r"p2p_read\.machines: must be a whole number"),
        ({"machines": True}, r"p2p_read\.machines: must be a whole number"),
        ({"machines": "unknown"}, r"p2p_read\.machines: must be a whole number"),
        ({"typical": 380}, r"p2p_read\.typical: must have value and source"),
        ({"typical": {"value": 380}}, r"p2p_read\.typical: must have value and source"),
        ({"typical": {**TYPICAL, "mean": 1}}, r"p2p_read\.typical: must have value and source"),
        ({"typical": {**TYPICAL, "value": "380"}}, r"p2p_read\.typical\.value: must be a number above 0"),
        ({"typical": {**TYPICAL, "value": 299}}, r"p2p_read\.typical\.value: a part at 299 fails the limit"),
        ({"typical": {**TYPICAL, "source": "?"}}, r"p2p_read\.typical\.source: must name the source"),
        ({"typical": {**TYPICAL, "machines": -3}}, r"p2p_read\.typical\.machines: must be a whole number"),
        ({"spread": 0.5}, r"p2p_read\.spread: must have percent and source"),
        ({"spread": {**SPREAD, "percent": -0.1}}, r"p2p_read\.spread\.percent: must be a number"),
        ({"spread": {**SPREAD, "percent": False}}, r"p2p_read\.spread\.percent: must be a number"),
        ({"spread": {**SPREAD, "machines": 1}}, r"p2p_read\.spread\.machines: one machine shows no spread"),
    ],
)
def test_a_bad_limit_is_refused(change: dict[str, object], said: str, tmp_path: Path) -> None:
    row = {**GOOD, **change}
    file = write(tmp_path / "t.yml", {"sku": "h100-sxm", "thresholds": {"p2p_bandwidth.p2p_read": row}})
    with pytest.raises(ThresholdError, match=said):
        for_sku("h100-sxm", file)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"sku": "h100-sxm", "thresholds": {"p2p_bandwidth.p2p_raed": GOOD}},
            "did you mean p2p_bandwidth.p2p_read",
        ),
        ({"sku": "h100", "thresholds": {}}, "is not one of"),
        ({"sku": "h100-sxm"}, "must map metric names"),
        ({"thresholds": {}}, "must name a GPU SKU"),
        ({"sku": "h100-sxm", "threshold": {}}, "is not a valid key"),
        ([1, 2], "must hold a mapping"),
    ],
)
def test_a_bad_file_is_refused(document: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(ThresholdError, match=said):
        for_sku("h100-sxm", write(tmp_path / "t.yml", document))


@pytest.mark.parametrize("text", ["", "a: [", "\x00"])
def test_an_unreadable_file_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "t.yml"
    file.write_text(text)
    with pytest.raises(ThresholdError, match=r"t\.yml"):
        for_sku("h100-sxm", file)
    with pytest.raises(ThresholdError, match=r"none\.yml"):
        for_sku("h100-sxm", tmp_path / "none.yml")


def test_a_mistake_in_another_skus_limits_is_not_for_later(tmp_path: Path) -> None:
    bad = {"sku": "b200", "thresholds": {"p2p_bandwidth.p2p_read": {**GOOD, "limit": 2000}}}
    file = write(tmp_path / "t.yml", {"sku": "h100-sxm", "thresholds": {"p2p_bandwidth.p2p_read": GOOD}}, bad)
    with pytest.raises(ThresholdError, match="2000 is above what the link can carry"):
        for_sku("h100-sxm", file)


def test_a_limit_for_any_sku_must_be_possible_on_one(tmp_path: Path) -> None:
    def limit(value: float) -> Path:
        row = {**GOOD, "limit": value}
        return write(tmp_path / f"{value}.yml", {"sku": "any", "thresholds": {"p2p_bandwidth.h2d": row}})

    assert for_sku(None, limit(60))["p2p_bandwidth.h2d"].limit == 60
    with pytest.raises(ThresholdError, match="above what the link can carry"):
        for_sku(None, limit(64))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    row = {**GOOD, "limit": 50}
    file = write(tmp_path / "t.yml", {"sku": "any", "thresholds": {"p2p_bandwidth.h2d": row}})
    assert for_sku(None, file)["p2p_bandwidth.h2d"].limit == 50
    write(file, {"sku": "any", "thresholds": {"p2p_bandwidth.h2d": {**row, "limit": 51}}})
    os.utime(file, ns=(1, 1))
    assert for_sku(None, file)["p2p_bandwidth.h2d"].limit == 51


@pytest.mark.parametrize(
    ("sku", "metric", "unit", "limit", "said"),
    [
        # A slot at half its width copies at 0.41 of the full rate: 0.41 x 63 = 25.83.
        ("h100-sxm", "p2p_bandwidth.h2d", "GB/s", 25.8, "still reaches 25.83 GB/s"),
        ("h100-sxm", "p2p_bandwidth.h2d", "GB/s", 25.9, ""),
        ("h100-sxm", "p2p_bandwidth.h2d", "GB/s", 63.1, "above what the link can carry"),
        # Behind switches half of the NVLinks reach 0.46 of the full rate; elsewhere a pair may cross sockets.
        ("h100-sxm", "p2p_bandwidth.p2p_read", "GB/s", 206, "still reaches 207 GB/s"),
        ("l40s", "p2p_bandwidth.p2p_read", "GB/s", 7.5, ""),
        ("l40s", "p2p_bandwidth.p2p_read", "GB/s", 7.0, "too loose"),
        ("h100-nvl", "p2p_bandwidth.p2p_read", "GB/s", 301, "above what the link can carry"),
        ("h100-sxm", "nccl_all_reduce.busbw_8gpu", "GB/s", 899, ""),
        ("h100-sxm", "nccl_all_reduce.busbw_8gpu", "GB/s", 901, "above what the link can carry"),
        ("h100-sxm", "nccl_all_reduce.busbw_ring_8gpu", "GB/s", 451, "above what the link can carry"),
        ("h100-sxm", "nccl_all_gather.busbw_12gpu", "GB/s", 179, "too loose"),
        ("h100-sxm", "gpu_inventory.nvlink_links", "links", 19, "above what the link can carry"),
        ("h100-sxm", "gpu_inventory.nvlink_links", "links", 8, "too loose"),
        ("h100-sxm", "gpu_inventory.memory_total", "MiB", 90_000, "above what the GPU has"),
        ("h100-sxm", "gpu_inventory.memory_total", "MiB", 40_000, "too loose"),
        ("h100-sxm", "memory_bandwidth.local_copy", "GB/s", 1676, "above what the GPU has"),
        ("h100-sxm", "memory_bandwidth.local_copy", "GB/s", 750, "too loose"),
        ("t4", "gpu_inventory.pcie_width", "lanes", 32, "above 16"),
        ("gb200", "p2p_bandwidth.h2d", "GB/s", 400, ""),  # through NVLink-C2C, so no slot limits it
    ],
)
def test_impossible_and_useless_gates_are_refused(
    sku: str, metric: str, unit: str, limit: float, said: str, tmp_path: Path
) -> None:
    file = write(
        tmp_path / "t.yml", {"sku": sku, "thresholds": {metric: {**GOOD, "unit": unit, "limit": limit}}}
    )
    if not said:
        assert for_sku(sku, file)[metric].limit == limit
        return
    with pytest.raises(ThresholdError, match=f"{metric}.limit: .*{said}") as refused:
        for_sku(sku, file)
    assert str(file) in refused.value.what
    assert "\n" not in refused.value.what
    assert refused.value.fix


def test_a_file_may_state_links_of_its_own(tmp_path: Path) -> None:
    """A PCIe 5 card in a PCIe 4 slot reaches half the rate and is healthy."""
    limits = {"p2p_bandwidth.h2d": {**GOOD, "limit": 21}}
    with pytest.raises(ThresholdError, match="too loose"):
        for_sku("h100-pcie", write(tmp_path / "a.yml", {"sku": "h100-pcie", "thresholds": limits}))
    document = {"sku": "h100-pcie", "links": {"pcie": 31.5}, "thresholds": limits}
    assert for_sku("h100-pcie", write(tmp_path / "b.yml", document))["p2p_bandwidth.h2d"].limit == 21
    for wrong in ({"pcie": "fast"}, {"pcie": 0}, {"usb": 5}, [31.5]):
        with pytest.raises(ThresholdError, match="key 'links'"):
            for_sku("h100-pcie", write(tmp_path / "c.yml", {**document, "links": wrong}))


@pytest.mark.parametrize("sku", RATED)
def test_our_files_and_the_data_sheets_agree_on_links(sku: str) -> None:
    links = yaml.safe_load((DATA / "thresholds" / f"{sku}.yml").read_text())["links"]
    able = thresholds.of_sku(sku)
    assert {"pcie", "peer"} <= set(links) <= {"pcie", "peer", "memory_rate"}
    assert [able[name] for name in ("pcie", "peer")] == [(links[name],) * 2 for name in ("pcie", "peer")]


@pytest.mark.parametrize(
    ("row", "refusal"),
    [
        (GOOD, r"p2p_read\.date: must have the date"),
        ({**GOOD, "date": "2026-05"}, r"p2p_read\.machines: must be the number"),
    ],
)
def test_a_limit_of_ours_without_date_or_machines_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, object], refusal: str
) -> None:
    from provision.checks import thresholds

    write(tmp_path / "h100-sxm.yml", {"sku": "h100-sxm", "thresholds": {"p2p_bandwidth.p2p_read": row}})
    monkeypatch.setattr(thresholds, "_FOLDER", tmp_path)
    thresholds._shipped.cache_clear()
    try:
        with pytest.raises(ThresholdError, match=refusal):
            for_sku("h100-sxm")
    finally:
        thresholds._shipped.cache_clear()


def test_what_a_limit_rests_on_is_read_and_cited(tmp_path: Path) -> None:
    def read(**more: object) -> Threshold:
        rows = {"p2p_bandwidth.p2p_read": {**GOOD, **more}}
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.yml"  # a new name, since files are cached
        write(file, {"sku": "h100-sxm", "thresholds": rows})
        return for_sku("h100-sxm", file)["p2p_bandwidth.p2p_read"]

    full = read(date="2026-05", machines=12, typical=TYPICAL, spread=SPREAD)
    assert (full.machines, full.typical, full.spread) == (12, TypicalValue(**TYPICAL), Spread(**SPREAD))
    assert full.cited == "our own fleet, May; 12 machines, 2026-05"
    assert read(machines=0).cited == "our own fleet, May; no machine measured"
    assert read(machines=1).cited == "our own fleet, May; 1 machine"
    assert read(date="2026-05").cited == "our own fleet, May; number of machines unknown, 2026-05"
    assert read().cited == "our own fleet, May"
    unsaid = read(machines=7, typical={"value": 380, "source": "our own fleet"}).typical
    assert unsaid is not None
    assert unsaid.machines == 7, "what a limit was drawn from was measured on the machines behind the limit"


def test_a_narrow_slot_lowers_the_typical_value_too() -> None:
    whole, half = for_sku("h200-sxm"), for_sku("h200-sxm", lanes=8)
    for name in ("p2p_bandwidth.h2d", "p2p_bandwidth.p2p_read"):
        before, after = whole[name].typical, half[name].typical
        assert before is not None
        assert after is not None
        assert after.value / half[name].limit == pytest.approx(before.value / whole[name].limit)


def test_every_metric_with_a_link_has_a_ceiling_and_a_floor() -> None:
    for name, metric in thresholds.table().items():
        if metric.unit == "GB/s" and metric.most is None:
            assert metric.ceiling, name
            assert metric.floor, name
