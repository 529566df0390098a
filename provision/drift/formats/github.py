"""Drift as workflow commands of GitHub Actions: each line becomes an annotation of the run.

GitHub shows ten annotations of each kind per step and silently drops the others (github.com/actions/toolkit,
docs/problem-matchers.md). So equal findings of several nodes are merged, as are findings of the same nodes
and role, and the tenth annotation of a kind states how many are left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from provision.drift.drift_report import DriftReport, Finding, together
from provision.drift.formats import markdown
from provision.errors import UsageError
from provision.fleet import sources
from provision.node_names import fold
from provision.text import many

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
_SHOWN = 10  # annotations of each kind
_LINES = 12  # findings per annotation
_TITLE = 200  # characters; GitHub truncates a title, and a message at 64 KiB
_NAMES = 200  # characters of folded node names
SUMMARY = "GITHUB_STEP_SUMMARY"


def render(report: DriftReport) -> str:
    """Render at most ten lines of each kind."""
    whole = "the job's summary" if SUMMARY in os.environ else "gpuprov drift --format markdown"
    file = _property(_in_workspace(report.seen.fleet.source))
    groups = together(report.findings)
    lines = []
    for level, command in _COMMANDS.items():
        chosen = [(nodes, same) for nodes, same in groups if same[0].level == level]
        shown = chosen if len(chosen) <= _SHOWN else chosen[: _SHOWN - 1]
        head = f"::{command} file={file},title="
        lines += [f"{head}{_title(nodes, same)}::{_message(nodes, same, report)}\n" for nodes, same in shown]
        if rest := chosen[len(shown) :]:
            left = f"{many(sum(len(same) for _, same in rest), 'more finding')} not shown here"
            lines.append(f"{head}{_property(left)}::{_data(f'{left}: {whole} has them all')}\n")
    return "".join(lines)


def summarize(report: DriftReport) -> None:
    """Append the Markdown form to the job's summary."""
    add_to_summary(lambda: markdown.render(report))


def annotation(level: str, source: Path, title: str, text: str) -> str:
    """Return one annotation at the inventory."""
    where = f"file={_property(_in_workspace(source))},title={_property(title[:_TITLE])}"
    return f"::{level} {where}::{_data(text)}\n"


def add_to_summary(render: Callable[[], str]) -> None:
    """Append a text to the job's summary, if GitHub offers one. Raises UsageError if writing fails."""
    file = os.environ.get(SUMMARY)
    if not file:
        return
    try:
        with Path(file).open("a", encoding="utf-8") as summary:
            summary.write(render())
    except OSError as trouble:
        raise UsageError(
            f"{file}: the job's summary cannot be written: {trouble.strerror}",
            f"unset {SUMMARY}, or let it name a file",
        ) from None


def _title(nodes: Sequence[str], same: Sequence[Finding]) -> str:
    kind = same[0].rule if len(same) == 1 else f"{same[0].rule.partition('/')[0]}, {len(same)} findings"
    return _property(f"{fold(nodes, 120)}: {kind}"[:_TITLE])


def _message(nodes: Sequence[str], same: Sequence[Finding], report: DriftReport) -> str:
    lines = [f"{fold(nodes, _NAMES)}: {same[0].text}\n{same[0].advice(report.seen.arguments, nodes)}"]
    if len(same) > 1:
        lines = [f"{fold(nodes, _NAMES)}:", *(f"- {each.text}" for each in same[:_LINES])]
    if len(same) > _LINES:
        lines.append(f"and {len(same) - _LINES} more")
    return _data("\n".join(lines))


def _in_workspace(source: Path) -> str:
    """Return the inventory's path relative to the repository, so that GitHub shows the annotation there."""
    workspace = os.environ.get("GITHUB_WORKSPACE")
    source = sources(source)[0]
    full = source.absolute()
    if workspace and full.is_relative_to(workspace):
        return str(full.relative_to(workspace))
    return str(source)


def _data(text: str) -> str:
    """Escape the message of a command: on one line, no text of a node can start another command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a command's property, in which commas and colons are special too."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
