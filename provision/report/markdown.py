"""report.md: the report for a ticket, short enough to paste; everything else is in the other formats."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from provision.checks.health import FleetHealth
from provision.checks.judge import Verdict
from provision.node_names import fold
from provision.report import diff_text
from provision.report.causes import HEADINGS, SYMBOLS, Cause, causes, coverage, headline
from provision.report.context import NOTHING, Context
from provision.report.terminal import next_commands
from provision.text import clean, columns, duration, many, moment, one_line, quantity

_CAUSES = 40  # keeps the text, with _ROWS, within ticket systems' 65,536 characters
_ROWS = 20
_EVIDENCE = 12  # lines of raw output below a cause
# Characters special within a line of Markdown. An underscore within a word (gpu_burn) is harmless and left
# readable.
_SPECIAL = re.compile(r"([\\`*{}\[\]|~>]|(?<!\w)_|_(?!\w))")
# A zero-width space stops ticket systems from turning @name into a mention, and #1 and addresses into links.
_LINKED = re.compile(r"(@|#|:(?=//)|www\.)(?=[\w/])")


def render(fleet: FleetHealth, context: Context = NOTHING) -> Iterator[str]:
    """Yield the document in pieces, up to the size of one ticket."""
    budget = 60_000
    for piece in _pieces(fleet, context):
        budget -= len(piece)
        if budget < 0:
            yield "\n… shortened to fit a ticket: report.html and report.json have the rest.\n"
            return
        yield piece


def _pieces(fleet: FleetHealth, context: Context) -> Iterator[str]:
    all_causes = causes(fleet)
    yield f"# GPU fleet health: {escape(headline(fleet))}\n\n"
    yield from _header(fleet)
    yield from _since(fleet, context)
    for verdict in sorted(HEADINGS, key=lambda verdict: -verdict.badness):
        group = [cause for cause in all_causes if cause.verdict is verdict]
        if group:
            yield f"\n## {SYMBOLS[verdict]} {HEADINGS[verdict]}\n"
        for cause in group[:_CAUSES]:
            yield _cause(cause)
        if left := group[_CAUSES:]:
            yield f"\n… and {many(len(left), 'more cause')}: see report.html.\n"
    healthy = [node.node for node in fleet.nodes if node.verdict is Verdict.PASS]
    if healthy:
        yield f"\n## ✓ Healthy\n\n{many(len(healthy), 'node')}: {escape(fold(healthy, 2000))}\n"
    yield "\n## Next\n\n"
    for command, why in next_commands(fleet, all_causes, context):
        yield f"- {_code(command)}: {escape(why)}\n"


def _header(fleet: FleetHealth) -> Iterator[str]:
    seen = coverage(fleet)
    taken = duration(fleet.started, fleet.finished)
    when = moment(fleet.started) + (f", {taken}" if taken else "")
    yield _table(
        ["verdict", "nodes"], ([f"{SYMBOLS[v]} {v.value}", f"{n:,}"] for v, n in fleet.counts.items())
    )
    yield (
        f"\n{escape(seen.words)}: "
        f"{escape(', '.join(fleet.asked)) or 'none requested'}; started {escape(when)}, "
        f"inventory {_code(fleet.inventory)}, run {_code(fleet.run_id)}, "
        f"gpuprov {escape(fleet.gpuprov_version)}.\n"
    )
    for line in fleet.not_compared:
        yield f"\nNot compared with the fleet: {escape(one_line(line, 240))}.\n"
    for line in fleet.between:
        yield f"\nBetween nodes: {escape(one_line(line, 240))}.\n"


def _since(fleet: FleetHealth, context: Context) -> Iterator[str]:
    changes = diff_text.since(context.earlier, fleet)
    if changes is None:
        return
    yield f"\n## Since the last run\n\n{escape(moment(changes.at))}, run {_code(changes.run)}\n\n"
    for words, nodes in changes.groups:
        yield f"- {len(nodes):,} {words}: {escape(fold(nodes))}\n"
    if not changes.groups:
        yield "No node has another verdict.\n"
    for one in changes.newly[:_ROWS]:
        yield f"- {escape(one.node)}: {one.was} → **{one.now}**: {escape('; '.join(one.why))}\n"
    for one in changes.still[:_ROWS]:
        if one.since:
            yield f"- {escape(one.node)}: {one.now} since {escape(moment(one.since))}\n"


def _cause(cause: Cause) -> str:
    where = f"{many(len(cause.nodes), 'node')}: " if len(cause.nodes) > 1 else ""
    parts = [f"\n### {escape(where + cause.title)}\n\n", f"Action: **{escape(cause.action)}**\n\n"]
    if len(cause.nodes) > 1:
        parts.append(f"Nodes: {escape(fold(cause.nodes))}\n\n")
    parts.append(
        _table(
            ["node", "device", "GPU serial", "PCI address", "measured", "limit", "what"],
            (
                [
                    escape(culprit.node.node),
                    escape(culprit.finding.device),
                    escape(", ".join(gpu.serial for gpu in culprit.gpus)),
                    escape(", ".join(gpu.pci_address for gpu in culprit.gpus)),
                    escape(quantity(culprit.finding.value, culprit.finding.unit)),
                    escape(culprit.finding.limit),
                    escape(culprit.finding.message, 300),
                ]
                for culprit in cause.culprits[:_ROWS]
            ),
        )
    )
    if len(cause.culprits) > _ROWS:
        parts.append(f"\n… and {len(cause.culprits) - _ROWS:,} more: see report.html.\n")
    sources = dict.fromkeys(culprit.finding.source for culprit in cause.culprits if culprit.finding.source)
    if sources:
        parts.append(f"\nLimit from: {escape('; '.join(list(sources)[:3]), 900)}\n")
    parts.append(_evidence(cause))
    return "".join(parts)


def _evidence(cause: Cause) -> str:
    """Render raw output of the first culprit that has some, indented so that it cannot end the block."""
    for culprit in cause.culprits:
        lines = [columns(line, 200) for line in culprit.finding.evidence[:_EVIDENCE]]
        if lines:
            block = "\n".join(f"    {line}" for line in lines)
            return f"\nEvidence on {escape(culprit.node.node)}:\n\n{block}\n"
    return ""


def escape(text: str, limit: int = 400) -> str:
    """Escape text for Markdown: no markup, HTML, links or mentions, and no end of a cell or line."""
    line = one_line(text, limit).replace("&", "&amp;").replace("<", "&lt;")
    return _LINKED.sub("\\1\u200b", _SPECIAL.sub(r"\\\1", line))


def _code(text: str) -> str:
    """Render a code span with a fence longer than any run of backticks inside, as CommonMark requires."""
    line = one_line(text, 400)
    fence = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    pad = " " if "`" in line else ""
    return f"{fence}{pad}{clean(line)}{pad}{fence}" if line else "—"


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"
