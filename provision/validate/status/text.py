"""A fleet's state as text for a terminal: nodes by verdict, causes with their nodes, next commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from provision import __version__
from provision.checks.judge import Verdict
from provision.desired import inventory
from provision.node_names import fold
from provision.report.causes import HEADINGS, SYMBOLS, causes, headline
from provision.report.nodes import folded, listable
from provision.report.terminal import Ink, section
from provision.text import many, moment, one_line, spelled
from provision.validate.status.status import ABSENT, FleetStatus

_COMMANDS = 3  # number of incidents' commands shown
_WHY = {
    "gpuprov return ": "after its repair: validates the node and makes it a spare",
    "gpuprov watch spare ": "a failed node waits for a spare; NODE: an idle one of the group gpuprov_spares",
}
_KINDS = 6  # number of kinds shown: of pending findings, Slurm states and Slurm reasons


def render(status: FleetStatus, width: int = 100, color: bool = False) -> str:
    """Render the whole state, ending in a newline and safe to print. `color` only adds ANSI colours."""
    ink = Ink(max(width, 40), color)
    all_causes = causes(status.health)
    lines = [*_head(status, ink), *_verdicts(status, ink)]
    for verdict in sorted(HEADINGS, key=lambda verdict: -verdict.badness):
        if group := [cause for cause in all_causes if cause.verdict is verdict]:
            lines += ["", ink.paint(verdict, HEADINGS[verdict], bold=True), *section(group, ink)]
    if more := [*_pending(status), *_versions(status), *_watched(status), *_slurm(status)]:
        lines += ["", *(line for text in more for line in ink.wrap(text, ""))]
    if commands := list(next_commands(status)):
        lines.append("")
    for command, why in commands:
        text = f"next: {command}"  # never wrapped, so that it can be pasted
        lines += [ink.paint(Verdict.PASS, text, bold=True), *ink.wrap(why, "      ", "")]
    return "\n".join(lines) + "\n"


def _head(status: FleetStatus, ink: Ink) -> Iterator[str]:
    source = one_line(str(status.fleet.source), 200)
    yield from ink.wrap(f"{source} · {many(len(status.nodes), 'node')} · {moment(status.at)}", "", "")
    yield ink.paint(status.verdict, headline(status.health), bold=True)
    parts = []
    if (oldest := status.oldest) is not None:
        parts.append(f"oldest health result: {spelled(int(oldest.age or 0))} ({one_line(oldest.node, 80)})")
    for state in ("unreachable", "unreadable"):
        if count := sum(each.state == state for each in status.nodes.values()):
            parts.append(f"{many(count, 'node')} {state}")
    if parts:
        yield from ink.wrap(" · ".join(parts), "", "")


def _verdicts(status: FleetStatus, ink: Ink) -> Iterator[str]:
    for verdict in sorted(Verdict, key=lambda verdict: -verdict.badness):
        if names := [name for name, one in status.nodes.items() if one.verdict is verdict]:
            mark = f"{SYMBOLS[verdict]} {verdict.value.upper():<5}"
            first, *rest = ink.pack(fold(names), " " * 16)
            yield ink.paint(verdict, mark) + f" {len(names):>6,}  {first.lstrip()}"
            yield from rest


def _pending(status: FleetStatus) -> Iterator[str]:
    """Summarise pending findings in one line, for a person who wants to act before they count."""
    if not (pending := status.pending):
        return
    kinds = Counter(
        f"{held.finding.check} {held.finding.metric}".strip() for found in pending.values() for held in found
    )
    named = ", ".join(f"{one_line(kind, 80)} ({count:,})" for kind, count in kinds.most_common(_KINDS))
    more = f", … and {len(kinds) - _KINDS:,} more" if len(kinds) > _KINDS else ""
    total = many(kinds.total(), "finding")
    yield f"pending: {total} not seen often enough to count yet, on {fold(pending, 200)}: {named}{more}"


def _versions(status: FleetStatus) -> Iterator[str]:
    for version, names in sorted(status.other_versions.items()):
        yield f"note: the health program of {fold(names, 200)} is gpuprov {version}, this is {__version__}"


def _watched(status: FleetStatus) -> Iterator[str]:
    """Describe the nodes handled by the watch: failed ones with their replacements, and the spares."""
    out = [(node, one) for node, one in status.watched.items() if one.role in ("failed", "repair")]
    for node, one in out[:_KINDS]:
        if one.role == "repair":
            by = f"{one.other} took its place" if one.other else "no spare took its place"
            yield f"in repair: {node}, {by} ({one.incident})"
        else:
            by = f"{one.other} takes its place" if one.other else "it has no spare yet"
            yield f"failed: {node}, {by}; next step: {one.step} ({one.incident})"
    if (more := len(out) - _KINDS) > 0:
        yield f"  … and {more:,} more out of service: gpuprov watch state lists them"
    if spares := [node for node, one in status.watched.items() if one.role == "spare"]:
        yield f"spares: {fold(spares, 200)}"


def _slurm(status: FleetStatus) -> Iterator[str]:
    """Count the nodes in each Slurm state, and list the reasons set for nodes out of service."""
    answered = {name: one.slurm for name, one in status.nodes.items() if one.slurm is not None}
    states = Counter(one.state for one in answered.values() if one.state)
    if states:
        shown = ", ".join(f"{count:,} {state}" for state, count in states.most_common(_KINDS))
        more = f", … and {len(states) - _KINDS:,} more states" if len(states) > _KINDS else ""
        yield f"Slurm: {shown}{more}"
    reasons: dict[str, list[str]] = {}
    for name, one in answered.items():
        if one.reason and not one.takes_jobs:  # Slurm keeps a reason after RESUME (24.11)
            reasons.setdefault(f"{one.state}: {one.reason}", []).append(name)
        elif one.error:
            reasons.setdefault(f"no answer of Slurm's: {one.error}", []).append(name)
    for reason, names in list(reasons.items())[:_KINDS]:
        yield f"  {fold(names, 200)}: {reason}"
    if len(reasons) > _KINDS:
        yield f"  … and {len(reasons) - _KINDS:,} more reasons: gpuprov status --json has them"


def next_commands(status: FleetStatus) -> Iterator[tuple[str, str]]:
    """Yield the commands to type next, with the reasons."""
    if used := status.still_used:
        names = [one.name for name in used if (one := status.nodes[name].slurm) is not None]
        if names := [name for name in names if listable(name)]:
            command = f"scontrol update NodeName={folded(names)} State=DRAIN Reason=gpuprov"
            yield command, f"Slurm still gives jobs to {many(len(used), 'failed node')}"
    if absent := [name for name, one in status.nodes.items() if one.trouble == ABSENT]:
        why = "applies the role node_health (with node_health_enabled: true)"
        yield f"gpuprov up {_arguments(status, absent)}", why
    commands = list(dict.fromkeys(one.next for one in status.watched.values() if one.next))
    for command in commands[:_COMMANDS]:
        yield from ((command, why) for verb, why in _WHY.items() if command.startswith(verb))
    if len(commands) > _COMMANDS:
        yield f"gpuprov watch state {inventory.arguments(status.fleet)}", "the next command for each incident"
    failed = [name for name, one in status.nodes.items() if one.verdict is Verdict.FAIL]
    taken = [name for name, one in status.watched.items() if one.role in ("failed", "repair")]
    if failed := [name for name in failed if name not in taken]:
        command = f"gpuprov validate {_arguments(status, failed)} --stage quick"
        yield command, "measures them again, and keeps the raw output"


def _arguments(status: FleetStatus, nodes: Sequence[str]) -> str:
    return inventory.arguments(status.fleet, nodes)
