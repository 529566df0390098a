"""record.html: the record of acceptance of a burn-in, for printing, signing and filing. One file, no network.

It is made of the record (JSON) alone, and of the samples it draws; what a node says is escaped as in every
report (html.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from provision.checks.gpu.telemetry_series import Series
from provision.checks.judge import Verdict
from provision.report import html, plots
from provision.report.canvas import Image

_DRAWN = 24  # nodes whose telemetry is drawn, worst first: a page that opens and prints
_COURSE = 60  # lines of a node's course
_FINDINGS = 60
_GPU = re.compile(r"\bgpu\d{1,4}\b")
_HOT, _WARM = 12.0, 6.0  # degrees above the median of the same place on the other nodes


def render(record: Mapping[str, Any], series: Mapping[str, Mapping[str, Series]], sha: str) -> Iterator[str]:
    """The page in pieces. `series`: node → device → its samples; `sha`: of the record's JSON."""
    nodes = sorted(record["nodes"], key=lambda node: -Verdict(node["verdict"]).badness)
    charts = {node["node"]: _charts(node, series.get(node["node"], {})) for node in nodes[:_DRAWN]}
    yield from html.page(
        "record.html.j2",
        "record.css",
        record=record,
        nodes=nodes,
        verdict=Verdict(record["verdict"]),
        verdict_of=Verdict,
        charts={name: images for name, images in charts.items() if images},
        sha=sha,
        course_shown=_COURSE,
        findings_shown=_FINDINGS,
        thermal=_thermal(record),
        load_words=_load_words,
        headline=_headline(record),
    )


def _charts(node: Mapping[str, Any], series: Mapping[str, Series]) -> list[Image]:
    bad: dict[str, Verdict] = {}
    for finding in node["findings"]:
        verdict = Verdict(finding["verdict"])
        if verdict in (Verdict.WARN, Verdict.ERROR, Verdict.FAIL):
            for name in _GPU.findall(str(finding["device"])):
                bad[name] = max(bad.get(name, verdict), verdict, key=lambda v: v.badness)
    return plots.telemetry(series, bad) if series else []


def _headline(record: Mapping[str, Any]) -> str:
    """`6 of 8 nodes accepted`."""
    accepted = sum(node["verdict"] in ("pass", "warn") and node["over"] for node in record["nodes"])
    count = len(record["nodes"])
    said = f"{accepted} of {count} node{'s' * (count != 1)} accepted"
    if count == 1:
        said = f"{record['nodes'][0]['node']} {'accepted' if accepted else 'not accepted'}"
    return said if record["over"] else f"{said}; the burn-in is not over"


def _thermal(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The table of temperatures by place, as its cells: text and how far it stands out."""
    tables = []
    for sku in dict.fromkeys(row["sku"] for row in record["thermal"]):
        rows = [row for row in record["thermal"] if row["sku"] == sku]
        names = list(dict.fromkeys(name for row in rows for name in row["celsius"]))
        tables.append(
            {
                "sku": sku,
                "nodes": names[:12],
                "more": max(0, len(names) - 12),
                "rows": [
                    (row["place"], [_cell(row["celsius"], name) for name in names[:12]]) for row in rows
                ],
            }
        )
    return tables


def _cell(values: Mapping[str, float], name: str) -> tuple[str, str]:
    """(what stands there, its class)."""
    if name not in values:
        return "—", ""
    others = sorted(value for other, value in values.items() if other != name)
    if len(others) < 3:
        return f"{values[name]:.0f}", ""
    far = values[name] - others[len(others) // 2]
    return f"{values[name]:.0f}", "hot" if far > _HOT else "warm" if far > _WARM else ""


def _load_words(seconds: float) -> str:
    """Seconds under load as a person says them."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
