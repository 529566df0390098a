"""Changes by judging again: nodes with a new verdict, with check, metric and limit (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from provision.health import FleetHealth, NodeHealth
from provision.judge import Finding
from provision.node_names import fold
from provision.wording import many, one_line, quantity

GONE = "not in the report"  # instead of a verdict
_NODES = 20  # told one by one to a person; JSON has all
_FINDINGS = 6


@dataclass(frozen=True)
class FindingChange:
    """One judged metric of one device. `was`, `now`: its verdict; empty when it was not judged. `limit_was`,
    `limit_now`: its limit, as a person reads it."""

    check: str
    metric: str
    device: str
    value: float | int | str | bool | None
    unit: str
    was: str
    now: str
    limit_was: str
    limit_now: str
    message: str


@dataclass(frozen=True)
class NodeChange:
    """A node whose verdict is another one now, and the findings that are."""

    node: str
    was: str
    now: str
    findings: tuple[FindingChange, ...]


def between(before: FleetHealth, after: FleetHealth) -> list[NodeChange]:
    """Exactly the nodes whose verdict differs, in the order of the newer report; gone ones last."""
    old = {node.node: node for node in before.nodes}
    new = {node.node: node for node in after.nodes}
    changed = []
    for name in [*new, *(name for name in old if name not in new)]:
        one, other = old.get(name), new.get(name)
        was, now = one.verdict.value if one else GONE, other.verdict.value if other else GONE
        if was != now:
            changed.append(NodeChange(name, was, now, tuple(findings(one, other))))
    return changed


def _judged(node: NodeHealth | None) -> dict[tuple[str, str, str], Finding]:
    """Check, metric and device → the worst finding."""
    found: dict[tuple[str, str, str], Finding] = {}
    for check in node.checks if node else ():
        for finding in check.findings:
            key = (check.check, finding.metric, finding.device)
            if key not in found or found[key].verdict.badness < finding.verdict.badness:
                found[key] = finding
    return found


def findings(before: NodeHealth | None, after: NodeHealth | None) -> Iterator[FindingChange]:
    """The findings of one node that are other ones now; what passed both times is none."""
    old, new = _judged(before), _judged(after)
    # A limit holds for all devices of a node: what failed now may have been told with another device before.
    limits = {(check, metric): found.limit for (check, metric, _), found in old.items() if found.limit}
    later = {(check, metric): found.limit for (check, metric, _), found in new.items() if found.limit}
    for key in [*new, *(key for key in old if key not in new)]:
        was, now = old.get(key), new.get(key)
        shown = now or was
        old_word, new_word = was.verdict.value if was else "", now.verdict.value if now else ""
        if shown is None or old_word == new_word:
            continue
        if not {"warn", "error", "fail"} & {old_word, new_word}:  # a pass told with another device
            continue
        check, metric, device = key
        yield FindingChange(
            check, metric, device, shown.value, shown.unit, old_word, new_word,
            limit_was=was.limit if was else limits.get((check, metric), ""),
            limit_now=now.limit if now else later.get((check, metric), ""),
            message=shown.message,
        )  # fmt: skip


def summary(changes: Sequence[NodeChange]) -> list[str]:
    """A line for each change of verdict, its nodes folded: `gpu-[03,07]: pass → fail`."""
    moved: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        moved.setdefault((change.was, change.now), []).append(change.node)
    return [f"{fold(names)}: {was} → {now}" for (was, now), names in moved.items()]


def details(changes: Sequence[NodeChange]) -> Iterator[str]:
    """For a person: each node with what changed it."""
    for change in changes[:_NODES]:
        for one in change.findings[:_FINDINGS]:
            yield f"{change.node} {_told(one)}"
        if left := change.findings[_FINDINGS:]:
            yield f"{change.node} … and {many(len(left), 'more finding')}"
    if more := changes[_NODES:]:
        yield f"… and {many(len(more), 'more node')}; --changes --json has all"


def _told(one: FindingChange) -> str:
    limit = ""
    if one.limit_was != one.limit_now:
        limit = f", limit {one.limit_was or 'none'} → {one.limit_now or 'none'}"
    elif one.limit_now:
        limit = f", limit {one.limit_now}"
    what = " ".join(one_line(word, 60) for word in (one.check, one.metric, one.device) if word)
    measured = quantity(one.value, one.unit)
    said = f"{one.was or 'not told'} → {one.now or 'not told'}"
    return f"{what}: {said} ({measured or 'no value'}{one_line(limit, 120)})"


def document(changes: Sequence[NodeChange], run: str) -> Mapping[str, Any]:
    """For a program: `{"format": 1, "run": …, "nodes": [{"node", "was", "now", "findings": […]}]}`."""
    return {"format": 1, "run": run, "nodes": [asdict(change) for change in changes]}
