"""Drift as Markdown, for a job's summary ($GITHUB_STEP_SUMMARY), a merge request or a ticket."""

from __future__ import annotations

import html
import re

from provision.drift import drift_text
from provision.drift.diagnosis import Arguments
from provision.drift.drift_report import DriftReport, Finding, together
from provision.drift.formats import text
from provision.errors import ExitCode
from provision.node_names import fold

_ROUND = 4096  # bytes reserved for headings and for the lines about omitted rows
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$@:])")
_HEADINGS = (
    ("Differs from the declaration or from the fleet", "error"),
    ("Unknown", "warning"),
    ("Notes", "note"),
)
_WORDS = {
    ExitCode.OK: "no drift",
    ExitCode.DRIFT: "**drift**",
    ExitCode.UNHEALTHY: "**a node's newest check failed**",
    ExitCode.INCOMPLETE: "**incomplete**: something could not be observed, or has no current pass",
}


def render(report: DriftReport) -> str:
    """Render a heading with the result and a table per kind of finding, within GitHub's size limit."""
    lines = ["## gpuprov drift", "", f"{_WORDS[report.code]} (exit code {int(report.code)})", ""]
    lines += [f"- {_plain(line)}" for line in text.totals(report)]
    groups = together(report.findings)
    room = drift_text.SUMMARY - drift_text.size(lines) - _ROUND
    for heading, level in _HEADINGS:
        rows = [
            _row(each, nodes, report.seen.arguments)
            for nodes, same in groups
            for each in same
            if each.level == level
        ]
        if rows:
            shown = drift_text.fitting([[row] for row in rows], room)
            room -= drift_text.size(rows[:shown])
            lines += ["", f"### {heading}", "", "| nodes | finding | reason, or next step |", "|---|---|---|"]
            lines += rows[:shown]
            if len(rows) > shown:
                lines += ["", f"and {len(rows) - shown:,} more: `gpuprov drift --format json` has them all"]
    return "\n".join(lines) + "\n"


def _row(finding: Finding, nodes: list[str], arguments: Arguments) -> str:
    return f"| {_plain(fold(nodes))} | {_plain(finding.text)} | {_plain(finding.advice(arguments, nodes))} |"


def _plain(words: str) -> str:
    """Escape text of nodes and inventories to one line without markup, links or mentions."""
    return _SPECIAL.sub(r"\\\1", html.escape(" ".join(words.split()), quote=False))
