"""A comparison of two runs as text and as JSON (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from provision.health import FleetHealth
from provision.node_names import fold
from provision.report import changes
from provision.report.changes import NodeChange
from provision.report.compare import Comparison, Moved, Part, Rules, Shift
from provision.wording import many, moment, one_line, quantity

FORMAT = 1  # of the JSON document
_SHOWN = 20  # nodes, parts and measurements told one by one to a person; JSON has all


def document(found: Comparison, use: Rules) -> dict[str, Any]:
    """For a program: `{"format": 1, "before": {…}, "after": {…}, "changed": […], "moved": […], …}`; changes
    and noise as fractions."""
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
        "noise": asdict(use),
    }


def _run(fleet: FleetHealth) -> dict[str, Any]:
    return {
        "run": fleet.run_id,
        "gpuprov": fleet.gpuprov_version,
        "started": fleet.started,
        "nodes": len(fleet.nodes),
        "interrupted": fleet.interrupted,
    }


def text(found: Comparison, use: Rules) -> Iterator[str]:
    """For a person, in lines: what is worse first."""
    for word, fleet in (("from", found.before), ("to  ", found.after)):
        cut = ", interrupted" if fleet.interrupted else ""
        about = f"{moment(fleet.started)}, {many(len(fleet.nodes), 'node')}"
        version = one_line(fleet.gpuprov_version, 40)
        yield f"{word} {one_line(fleet.run_id, 120)} ({about}, gpuprov {version}{cut})"
    if found.before.gpuprov_version != found.after.gpuprov_version:
        yield "judged by two versions of gpuprov: a verdict may differ because of its limit only"
    worse = [one for one in found.moved if one.worse]
    yield from _section("verdicts changed", [*changes.summary(found.changed), *_why(found.changed)])
    yield from _section("failing as before, and now by these too", list(_why(found.failing_anew)))
    yield from _section(
        "worse than before", [*(_shift(one) for one in found.shifts if one.worse), *_moves(worse)]
    )
    yield from _section("nodes that are not in the later run", _verdicts(found.gone))
    yield from _section("new nodes", _verdicts(found.new))
    yield from _section(
        "GPUs that are others", [_part(part) for part in found.parts[:_SHOWN]], len(found.parts)
    )
    asked = [f"only in the earlier run: {name}" for name in found.only_before]
    asked += [f"only in the later run: {name}" for name in found.only_after]
    yield from _section("checks requested in one run only", asked)
    yield from _section("measured in one run only", list(found.unpaired[:_SHOWN]), len(found.unpaired))
    better = [one for one in found.moved if not one.worse]
    gained = [_shift(one) for one in found.shifts if not one.worse]
    if better:
        nodes = fold({one.node for one in better}, 200)
        gained.append(f"{many(len(better), 'measurement')} on {nodes}; --json has them")
    yield from _section("better than before", gained)
    yield ""
    yield (
        f"moved: by more than the SKU's devices differ in their changes, and than {use.minimum:.1%} "
        f"({use.alone:.0%} where fewer than {use.smallest_group} were measured twice); {use.source}"
    )


def _section(title: str, lines: Sequence[str], total: int | None = None) -> Iterator[str]:
    if not lines:
        return
    yield ""
    yield f"{title}:"
    yield from (f"  {line}" for line in lines)
    if total is not None and total > len(lines):
        yield f"  … and {total - len(lines):,} more; --json has all"


def _why(changed: Sequence[NodeChange]) -> Iterator[str]:
    yield from (f"  {line}" for line in changes.details(changed[:_SHOWN]))
    if more := changed[_SHOWN:]:
        yield f"  … and {many(len(more), 'more node')}; --json has all"


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
    """A line for each metric of a node: its worst device stands for the others."""
    groups: dict[tuple[str, str, str], list[Moved]] = {}
    for one in moved:
        groups.setdefault((one.node, one.check, one.metric), []).append(one)
    for first, *rest in list(groups.values())[:_SHOWN]:
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
