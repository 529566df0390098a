"""Drift as metrics, for the textfile folder of a node exporter (docs/metrics.md)."""

from __future__ import annotations

import time

from provision.checks.exposition import Family, Sample
from provision.checks.exposition import render as text_of
from provision.drift.drift_report import DriftReport
from provision.node_names import label


def render(report: DriftReport) -> str:
    """Render the text of a `.prom` file."""
    return text_of(families(report, time.time()))


def families(report: DriftReport, now: float) -> list[Family]:
    """Return every metric of a fleet observed at `now` (seconds since 1970); silent nodes have no series."""
    seen = report.seen
    answered = [name for name, observed in seen.observations.items() if observed.error is None]
    counts = []
    for node, drifts in seen.drifts.items():
        unreadable = sum(drift.unknown for drift in drifts)
        drifted = len(drifts) - unreadable
        held = len(seen.expected.get(node, ())) - len(drifts)
        for state, count in (("held", held), ("drifted", drifted), ("unreadable", unreadable)):
            counts.append(Sample(count, {"node": label(node), "state": state}))
    return [
        Family(
            "gpuprov_drift_timestamp_seconds",
            "gauge",
            "When the node was last observed, in seconds since 1970.",
            tuple(Sample(now, {"node": label(node)}) for node in answered),
        ),
        Family(
            "gpuprov_drift_expectations",
            "gauge",
            "How many of the node's expectations hold, do not hold, or could not be read.",
            tuple(counts),
        ),
    ]
