"""The health of a fleet for a terminal: culprits, causes, and the next commands."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.checks.health import FleetHealth, GpuIdentity
from provision.checks.judge import Verdict
from provision.node_names import fold, natural
from provision.report.causes import (
    FABRIC,
    HEADINGS,
    SYMBOLS,
    Cause,
    Culprit,
    causes,
    coverage,
    headline,
    overall,
)
from provision.report.nodes import listable
from provision.text import duration, many, one_line, quantity

if TYPE_CHECKING:
    from provision.report.context import Context

_CAUSES = 12  # shown for each verdict; the report files have all
_CULPRITS = 6  # listed one by one; more are folded into ranges
_EXAMPLES = 3  # listed for a folded cause
_NAMED = 8  # nodes named in a command; beyond that it names a file
_COLOURS = {
    Verdict.PASS: "32",
    Verdict.SKIP: "2",
    Verdict.WARN: "33",
    Verdict.ERROR: "35",
    Verdict.FAIL: "31",
}


def summary(fleet: FleetHealth, width: int = 100, color: bool = False, context: Context | None = None) -> str:
    """Render the summary: headline, causes with culprits, worst first, and the next command.

    Causes include missing measurements, as prominently as failures. `width` in columns (at least 40 are
    used); `color` only adds ANSI colours; `context`: earlier runs, for a line on changes. Ends in a newline.
    """
    ink = Ink(max(width, 40), color)
    all_causes = causes(fleet)
    lines = [ink.paint(overall(fleet), headline(fleet), bold=True), *_context(fleet, ink, context)]
    for verdict in sorted(HEADINGS, key=lambda verdict: -verdict.badness):
        group = [cause for cause in all_causes if cause.verdict is verdict]
        if group:
            lines += ["", ink.paint(verdict, HEADINGS[verdict], bold=True), *section(group, ink)]
    lines += ["", *_next(fleet, all_causes, ink, context)]
    return "\n".join(lines) + "\n"


class Ink:
    """Formatter that wraps lines to a width and, if enabled, colours verdicts."""

    def pack(self, ranges: str, indent: str) -> list[str]:
        """Wrap like `wrap`, but after commas, since ranges have no spaces."""
        lines = [indent]
        for piece in re.findall(r"[^,]*,?", ranges):
            if len(lines[-1]) + len(piece) > self.width and lines[-1].strip():
                lines.append(indent)
            lines[-1] += piece if lines[-1].strip() else piece.lstrip()
        return [line.rstrip() for line in lines]

    def __init__(self, width: int, color: bool) -> None:
        self.width, self.color = width, color

    def paint(self, verdict: Verdict, text: str, bold: bool = False) -> str:
        if not self.color:
            return text
        return f"\x1b[{'1;' if bold else ''}{_COLOURS[verdict]}m{text}\x1b[0m"

    def wrap(self, text: str, indent: str, hang: str = "    ") -> list[str]:
        return textwrap.wrap(
            text,
            self.width,
            initial_indent=indent,
            subsequent_indent=indent + hang,
            break_on_hyphens=False,
        ) or [indent]


def _context(fleet: FleetHealth, ink: Ink, context: Context | None) -> Iterator[str]:
    """Summarise coverage, duration, and changes since earlier runs."""
    seen = coverage(fleet)
    parts = [seen.words]
    if seen.nodes_silent:
        parts.append(f"{many(seen.nodes_silent, 'node')} unreachable")
    parts.append(duration(fleet.started, fleet.finished))
    if fleet.asked:
        parts.append(", ".join(one_line(name, 40) for name in fleet.asked))
    yield from ink.wrap(" · ".join(filter(None, parts)), "", "")
    if context is not None and context.earlier is not None:
        from provision.report import diff_text

        if (changes := diff_text.since(context.earlier, fleet)) is not None:
            yield from ink.wrap(diff_text.since_line(changes), "", "")
    for line in fleet.not_compared:
        yield from ink.wrap(f"not compared with the fleet: {one_line(line, 240)}", "", "")
    for line in fleet.between:
        yield from ink.wrap(f"between nodes: {one_line(line, 240)}", "", "")


def section(group: Sequence[Cause], ink: Ink) -> Iterator[str]:
    """Render the first causes of one verdict, line by line."""
    for cause in group[:_CAUSES]:
        yield from _cause(cause, ink)
    if left := group[_CAUSES:]:
        nodes = {name for cause in left for name in cause.nodes}
        yield from ink.wrap(
            f"… and {many(len(left), 'more cause')} in the report, on {many(len(nodes), 'node')}: "
            f"{fold(nodes, 120)}",
            "  ",
        )


def _cause(cause: Cause, ink: Ink) -> Iterator[str]:
    mark = f"{SYMBOLS[cause.verdict]} {cause.verdict.value.upper()}"
    where = f"{many(len(cause.nodes), 'node')}: " if len(cause.nodes) > 1 else ""
    action = f" → {one_line(cause.action, 80)}" if cause.action not in {"", "none"} else ""
    head = f"{mark}  {where}{one_line(cause.title, 240)}"
    on_one_line = len(head) + len(action) + 2 <= ink.width
    first, *rest = ink.wrap(head + action if on_one_line else head, "  ")
    yield first.replace(mark, ink.paint(cause.verdict, mark), 1)
    yield from rest
    if action and not on_one_line:
        yield f"     {action}"
    one_by_one = len(cause.culprits) <= _CULPRITS
    nodes_only = all(culprit.finding.device == "node" for culprit in cause.culprits)
    if not one_by_one or (nodes_only and cause.uniform):
        yield from ink.pack(fold(cause.nodes), "      ")
    if nodes_only and cause.uniform:
        return
    for culprit in cause.culprits[: _CULPRITS if one_by_one else _EXAMPLES]:
        text = _culprit(culprit, told=cause.same_words)
        yield from ink.wrap(text if one_by_one else f"for example {text}", "      ")


def _culprit(culprit: Culprit, told: bool) -> str:
    """Format `gpu-03 gpu5 (serial 165…, 0000:bb:00.0): …`, without the message if `told` is set."""
    finding = culprit.finding
    name = one_line(culprit.node.node, 80)
    if finding.device != "node":
        name += f" {one_line(finding.device, 40)}"
    if culprit.gpus:
        name += f" ({'; '.join(_identity(gpu, len(culprit.gpus) > 1) for gpu in culprit.gpus)})"
    facts = [] if told else [one_line(finding.message, 300)]
    measured, limit = quantity(finding.value, finding.unit), one_line(finding.limit, 80)
    # A message with the limit also has the value; without a limit, repeating a text value adds nothing.
    if limit and limit not in finding.message:
        facts.append(f"measured {measured or 'nothing'}, limit {limit}")
    elif not limit and isinstance(finding.value, int | float) and f"{finding.value:g}" not in finding.message:
        facts.append(f"measured {measured}")
    return f"{name}: {'; '.join(facts)}" if facts else name


def _identity(gpu: GpuIdentity, of_many: bool) -> str:
    """Identify the physical GPU by the serial on its label and the PCI address of its slot."""
    which = f"gpu{gpu.index} " if of_many else ""
    parts = [f"serial {one_line(gpu.serial, 40) or 'unknown'}", one_line(gpu.pci_address, 40)]
    return which + ", ".join(filter(None, parts))


def _next(fleet: FleetHealth, found: Sequence[Cause], ink: Ink, context: Context | None) -> Iterator[str]:
    """Render the commands to type now, with reasons."""
    for number, (command, why) in enumerate(next_commands(fleet, found, context)):
        label = "next: " if number == 0 else "then: "
        text = f"{label}{command}"
        yield ink.paint(Verdict.PASS, text, bold=True) if ink.color else text
        yield from ink.wrap(why, "      ", "")


@dataclass(frozen=True)
class _Step:
    """A command to type, and the reason. `nodes`: its nodes; `kind`: names the file that lists them."""

    command: str
    why: str
    nodes: Sequence[str] = ()
    kind: str = ""

    @property
    def names(self) -> list[str]:
        return sorted(set(self.nodes), key=natural)

    @property
    def file(self) -> str:
        """The file that lists its nodes; "" if a line can hold them or one has an invalid name."""
        return f"nodes.{self.kind}" if len(self.names) > _NAMED and all(map(listable, self.nodes)) else ""

    def text(self, folder: str) -> str:
        """Return the command with its nodes, or with their file in `folder` if a line cannot hold them."""
        if not self.nodes:
            return self.command
        pattern = ",".join(self.names)
        if self.file and folder:
            pattern = f"@{folder}/{self.file}"
        elif any(one_line(name) != name for name in self.nodes):
            pattern = "all"
        return f"{self.command} --nodes {shlex.quote(pattern)}"


def next_commands(
    fleet: FleetHealth, found: Sequence[Cause], context: Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield at least one command to type next, with the reason."""
    folder, pattern = (context.folder, context.pattern) if context is not None else ("", "all")
    return ((step.text(folder), step.why) for step in _steps(fleet, found, pattern))


