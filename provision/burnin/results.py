"""Results of a burn-in, read from its run folder, per node and for the fleet; contacts no node."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from provision.burnin import fleet
from provision.burnin.campaign import Campaign
from provision.burnin.judge import Burned, judge
from provision.burnin.own_findings import ID
from provision.burnin.spool import Spool
from provision.burnin.timeline import Clock, Timeline, timeline
from provision.burnin.watch import Watch, compare_peers, watch
from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.registry import PAIRS
from provision.runs import fingerprint, node_history
from provision.runs.fingerprint import Fingerprint
from provision.runs.node_facts import read_node_facts
from provision.runs.store import RunFolder
from provision.validate import campaign as checks_campaign

_UNKNOWN = "it was not observed"


@dataclass(frozen=True)
class NodeResult:
    """One node: its facts, order, events, samples and verdict."""

    seen: NodeFacts
    order: Mapping[str, Any]
    timeline: Timeline
    watch: Watch | None
    burned: Burned
    known: Fingerprint | None
    skew: float = 0.0


@dataclass(frozen=True)
class Results:
    """The whole burn-in. `over`: no node will produce anything more."""

    health: FleetHealth
    nodes: Mapping[str, NodeResult]

    @property
    def over(self) -> bool:
        return all(node.burned.over for node in self.nodes.values())


def results(run: Campaign, override: Path | None = None) -> Results:
    """Judge the files here. A node without results is `error`."""
    folder, meta = run.folder, run.folder.meta()
    seen, orders, contacts = read_node_facts(folder), _orders(folder), run.contacts()
    refused = {str(r.get("node")): str(r.get("refused") or "") for r in folder.read("begun")}
    by_node: dict[str, NodeResult] = {}
    for name in [str(name) for name in meta.get("nodes", ())]:
        spool = Spool(folder, name)
        order = orders.get(name) or spool.order()
        silence = run.silence.get(name, "") or refused.get(name, "")
        over = run.over.get(name, False) or bool(refused.get(name))
        node = seen.get(name) or _seen_by_order(name, order, silence)
        if name in seen and node.error:  # it never took part
            silence, over = node.trouble, True
        events = spool.events()
        clock = Clock(contacts.get(name, ()), events)
        happened = timeline(events, clock)
        # A stopped burn-in only pauses: its nodes can be resumed.
        over = over or (happened.finished is not None and happened.ended != "stopped")
        sampled = _watched(spool, order, happened, clock)
        burned = judge(
            node, order, happened, sampled, clock, spool.raw,
            over=over, silence=silence, damaged=spool.damaged, override=override,
        )  # fmt: skip
        known = _fingerprint(order)
        by_node[name] = NodeResult(node, order, happened, sampled, burned, known, clock.skew)
    nodes, fabric, notes = _between(run, by_node)
    ids = dict.fromkeys(check.check for node in nodes for check in node.checks if check.check not in PAIRS)
    ends = [one.timeline.last for one in by_node.values() if one.timeline.last]
    until = datetime.datetime.fromtimestamp(max(ends), datetime.UTC).isoformat() if ends else None
    # fleet_health reads these, and the earlier runs, from the run folder.
    folder.note(asked=list(ids) or [ID], measured_until=until)
    node_history.recall(folder, [node.node for node in nodes])
    health = checks_campaign.fleet_health(folder, nodes, {name: one.seen for name, one in by_node.items()})
    between = dict.fromkeys(check.check for node in nodes for check in node.checks if check.check in PAIRS)
    health = replace(
        health,
        asked=(*health.asked, *between),
        fabric=(*health.fabric, *fabric),
        not_compared=(*health.not_compared, *notes),
    )
    # fleet_health has added the findings by comparison of nodes, so each node gets its health from there.
    by_name = {node.node: node for node in health.nodes}
    judged = {
        name: replace(one, burned=replace(one.burned, health=by_name[name])) for name, one in by_node.items()
    }
    return Results(health, judged)


def _between(
    run: Campaign, found: Mapping[str, NodeResult]
) -> tuple[list[NodeHealth], list[Finding], list[str]]:
    """Return the nodes with the measurements between them."""
    nodes = [one.burned.health for one in found.values()]
    segments = segments_between(run)
    if not segments:
        return nodes, [], []
    passed = {
        name: [stretch.name for stretch in one.timeline.segments if stretch.end]
        for name, one in found.items()
    }
    ordered = {
        name: {str(row.get("name")) for row in one.order.get("segments") or () if isinstance(row, Mapping)}
        for name, one in found.items()
    }
    # The order of a node alone in its batch has no segments between nodes; an empty order proves nothing.
    alone = {name: segments.keys() - names for name, names in ordered.items() if names}
    return fleet.judge(run, nodes, {name: one.seen for name, one in found.items()}, segments, passed, alone)


def segments_between(run: Campaign) -> dict[str, fleet.Between]:
    """Return this burn-in's segments between nodes."""
    segments: dict[str, fleet.Between] = {}
    given = _orders(run.folder)
    for name in map(str, run.folder.meta().get("nodes", ())):
        about = (given.get(name) or Spool(run.folder, name).order()).get("about")
        segments |= fleet.segments(about.get("profile") if isinstance(about, Mapping) else None)
    return {
        name: replace(one, checks=tuple(check for check in one.checks if check in PAIRS))
        for name, one in segments.items()
        if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name)  # may be from a node, and names a folder
    }


