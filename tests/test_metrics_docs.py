"""docs/metrics.md lists exactly the existing metrics with their labels."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.checks.exposition import Family
from provision.desired import stack
from provision.drift import assess, drift_report
from provision.drift.formats import prometheus as drift_metrics
from provision.fleet import Fleet, Node
from provision.remote.reach.observe import Observation
from provision.report import prometheus as report_metrics
from provision.up.watch import heartbeat
from provision.up.watch.decide import View
from provision.up.watch.policy import Policy
from tests.support import samples
from tests.support.observed import debian, promised, unknown
from tests.support.watching import fleet

DOCUMENT = (Path(cli.__file__).parent.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*)\| ([^|]+)\|$", re.M)


def table(heading: str) -> dict[str, tuple[str, set[str]]]:
    """Return metric → type and labels, from one section."""
    part = DOCUMENT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = ROW.findall(part)
    assert len(rows) == sum(line.startswith("| `") for line in part.splitlines()), "a row is not understood"
    assert all(meaning.strip().endswith(".") for *_, meaning in rows)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels, _ in rows}


def rendered(families: list[Family]) -> dict[str, tuple[str, set[str]]]:
    return {
        family.name: (family.kind, {name for sample in family.samples for name in sample.labels})
        for family in families
    }


@pytest.fixture
def drift(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> drift_report.DriftReport:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path))
    own = debian("12", "bookworm", "6.1.0")

    def observe(nodes: Any, ask: Any, **_: Any) -> dict[str, Observation]:
        (node,) = nodes
        facts = {**unknown(ask[node.name], "6.1.0"), **promised(stack.declared(node, {}), own), **own}
        return {node.name: Observation(node.name, facts)}

    fleet = Fleet(tmp_path / "inventory.yml", {"gpu-01": Node("gpu-01", (), {})}, {"all": ("gpu-01",)})
    return drift_report.make(assess.assess(fleet, {}, observe=observe, also=drift_report.FACTS))


def test_the_page_has_every_metric_of_the_controller_and_no_other(drift: drift_report.DriftReport) -> None:
    made = rendered(report_metrics.families(samples.demo())) | rendered(drift_metrics.families(drift, 1.0))
    assert table("Of the controller") == made


def test_the_page_has_every_metric_of_the_watch() -> None:
    counts = heartbeat.counted(View(1.0, fleet(), {}, {}, []), Policy(), {"gpu-01": (2.0, 60.0)}, 1.0, 0)
    families = heartbeat.families({"at": 1.0, "held": ["held.silent"], "counts": counts})
    assert table("Of the watch") == rendered(families)
    assert all(family.samples for family in families), "each is written"


def test_a_metric_has_one_row() -> None:
    names = [name for name, *_ in ROW.findall(DOCUMENT)]
    assert len(names) == len(set(names)) > 15


def test_names_in_the_text_are_of_the_tables() -> None:
    known = {name for name, *_ in ROW.findall(DOCUMENT)}
    assert (
        set(re.findall(r"\bgpuprov_(?:health|validation|drift|check|finding|burnin|gpu|watch_)\w*", DOCUMENT))
        == known
    )