def node_lists(fleet: FleetHealth) -> dict[str, list[str]]:
    """Return file name → nodes for the proposed commands with too many nodes for a line."""
    return {step.file: step.names for step in _steps(fleet, causes(fleet), "all") if step.file}


def _steps(fleet: FleetHealth, found: Sequence[Cause], pattern: str) -> Iterator[_Step]:
    # Pasted commands must use this inventory even if another would be found by default.
    of = f" {shlex.quote(one_line(fleet.inventory, 4096))}" if fleet.inventory else ""
    chosen = of if pattern == "all" else f"{of} --nodes {shlex.quote(one_line(pattern, 4096))}"
    failed = _on(found, Verdict.FAIL)
    configuration = [
        n for c in found if c.verdict is Verdict.FAIL and c.action == "fix configuration" for n in c.nodes
    ]
    silent = [node.node for node in fleet.nodes if node.unreachable]
    again = [name for name in _on(found, Verdict.ERROR) if name not in set(silent)]
    if fleet.interrupted:
        yield _Step(
            f"gpuprov validate --resume {shlex.quote(one_line(fleet.run_id, 120))}",
            "continues where it was interrupted",
        )
    if configuration:
        yield _Step(
            f"gpuprov plan{of}",
            "shows what `gpuprov up` would correct on these nodes",
            configuration,
            "misconfigured",
        )
    if failed:
        yield _Step(f"gpuprov validate{of}", "after the repair: verifies it", failed, "fail")
    elif fleet.fabric:
        names = ",".join(dict.fromkeys(finding.check for finding in fleet.fabric))
        yield _Step(
            f"gpuprov validate{chosen} --checks {names}", "after the repair of the fabric: verifies it"
        )
    elif again and not fleet.interrupted:
        yield _Step(f"gpuprov validate{of}", "repeats the measurements that failed", again, "error")
    if silent:
        yield _Step(
            f"gpuprov drift{of}",
            "once they are back: shows whether they answer and still match the stack",
            silent,
            "unreachable",
        )
    if not fleet.nodes:
        yield _Step(f"gpuprov validate{of} --nodes all", "measures every node of the inventory")
    elif any((failed, again, silent, fleet.fabric, fleet.interrupted)):
        return
    elif warned := _on(found, Verdict.WARN):
        yield _Step(f"gpuprov validate{of}", "after looking at the warnings above", warned, "warn")
    else:
        yield _Step(f"gpuprov drift{chosen}", "any time later: shows whether anything has changed since")


def _on(found: Sequence[Cause], *verdicts: Verdict) -> list[str]:
    names = dict.fromkeys(name for cause in found if cause.verdict in verdicts for name in cause.nodes)
    return [name for name in names if name != FABRIC]
