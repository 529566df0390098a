"""Round trip of report.json: parsing returns the original report."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from provision.checks.check import Measurement
from provision.checks.health import (
    CheckResult,
    FleetHealth,
    GpuIdentity,
    NodeHealth,
    from_json,
    roll_up,
    to_json,
)
from provision.checks.judge import Finding, Verdict
from provision.errors import RunFolderError


@pytest.fixture
def fleet() -> FleetHealth:
    finding = Finding(
        "p2p_bandwidth", Verdict.FAIL, "gpu2-gpu6", "slow", "p2p_read", 170.5, "GB/s", "≥ 335 GB/s", "source",
        "reset GPU", ("gpu2->gpu6 170.5",),
    )  # fmt: skip
    check = CheckResult(
        "p2p_bandwidth",
        Verdict.FAIL,
        (finding,),
        (Measurement("p2p_read", 170.5, "GB/s", "gpu2->gpu6"),),
        12.5,
        "raw/x",
    )
    gpu = GpuIdentity(2, "NVIDIA H100 80GB HBM3", "1650", "GPU-2", "0000:1c:00")
    nodes = (
        NodeHealth("gpu-01", Verdict.FAIL, (check,), (gpu,), {"os": "debian 13", "gpus": 8}),
        NodeHealth("gpu-02", Verdict.ERROR, (), error="no route to host", unreachable=True),
    )
    fabric = Finding(
        "pair_bandwidth", Verdict.FAIL, "uplink of rack a", "slow", "fabric", evidence=("24 Gb/s",)
    )
    return FleetHealth(
        "run", "0.1.0", "inv.yml", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", ("p2p_bandwidth",), nodes,
        fabric=(fabric,),
    )  # fmt: skip


def test_there_and_back_through_text(fleet: FleetHealth) -> None:
    assert from_json(json.loads(json.dumps(to_json(fleet)))) == fleet


def test_a_report_of_before_pairs_has_no_findings_of_the_fabric(fleet: FleetHealth) -> None:
    document = to_json(fleet)
    assert document.pop("fabric")[0]["device"] == "uplink of rack a"
    assert from_json(document) == replace(fleet, fabric=())


def test_field_names_are_those_of_the_classes(fleet: FleetHealth) -> None:
    document = to_json(fleet)
    assert set(document) == {"format", *FleetHealth.__dataclass_fields__}
    assert set(document["nodes"][0]["checks"][0]["findings"][0]) == set(Finding.__dataclass_fields__)
    assert document["nodes"][0]["verdict"] == "fail"


def test_counts(fleet: FleetHealth) -> None:
    assert fleet.counts == {
        Verdict.PASS: 0, Verdict.SKIP: 0, Verdict.WARN: 0, Verdict.ERROR: 1, Verdict.FAIL: 1,
    }  # fmt: skip


@pytest.mark.parametrize("document", [{}, {"nodes": 3}, {"format": 1, "nodes": [{}]}])
def test_what_is_no_report_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(RunFolderError, match="not a health report"):
        from_json(document)


def test_a_newer_format_is_refused_politely(fleet: FleetHealth) -> None:
    with pytest.raises(RunFolderError, match="reads up to 1"):
        from_json({**to_json(fleet), "format": 2})


def test_roll_up() -> None:
    def result(verdict: Verdict) -> CheckResult:
        return CheckResult("c", verdict, (), (), 0.0)

    assert roll_up([]) is Verdict.ERROR
    assert roll_up([result(Verdict.PASS), result(Verdict.WARN)]) is Verdict.WARN
    assert roll_up([result(Verdict.ERROR), result(Verdict.FAIL)]) is Verdict.FAIL
