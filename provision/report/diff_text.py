"""Texts of a diff of two runs: after judging again, for `report compare`, since the last run (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Finding
from provision.node_names import fold
from provision.report.causes import silence
from provision.report.diff import Diff, FindingChange, Moved, NodeChange, Part, Shift, diff
from provision.runs.node_history import BAD, Earlier
from provision.text import many, moment, one_line, quantity

FORMAT = 1  # version of the JSON documents
_SHOWN = 20  # nodes, parts and measurements listed for a person; JSON has all
_FINDINGS = 6  # listed per node
_WHY = 2  # findings shown as the reason for a bad node


# --- changes by judging again


def verdict_lines(changes: Sequence[NodeChange]) -> list[str]:
    """Return a line per change of verdict with its nodes folded: `gpu-[03,07]: pass → fail`."""
    moved: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        moved.setdefault((change.was, change.now), []).append(change.node)
    return [f"{fold(names)}: {was} → {now}" for (was, now), names in moved.items()]


def finding_lines(changes: Sequence[NodeChange], whole: str = "--changes --json") -> Iterator[str]:
    """Yield each changed node with its findings, for a person; `whole`: option that lists all of them."""
    for change in changes[:_SHOWN]:
        for one in change.findings[:_FINDINGS]:
            yield f"{change.node} {_finding(one)}"
        if left := change.findings[_FINDINGS:]:
            yield f"{change.node} … and {many(len(left), 'more finding')}"
    if more := changes[_SHOWN:]:
        yield f"… and {many(len(more), 'more node')}; {whole} has all"


def _finding(one: FindingChange) -> str:
    limit = ""
    if one.limit_was != one.limit_now:
        limit = f", limit {one.limit_was or 'none'} → {one.limit_now or 'none'}"
    elif one.limit_now:
        limit = f", limit {one.limit_now}"
    what = " ".join(one_line(word, 60) for word in (one.check, one.metric, one.device) if word)
    measured = quantity(one.value, one.unit)
    verdicts = f"{one.was or 'no finding'} → {one.now or 'no finding'}"
    return f"{what}: {verdicts} ({measured or 'no value'}{one_line(limit, 120)})"


def changes_document(found: Diff) -> Mapping[str, Any]:
    """Build the JSON document `{"format": 1, "run": …, "nodes": [{"node", "was", "now", "findings"}]}`."""
    nodes = [asdict(change) for change in found.verdicts]
    return {"format": FORMAT, "run": found.after.run_id, "nodes": nodes}


# --- report compare


def comparison_document(found: Diff) -> dict[str, Any]:
    """Build `{"format": 1, "before": {…}, "after": {…}, "changed": […], …}`.

    Changes and noise are fractions."""
    return {
        "format": FORMAT,
        "before": _run(found.before),
        "after": _run(found.after),
        "worse": found.worse,
        "less_known": found.less_known,
        "changed": [asdict(change) for change in found.changed],
        "failing_anew": [asdict(change) for change in found.failing_anew],
        "new": [{"node": name, "verdict": verdict} for name, verdict in found.new],
        "gone": [{"node": name, "verdict": verdict} for name, verdict in found.gone],
        "checks_only_before": list(found.only_before),
        "checks_only_after": list(found.only_after),
        "gpus": [asdict(part) for part in found.parts],
        "shifts": [asdict(shift) for shift in found.shifts],
        "moved": [asdict(one) for one in found.moved],
        "metrics_in_one_run_only": list(found.unpaired),
        "noise": asdict(found.use),
    }


def _run(fleet: FleetHealth) -> dict[str, Any]:
    return {
        "run": fleet.run_id,
        "gpuprov": fleet.gpuprov_version,
        "started": fleet.started,
        "nodes": len(fleet.nodes),
        "interrupted": fleet.interrupted,
    }


def comparison(found: Diff) -> Iterator[str]:
    """Render the comparison in lines for a person, regressions first."""
    for word, fleet in (("from", found.before), ("to  ", found.after)):  # padded: the run names align
        cut = ", interrupted" if fleet.interrupted else ""
        about = f"{moment(fleet.started)}, {many(len(fleet.nodes), 'node')}"
        version = one_line(fleet.gpuprov_version, 40)
        yield f"{word} {one_line(fleet.run_id, 120)} ({about}, gpuprov {version}{cut})"
    # Limits are part of a version, so an equal measurement can be judged differently.
    if found.before.gpuprov_version != found.after.gpuprov_version:
        yield "judged by two versions of gpuprov: a verdict may differ because of its limit only"
    worse = [one for one in found.moved if one.worse]
    yield from _section("verdicts changed", [*verdict_lines(found.changed), *_why(found.changed)])
    yield from _section("failing as before, and now by these too", _why(found.failing_anew))
    yield from _section(
        "worse than before", [*(_shift(one) for one in found.shifts if one.worse), *_moves(worse)]
    )
    yield from _section("nodes that are not in the later run", _verdicts(found.gone))
    yield from _section("new nodes", _verdicts(found.new))
    yield from _section(
        "GPUs that are others", [_part(part) for part in found.parts[:_SHOWN]], len(found.parts)
    )
    alone = {"earlier": found.only_before, "later": found.only_after}
    rows = [
        f"{many(len(checks), 'check')} only in the {word} run: {', '.join(checks)}"
        for word, checks in alone.items()
        if checks
    ]
    yield from _section("not compared", rows)
    yield from _section("measured in one run only", list(found.unpaired[:_SHOWN]), len(found.unpaired))
    better = [one for one in found.moved if not one.worse]
    gained = [_shift(one) for one in found.shifts if not one.worse]
    if better:
        nodes = fold({one.node for one in better}, 200)
        gained.append(f"{many(len(better), 'measurement')} on {nodes}; --json has them")
    yield from _section("better than before", gained)


def _section(title: str, lines: Sequence[str], total: int | None = None) -> Iterator[str]:
    if not lines:
        return
    yield ""
    yield f"{title}:"
    yield from (f"  {line}" for line in lines)
    if total is not None and total > len(lines):
        yield f"  … and {total - len(lines):,} more; --json has all"


def _why(changed: Sequence[NodeChange]) -> list[str]:
    return [f"  {line}" for line in finding_lines(changed, "--json")]


def _verdicts(nodes: Sequence[tuple[str, str]]) -> list[str]:
    by_verdict: dict[str, list[str]] = {}
    for name, verdict in nodes:
        by_verdict.setdefault(verdict, []).append(name)
    return [f"{fold(names)} ({verdict})" for verdict, names in by_verdict.items()]


def _shift(shift: Shift) -> str:
    what = f"{shift.check} {one_line(shift.metric, 60)}"
    where = f"the median of {many(shift.values, 'measurement')} on {many(shift.nodes, 'node')}"
    return f"{one_line(shift.sku, 40) or 'unknown GPUs'}: {what} {shift.change:+.1%} as a whole ({where})"


def _moves(moved: Sequence[Moved]) -> Iterator[str]:
    """Yield a line for each metric of a node, represented by its worst device."""
    groups: dict[tuple[str, str, str], list[Moved]] = {}
    for one in moved:
        groups.setdefault((one.node, one.check, one.metric), []).append(one)
    for first, *rest in list(groups.values())[:_SHOWN]:  # `moved` is sorted by change: the worst is first
        change = f"{quantity(first.was)} → {quantity(first.now, first.unit)}, {first.change:+.1%}"
        noise = f"noise {first.noise:.1%}" + ("; another GPU now" if first.replaced else "")
        more = f"; {many(len(rest), 'more device')}" if rest else ""
        what = " ".join(one_line(word, 60) for word in (first.node, first.check, first.metric, first.device))
        yield f"{what}: {change} ({noise}{more})"
    if len(groups) > _SHOWN:
        yield f"… and {len(groups) - _SHOWN:,} more; --json has all"


def _part(part: Part) -> str:
    where = f"{one_line(part.node, 80)} {part.device} ({one_line(part.slot, 40)})"
    came = f", which was {one_line(part.moved_from, 100)}" if part.moved_from else ""
    return f"{where}: {one_line(part.was, 60) or 'none'} → {one_line(part.now, 60) or 'none'}{came}"


# --- since the last run


@dataclass(frozen=True)
class BadNode:
    """A node that is bad now. `since`: ISO 8601 UTC, "" if unknown; `why`: its findings' messages."""

    node: str
    was: str
    now: str
    since: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class Since:
    """This run compared with the previous one of each node.

    `run`, `at`: the latest of those, and its start (ISO 8601 UTC). `newly`: bad now, but not before; `still`:
    bad in both, the longest first. `groups`: each non-empty change in words with its nodes, the worst first.
    """

    run: str
    at: str
    newly: tuple[BadNode, ...]
    still: tuple[BadNode, ...]
    groups: tuple[tuple[str, tuple[str, ...]], ...]


