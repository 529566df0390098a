"""Drift for programs: the document of data/schemas/drift.schema.json.

Keys may be added; `format` changes if a key is removed or changes its meaning."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from provision.drift import drift_text
from provision.drift.diagnosis import NODES
from provision.drift.drift_report import DriftReport

FORMAT = 1


def document(report: DriftReport) -> dict[str, Any]:
    """Build the whole document, with secrets masked."""
    seen = report.seen
    whole = {
        "format": FORMAT,
        "inventory": str(seen.fleet.source),
        "run_folder": report.run_folder,
        "exit_code": int(report.code),
        "nodes": len(seen.fleet.nodes),
        "as_declared": len(seen.as_declared),
        "expectations": seen.expectations,
        "drifts": [drift_text.record(drift) for drifts in seen.drifts.values() for drift in drifts],
        "majority": _majority(report),
        "diagnoses": [
            {
                **asdict(cause),
                "next_step": cause.next_step.replace(NODES, seen.arguments(nodes)),
                "nodes": list(nodes),
            }
            for cause, nodes in report.causes.items()
        ],
        "validation": {
            "required": report.required,
            "validated": [
                node for node, standings in report.standings.items() if all(each.holds for each in standings)
            ],
            "not_validated": [each.record() for each in report.all_standings if not each.holds],
        },
        "unreachable": seen.unreachable,
        "refused": {name: [asdict(each) for each in why] for name, why in seen.refused.items()},
    }
    masked: dict[str, Any] = drift_text.without(whole, seen.secrets)
    return masked


def _majority(report: DriftReport) -> dict[str, Any] | None:
    if report.odd is None:
        return None
    return {
        "compared": report.odd.compared,
        "outliers": [asdict(outlier) for outlier in report.odd.outliers],
        "ties": [
            {
                "fact": tie.fact,
                "kind": tie.kind,
                "why": tie.why,
                "sides": [{"value": value, "nodes": list(nodes)} for value, nodes in tie.sides],
            }
            for tie in report.odd.ties
        ],
        "alone": {kind: list(nodes) for kind, nodes in report.odd.alone.items()},
    }


def render(report: DriftReport) -> str:
    """Render the document as text with one line per entry."""
    lines = (f" {json.dumps(key)}: {_entries(value)}" for key, value in document(report).items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entries(value: Any) -> str:
    """Render a value of the document with each entry of a list or an object on its own line."""
    if value and isinstance(value, dict):
        inside = ",\n".join(f"  {json.dumps(key)}: {_line(each)}" for key, each in value.items())
        return "{\n" + inside + "\n }"
    if value and isinstance(value, list):
        return "[\n" + ",\n".join(f"  {_line(each)}" for each in value) + "\n ]"
    return _line(value)


def _line(value: Any) -> str:
    # Only without `indent` does Python use its C encoder.
    return json.dumps(value, default=str)
