"""Judging of a fleet: each node by itself, then by the other nodes, by earlier runs and by its pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from provision.checks import health, offenders
from provision.checks.fleet import fleet_judge, fleet_versions
from provision.checks.fleet.majority import Voter
from provision.checks.health import FleetHealth, NodeHealth
from provision.runs import fleet_pairs, node_history
from provision.runs.node_facts import NodeFacts
from provision.runs.store import RunFolder

FEW = 100  # nodes of which all rows are held as objects, about 0.2 MB each; of more they are compressed


@dataclass(frozen=True, slots=True)
class Alone:
    """A node that was judged by itself, and what of it the fleet compares."""

    node: NodeHealth
    numbers: tuple[fleet_judge.Measured, ...]
    voter: Voter | None


def alone(node: NodeHealth, one: NodeFacts | None, many: bool) -> Alone:
    """What has to be kept of a node that was judged by itself. `many`: it is one of more than FEW."""
    numbers = tuple(fleet_judge.numbers(node))
    return Alone(
        health.compressed(node) if many else node,
        numbers,
        fleet_versions.voter_of(node, one.check_node if one else None),
    )


def judged(
    folder: RunFolder, head: FleetHealth, nodes: Iterable[Alone], seen: Mapping[str, NodeFacts]
) -> FleetHealth:
    """The report of these nodes, in the order given, of which `head` says all but the nodes. `nodes` is gone
    through once. Raises RunFolderError."""
    peers, versions = fleet_judge.Peers(), fleet_versions.Versions()
    kept: list[NodeHealth] = []
    for one in nodes:
        kept.append(one.node)
        peers.add(one.numbers)
        versions.add(one.node.node, one.voter)
    by_peers = peers.found()
    by_versions, ambiguous = versions.found()
    not_compared = (*peers.not_compared(), *ambiguous)
    del peers, versions  # what they were compared by is as much as all that is kept of them
    past, between = node_history.recalled(folder), fleet_pairs.between(folder, seen)
    for number, node in enumerate(kept):
        told = node
        if number in by_peers:
            told = fleet_judge.extended(told, by_peers[number])
        if node.node in by_versions:
            told = fleet_versions.extended(told, by_versions[node.node])
        if any(run.bad for run in past.get(node.node, ())):  # what is bad once is not raised
            (told,) = offenders.escalate([told], past)
        told = between.extended(told)
        kept[number] = health.compressed(told) if len(kept) > FEW else told
    return replace(
        head, nodes=tuple(kept), not_compared=not_compared, fabric=between.fabric, between=between.told
    )
