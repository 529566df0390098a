"""Changes since the last run: newly bad, recovered, and still bad nodes, with the start (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from provision.health import FleetHealth, NodeHealth
from provision.judge import Finding, Verdict
from provision.node_names import fold
from provision.report import changes
from provision.report.causes import silence
from provision.report.changes import FindingChange, NodeChange
from provision.verdict_history import BAD, Earlier
from provision.wording import many, moment

_BAD = tuple(verdict.value for verdict in BAD)


@dataclass(frozen=True)
class Still:
    """A node that was bad before and is. `since`: ISO 8601 UTC, empty when it is not known.
    `why`: what is wrong with it now, in the words of its findings.
    """

    node: str
    was: Verdict
    verdict: Verdict
    since: str
    why: tuple[str, ...]


@dataclass(frozen=True)
class Since:
    """This run against the last one of each node. `run`, `at`: the newest of those, and its start (ISO 8601
    UTC). `newly`: bad now and not before; `recovered`: the reverse; `other`: better or worse, but neither.
    `new`: nodes that no earlier run has; `absent`: those of the newest that this run does not have. `silent`:
    node → why it has no answer, of the newly bad ones without a finding.
    """

    run: str
    at: str
    newly: tuple[NodeChange, ...]
    recovered: tuple[NodeChange, ...]
    other: tuple[NodeChange, ...]
    still: tuple[Still, ...]
    new: tuple[str, ...]
    absent: tuple[str, ...]
    silent: Mapping[str, str]


def since(before: Earlier | None, fleet: FleetHealth) -> Since | None:
    """What changed; None when there is nothing to compare with."""
    if before is None:
        return None
    changed = changes.between(before.fleet, fleet)
    both = [c for c in changed if changes.GONE not in (c.was, c.now)]
    known = {node.node: node.verdict for node in before.fleet.nodes}
    still = [
        Still(node.node, known[node.node], node.verdict, before.since.get(node.node, ""), _why(node))
        for node in fleet.nodes
        if node.verdict in BAD and known.get(node.node) in BAD
    ]
    nodes = {node.node: node for node in fleet.nodes}
    newly = tuple(c for c in both if c.now in _BAD and c.was not in _BAD)
    return Since(
        run=before.fleet.run_id,
        at=before.fleet.started,
        newly=newly,
        recovered=tuple(c for c in both if c.was in _BAD and c.now not in _BAD),
        other=tuple(c for c in both if c.was not in _BAD and c.now not in _BAD),
        still=tuple(sorted(still, key=lambda one: (one.since or "~", -one.verdict.badness))),
        new=tuple(c.node for c in changed if c.was == changes.GONE),
        absent=tuple(c.node for c in changed if c.now == changes.GONE and c.node in before.names),
        silent={c.node: silence(nodes[c.node]) for c in newly if not reasons(c)},
    )


def groups(found: Since) -> list[tuple[str, tuple[str, ...]]]:
    """What there is to tell, in words, with its nodes; the worst first, and nothing that is empty."""
    told = [
        ("newly unhealthy or not measured", _nodes(found.newly)),
        ("still unhealthy or not measured", tuple(one.node for one in found.still)),
        ("recovered", _nodes(found.recovered)),
        ("otherwise changed", _nodes(found.other)),
        ("not in the runs before", found.new),
        ("not in this run", found.absent),
    ]
    return [(words, nodes) for words, nodes in told if nodes]


def line(found: Since) -> str:
    """One line: `since the run of 2026-05-03 10:00:00 UTC: 1 node newly unhealthy …: gpu-03`."""
    told = [f"{len(nodes):,} {words}: {fold(nodes, 80)}" for words, nodes in groups(found)]
    if found.still and found.still[0].since:
        told.append(f"the longest since {moment(found.still[0].since)}")
    return f"since the run of {moment(found.at)}: {'; '.join(told) or 'no verdict changed'}"


def reasons(change: NodeChange, shown: int = 2) -> list[str]:
    """What made a node's verdict another one, in the words of its findings."""
    bad = [one for one in change.findings if change.now not in _BAD or one.now in _BAD] or change.findings
    return _first([_said(one) for one in bad], shown)


def _why(node: NodeHealth) -> tuple[str, ...]:
    wrong = [f for check in node.checks for f in check.wrong if f.verdict is node.verdict]
    return tuple(_first([_said(finding) for finding in wrong] or [silence(node)]))


def _said(one: Finding | FindingChange) -> str:
    device = "" if one.device == "node" or one.device in one.message else f"{one.device} "
    return f"{one.check}: {device}{one.message}"


def _first(words: list[str], shown: int = 2) -> list[str]:
    left = len(words) - shown
    return [*words[:shown], *([f"… and {many(left, 'more finding')}"] if left > 0 else [])]


def _nodes(changed: Iterable[NodeChange]) -> tuple[str, ...]:
    return tuple(change.node for change in changed)