def since(before: Earlier | None, fleet: FleetHealth) -> Since | None:
    """Compare with earlier runs; return None if there are none."""
    if before is None:
        return None
    changes = diff(before.fleet, fleet, measured=False)  # the stored runs have no measurements
    was = {node.node: node.verdict for node in before.fleet.nodes}
    nodes = {node.node: node for node in fleet.nodes}
    newly = tuple(
        BadNode(one.node, one.was, one.now, fleet.started, _reasons(one, nodes[one.node]))
        for one in changes.changed
        if one.now in BAD and one.was not in BAD
    )
    still = [node for node in fleet.nodes if node.verdict in BAD and was.get(node.node) in BAD]
    # "~" sorts after every date: a node with an unknown start comes last.
    still.sort(key=lambda node: (before.since.get(node.node) or "~", -node.verdict.badness))
    better = [one for one in changes.changed if one.now not in BAD]
    groups = [
        ("newly unhealthy or not measured", [one.node for one in newly]),
        ("still unhealthy or not measured", [node.node for node in still]),
        ("recovered", [one.node for one in better if one.was in BAD]),
        ("otherwise changed", [one.node for one in better if one.was not in BAD]),
        ("not in the runs before", [name for name, _ in changes.new]),
        ("not in this run", [name for name, _ in changes.gone if name in before.names]),
    ]
    return Since(
        run=before.fleet.run_id,
        at=before.fleet.started,
        newly=newly,
        still=tuple(
            BadNode(
                node.node,
                was[node.node].value,
                node.verdict.value,
                before.since.get(node.node, ""),
                _why_bad(node),
            )
            for node in still
        ),
        groups=tuple((words, tuple(names)) for words, names in groups if names),
    )


