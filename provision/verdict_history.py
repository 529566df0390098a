"""The verdict of each node in each run: a small file in each run folder.

A report of ten thousand nodes takes a while to read; what the next run wants to know of it is kept apart.
Whatever is damaged, foreign or newer in a history is passed over: it costs a comparison, never a report.
One such file nearly always answers, with the findings; the index of all runs (run_index.py) has none, and
costs more to open.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from provision import health, offenders
from provision.errors import GpuprovError
from provision.health import FleetHealth, NodeHealth
from provision.judge import Verdict
from provision.store import RunFolder

FILE = "verdicts.json"
FORMAT = 1
DAMAGED = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # what a strange file raises
BAD = (Verdict.FAIL, Verdict.ERROR)  # not knowing is not healthy
_LOOKED = 100  # earlier runs whose run.json is read
_READ = 5  # of these, how many are read: a run of some nodes hides the others' last verdict


@dataclass(frozen=True)
class Earlier:
    """What earlier runs of the same checks on the same inventory said.

    `fleet`: each node as the last of them judged it, with the findings that were no pass only; `run_id` and
    `started` are those of the newest. `names`: the nodes of the newest. `since`: bad node → the start
    (ISO 8601 UTC) of the first of the runs that found it bad without a break.
    """

    fleet: FleetHealth
    names: frozenset[str]
    since: Mapping[str, str]


def keep(folder: RunFolder, fleet: FleetHealth) -> None:
    """Note the verdicts of a run that came to its end, beside its report."""
    if fleet.interrupted:
        return
    before = earlier(folder, fleet)
    known = before.since if before else {}
    since = {node.node: known.get(node.node, fleet.started) for node in fleet.nodes if node.verdict in BAD}
    report = health.to_json(replace(fleet, nodes=tuple(_short(node) for node in fleet.nodes)))
    folder.write_json(FILE, {"format": FORMAT, "since": since, "report": report})


def _short(node: NodeHealth) -> NodeHealth:
    """A node with what was wrong with it, and nothing else."""
    checks = []
    for check in node.checks:
        wrong = [replace(f, evidence=()) for f in check.wrong]
        if wrong:
            checks.append(replace(check, findings=tuple(wrong), measurements=()))
    gpus = node.gpus if offenders.bad(node) else ()  # which device it was, in the runs after
    return replace(node, checks=tuple(checks), gpus=gpus, facts={})


def earlier(folder: RunFolder, fleet: FleetHealth) -> Earlier | None:
    """What the runs before this one said of its nodes; None when there is none to compare with."""
    missing = {node.node for node in fleet.nodes}
    newest: Earlier | None = None
    nodes: dict[str, NodeHealth] = {}
    since: dict[str, str] = {}
    for _, found in zip(range(_READ), _before(folder, fleet), strict=False):
        newest = newest or found
        for node in found.fleet.nodes:
            if node.node not in nodes and (node.node in missing or found is newest):
                nodes[node.node] = node
                if node.node in found.since:
                    since[node.node] = found.since[node.node]
        missing -= found.names
        if not missing:
            break
    if newest is None:
        return None
    return Earlier(replace(newest.fleet, nodes=tuple(nodes.values())), newest.names, since)


def _before(folder: RunFolder, fleet: FleetHealth) -> Iterator[Earlier]:
    """Each earlier run of the same checks on the same inventory, newest first."""
    home, verb = folder.path.parent, folder.path.name.partition("Z-")[2]
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted((path.name for path in home.glob(f"*Z-{verb}")), reverse=True)
    for name in [name for name in names if name < folder.path.name][:_LOOKED]:
        with contextlib.suppress(GpuprovError, OSError, *DAMAGED):
            run = RunFolder(home / name)
            meta = run.meta()
            if meta.get("inventory") == fleet.inventory and set(meta.get("asked", ())) == set(fleet.asked):
                yield _read(json.loads((run.path / FILE).read_text(encoding="utf-8")))


def _read(document: Mapping[str, Any]) -> Earlier:
    if document["format"] != FORMAT:
        raise ValueError("written by another version")
    fleet = health.from_json(document["report"])
    since = {str(node): str(moment) for node, moment in document["since"].items()}
    return Earlier(fleet, frozenset(node.node for node in fleet.nodes), since)