def looked(run: Campaign) -> dict[str, NodeFacts]:
    """Return the facts of every node from before its burn-in."""
    seen, orders = read_node_facts(run.folder), _orders(run.folder)
    return {
        name: seen.get(name) or _seen_by_order(name, orders.get(name) or Spool(run.folder, name).order(), "")
        for name in map(str, run.folder.meta().get("nodes", ()))
    }


def _orders(folder: RunFolder) -> dict[str, Mapping[str, Any]]:
    """Return the orders that this machine sent."""
    return {str(record["node"]): record["order"] for record in folder.read("orders") if "node" in record}


def _seen_by_order(name: str, order: Mapping[str, Any], silence: str) -> NodeFacts:
    """Return the node as the starting controller observed it, from the order stored on the node."""
    about = order.get("about")
    try:
        # The order may have been read back from the node, so its types are checked before they are used.
        node = NodeFacts(**{**about["seen"], "node": name})  # type: ignore[index]
        fits = isinstance(node.check_node.gpu_count, int) and isinstance(node.check_node.sku, str | None)
        kinds = (node.facts, node.gpuprov_node, node.variables, node.problems)
        if fits and all(isinstance(kind, Mapping) for kind in kinds) and not node.error:
            return node
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    return NodeFacts(name, {}, {}, {}, silence or _UNKNOWN)


def _fingerprint(order: Mapping[str, Any]) -> Fingerprint | None:
    about = order.get("about")
    try:
        return fingerprint.from_record(about["fingerprint"])  # type: ignore[index]
    except (KeyError, TypeError, ValueError):
        return None


def _watched(spool: Spool, order: Mapping[str, Any], happened: Timeline, clock: Clock) -> Watch | None:
    if happened.began is None or not spool.boots():
        return None
    interval = order.get("sample_seconds")
    every = float(interval) if isinstance(interval, int | float) and 0 < interval <= 3600 else 5.0  # seconds
    boots = sorted(spool.boots(), key=lambda boot: clock.at(boot, 0.0, 0.0))  # watch() needs rows in order
    rows = (row for boot in boots for row in spool.rows(boot))
    end = happened.finished or happened.last or happened.began
    watched = watch(rows, clock.at, happened.began, end, every)
    compare_peers(watched)
    return watched


def publish(run: Campaign, found: Results) -> None:
    """Publish final results as the newest of their nodes; they expire when their basis changes."""
    moment = found.health.finished or found.health.started
    verdicts: dict[tuple[str, str], str] = {}
    for name, one in found.nodes.items():
        if not one.burned.over or one.known is None or one.timeline.began is None:
            continue
        node_history.note_look(run.folder, name, one.known)
        for check in one.burned.health.checks:
            if check.check in PAIRS and check.verdict is Verdict.SKIP:
                continue  # an unattended segment proves nothing new about a node
            if check.verdict is not Verdict.ERROR or check.check == ID:
                node_history.note_result(run.folder, name, check.check, one.known, moment)
                verdicts[name, check.check] = check.verdict.value
        # The burn-in as a whole gets the verdict of its worst part.
        verdicts[name, ID] = one.burned.health.verdict.value
    node_history.record(run.folder, verdicts, found.health if found.over else None)