def since_line(found: Since) -> str:
    """Summarise: `since the run of 2026-05-03 10:00:00 UTC: 1 node newly unhealthy …: gpu-03`."""
    parts = [f"{len(nodes):,} {words}: {fold(nodes, 80)}" for words, nodes in found.groups]
    if found.still and found.still[0].since:
        parts.append(f"the longest since {moment(found.still[0].since)}")
    return f"since the run of {moment(found.at)}: {'; '.join(parts) or 'no verdict changed'}"


def _reasons(change: NodeChange, node: NodeHealth) -> tuple[str, ...]:
    """Return the reasons why a node became bad."""
    bad = [one for one in change.findings if one.now in BAD] or change.findings
    return _first([_said(one) for one in bad] or [silence(node)])  # an unreachable node has no findings


def _why_bad(node: NodeHealth) -> tuple[str, ...]:
    # Only findings of the node's own verdict: a warning explains no failure.
    wrong = [f for check in node.checks for f in check.wrong if f.verdict is node.verdict]
    return _first([_said(finding) for finding in wrong] or [silence(node)])


def _said(one: Finding | FindingChange) -> str:
    # Many messages name their device already, and the line names the node.
    device = "" if one.device == "node" or one.device in one.message else f"{one.device} "
    return f"{one.check}: {device}{one.message}"


def _first(words: Sequence[str]) -> tuple[str, ...]:
    left = len(words) - _WHY
    return (*words[:_WHY], *([f"… and {many(left, 'more finding')}"] if left > 0 else []))
