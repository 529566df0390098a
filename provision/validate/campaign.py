"""Judge the stored raw output of checks into the health of the fleet.

Checks keep the order of their table: quick before long, heat last (bandwidth measured right after a burn is
low because the GPUs are hot). The run folder holds everything a judgement needs, so `rejudge` reproduces the
health, or judges it under other thresholds, without touching a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from provision import __version__
from provision.checks import health
from provision.checks.fleet import fleet_judge, nvlink_domains
from provision.checks.fleet.majority import Voter
from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.host import versions
from provision.checks.judging import offenders, registry
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.node_judge import judge_check, judge_node
from provision.checks.judging.registry import CHECKS
from provision.errors import RunFolderError
from provision.runs import fleet_pairs, node_history
from provision.runs.node_facts import read_node_facts
from provision.runs.rows_file import RowsFile
from provision.runs.store import RunFolder, read_raw
from provision.validate import parallel_map


def fleet_health(
    folder: RunFolder,
    nodes: Iterable[NodeHealth],
    seen: Mapping[str, NodeFacts],
    *,
    interrupted: bool = False,
) -> FleetHealth:
    """Return the report of nodes judged alone and against each other; a large fleet's rows go to a file.

    Raises RunFolderError, OSError."""
    many = len(seen) > FEW
    each = (alone(node, seen.get(node.node), many) for node in nodes)
    return judged(folder, _head_of_report(folder, interrupted), each, seen)


def _head_of_report(folder: RunFolder, interrupted: bool) -> FleetHealth:
    meta = folder.meta()
    return FleetHealth(
        run_id=folder.path.name,
        gpuprov_version=str(meta.get("gpuprov", __version__)),
        inventory=str(meta.get("inventory", "")),
        started=str(meta.get("started") or ""),
        finished=str(meta.get("measured_until") or meta.get("finished") or meta.get("started") or ""),
        asked=tuple(meta.get("asked", ())),
        nodes=(),
        interrupted=interrupted,
    )


def rejudge(run_folder: RunFolder | Path, override: Path | None = None) -> FleetHealth:
    """Judge a stored run again, under the shipped thresholds or a user's file, without touching a node."""
    folder = run_folder if isinstance(run_folder, RunFolder) else RunFolder.open(run_folder)
    meta = folder.meta()
    checks = [str(name) for name in meta.get("asked", ())]
    if meta.get("verb") != "validate" or not checks:
        raise RunFolderError(f"{folder.path} is not a validate run", "give the folder of a gpuprov validate")
    # Leaving the check out would drop its findings silently.
    if unknown := [name for name in registry.of_nodes(checks) if name not in CHECKS]:
        raise RunFolderError(
            f"{folder.path} ran the check {unknown[0]!r}, which is not installed here",
            "install the distribution it came from, then judge again",
        )
    known = read_node_facts(folder)
    many = len(known) > FEW

    def judged_alone(name: str) -> Alone:
        return alone(_judged_again(folder, known[name], checks, override), known[name], many)

    nodes = parallel_map.in_order(judged_alone, known, parallel_map.processes(len(known)))
    return judged(folder, _head_of_report(folder, bool(meta.get("interrupted"))), nodes, known)


def _judged_again(
    folder: RunFolder, node: NodeFacts, asked: Sequence[str], override: Path | None
) -> NodeHealth:
    """Judge one node on its own, from the raw output stored in the run."""
    limits = node.limits(override)
    raws = [
        raw for name in registry.of_nodes(asked) if (raw := read_raw(folder, node.node, name)) is not None
    ]
    results = {raw.check: judge_check(node, raw, limits) for raw in raws}
    return judge_node(node, results, asked, lost=any(raw.unreachable for raw in raws))


# --- judging a fleet: each node on its own, then against other nodes, earlier runs and its pairs


FEW = 100  # up to this many nodes, all rows are held as objects (0.2 MB a node); beyond it, in a file


@dataclass(frozen=True, slots=True)
class Alone:
    """A node judged on its own, with the data that the fleet-wide comparison needs."""

    node: NodeHealth
    numbers: tuple[fleet_judge.Measured, ...]
    voter: Voter | None
    tray: nvlink_domains.Tray | None


def alone(node: NodeHealth, one: NodeFacts | None, many: bool) -> Alone:
    """Keep the parts of a judged node that the fleet compares. `many`: the fleet has more than FEW nodes."""
    check_node = one.check_node if one else None
    return Alone(
        health.compressed(node) if many else node,
        tuple(fleet_judge.numbers(node)),
        versions.voter_of(node, check_node),
        nvlink_domains.tray_of(node, check_node),
    )


def judged(
    folder: RunFolder, head: FleetHealth, nodes: Iterable[Alone], seen: Mapping[str, NodeFacts]
) -> FleetHealth:
    """Build the report from `head`, which has all but the nodes, and one pass over `nodes`.

    Raises RunFolderError, OSError."""
    rows = RowsFile(folder.path) if len(seen) > FEW else None
    peers, of_kinds = fleet_judge.Peers(), versions.Versions()
    kept: list[NodeHealth] = []
    trays = {}
    for one in nodes:
        kept.append(rows.kept(one.node) if rows else one.node)
        if one.tray is not None:
            trays[one.node.node] = one.tray
        peers.add(one.numbers)
        of_kinds.add(one.node.node, one.voter)
    by_peers = peers.found()
    by_versions, ambiguous = of_kinds.found()
    by_racks = nvlink_domains.judge(trays)
    not_compared = (*peers.not_compared(), *ambiguous)
    del peers, of_kinds  # frees as much memory as all the kept nodes take
    past, between = node_history.recalled(folder), fleet_pairs.between(folder, seen)
    for number, node in enumerate(kept):
        judged_node = node
        if number in by_peers:
            judged_node = fleet_judge.extended(judged_node, by_peers[number])
        if node.node in by_racks:
            judged_node = fleet_judge.extended(judged_node, by_racks[node.node])
        if node.node in by_versions:
            judged_node = versions.extended(judged_node, by_versions[node.node])
        if any(run.bad for run in past.get(node.node, ())):  # a first fault is never escalated
            (judged_node,) = offenders.escalate([judged_node], past)
        judged_node = between.extended(judged_node)
        kept[number] = rows.kept(judged_node) if rows else judged_node
    return replace(
        head, nodes=tuple(kept), not_compared=not_compared, fabric=between.fabric, between=between.told
    )
