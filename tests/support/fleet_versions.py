"""Comparison of versions over nodes held in memory, as `validate` makes it node by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from provision.checks.check import CheckNode
from provision.checks.health import NodeHealth
from provision.checks.host import versions


def judge_fleet(
    nodes: Iterable[NodeHealth], known: Mapping[str, CheckNode]
) -> tuple[tuple[NodeHealth, ...], tuple[str, ...]]:
    """Return the nodes in the given order, with version findings added to their check `versions`.
    Also return a line for each fact in which no value has a majority."""
    nodes, fleet = tuple(nodes), versions.Versions()
    for node in nodes:
        fleet.add(node.node, versions.voter_of(node, known.get(node.node)))
    findings, ambiguous = fleet.found()
    judged = tuple(
        versions.extended(node, findings[node.node]) if node.node in findings else node for node in nodes
    )
    return judged, ambiguous
