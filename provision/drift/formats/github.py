"""Drift as workflow commands of GitHub Actions: each line becomes an annotation of the run."""

from __future__ import annotations

import os
from pathlib import Path

from provision.drift.drift_report import DriftReport, findings, grouped
from provision.node_names import fold

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
_TITLE = 200  # characters; GitHub cuts a title, and a message at 64 KiB


def render(report: DriftReport) -> str:
    """One line for each thing to say. GitHub shows the first ten of a kind: nodes with the same are one."""
    file = _property(_in_workspace(report.seen.fleet.source))
    lines = []
    for finding, nodes in grouped(findings(report)):
        title = _property(f"{fold(nodes, 120)}: {finding.rule}"[:_TITLE])
        message = _data(f"{fold(nodes)}: {finding.text}\n{finding.advice(report.seen.arguments, nodes)}")
        lines.append(f"::{_COMMANDS[finding.level]} file={file},title={title}::{message}\n")
    return "".join(lines)


def _in_workspace(source: Path) -> str:
    """The inventory as the repository names it, so that the annotation is shown at the file."""
    workspace = os.environ.get("GITHUB_WORKSPACE")
    full = source.absolute()
    if workspace and full.is_relative_to(workspace):
        return str(full.relative_to(workspace))
    return str(source)


def _data(text: str) -> str:
    """The message of a command: on one line, so that no text of a node can begin a command of its own."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A property of a command, where commas and colons mean something, too."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
