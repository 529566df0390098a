"""Fleet health as metrics, parsed by Prometheus' own parser and compared with the report."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from provision import report
from provision.checks.judge import Verdict
from provision.node_names import label
from provision.report import prometheus
from tests.support import samples

FLEETS = ("healthy", "demo", "unmeasured", "interrupted", "nothing", "hostile", "between")
Series = tuple[str, frozenset[tuple[str, str]]]


def read(text: str) -> dict[Series, float]:
    """Return series → value, after checking that no series is duplicated."""
    values: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith(".")
        assert family.type == "gauge"
        for sample in family.samples:
            assert sample.timestamp is None, "a textfile collector refuses the file"
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in values
            values[key] = sample.value
    return values


def of(fleet: Any) -> dict[Series, float]:
    return read("".join(prometheus.render(fleet)))


def series(name: str, **labels: str) -> Series:
    return (f"gpuprov_validation_{name}", frozenset(labels.items()))


@pytest.mark.parametrize("name", FLEETS)
def test_whatever_a_node_has_said_it_is_metrics(name: str, tmp_path: Path) -> None:
    fleet = getattr(samples, name)()
    path = report.write_all(fleet, tmp_path, ["prometheus"])["prometheus"]
    text = path.read_text(encoding="utf-8")
    found = read(text)
    assert text.splitlines() == [line for line in text.split("\n") if line]
    assert all(len(value) <= 209 for _, labels in found for _, value in labels)
    for verdict in Verdict:
        assert found[series("nodes", verdict=verdict.value)] == fleet.counts[verdict]
    for node in fleet.nodes:
        held = {
            verdict
            for verdict in Verdict
            if found[series("verdict", node=label(node.node), verdict=verdict.value)]
        }
        assert held == {node.verdict}


def test_a_finding_is_a_series_with_its_part_and_its_action() -> None:
    found = of(samples.demo())
    (burn,) = (
        labels for name, labels in found if name.endswith("_finding") and ("check", "gpu_burn") in labels
    )
    assert dict(burn) == {
        "node": dict(burn)["node"],
        "check": "gpu_burn",
        "metric": "errors",
        "device": "gpu5",
        "verdict": "fail",
        "action": "replace part",
        "serial": samples.BAD_GPU_SERIAL,
    }
    pair = next(dict(labels) for name, labels in found if ("device", "gpu2-gpu6") in labels)
    assert pair["serial"] == "", "of two GPUs, neither is named"


def test_a_check_that_did_not_run_is_an_error() -> None:
    fleet = samples.unmeasured()
    node = next(node for node in fleet.nodes if node.unreachable)
    found = of(fleet)
    for check in fleet.asked:
        assert found[series("check_verdict", node=node.node, check=check, verdict="error")] == 1
    assert not [
        key for key in found if key[0].endswith("timestamp_seconds") and ("node", node.node) in key[1]
    ]


def test_the_time_is_that_of_the_run() -> None:
    fleet = replace(samples.healthy(), finished="2026-05-04T10:00:00Z")
    assert of(fleet)[series("timestamp_seconds", node=fleet.nodes[0].node)] == 1777888800
    assert not [key for key in of(replace(fleet, started="", finished="")) if "timestamp" in key[0]]


def test_what_lies_between_nodes_belongs_to_none() -> None:
    fleet = samples.between()
    assert fleet.fabric
    found = [dict(labels) for name, labels in of(fleet) if name.endswith("_finding")]
    assert {one.device for one in fleet.fabric} <= {
        labels["device"] for labels in found if not labels["node"]
    }


def test_the_names_pass_promtools_lint() -> None:
    """Mirrors `promtool check metrics`: base units, no misplaced unit or type, help everywhere."""
    for family in prometheus.families(samples.demo()):
        assert family.help
        assert re.fullmatch(r"gpuprov_[a-z_]+", family.name)
        assert not re.search(
            r"_(total|count|sum|bucket|gauge|ms|milliseconds|minutes|hours|percent)$", family.name
        )
        assert not {"le", "quantile"} & {name for sample in family.samples for name in sample.labels}
