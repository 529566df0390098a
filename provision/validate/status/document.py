"""The state of a fleet for programs: the document of data/schemas/status.schema.json."""

from __future__ import annotations

import json
from typing import Any

from provision import __version__
from provision.checks.health import plain_fields
from provision.checks.judge import Verdict
from provision.text import iso
from provision.validate.status.health_document import HeldFinding
from provision.validate.status.status import FleetStatus, NodeStatus, Watched
from provision.validate.status.text import next_commands

FORMAT = 1


def document(status: FleetStatus) -> dict[str, Any]:
    """Return the whole state as plain values."""
    oldest = status.oldest
    counts = status.health.counts
    return {
        "format": FORMAT,
        "gpuprov": __version__,
        "inventory": str(status.fleet.source),
        "at": status.at,
        "verdict": status.verdict.value,
        "counts": {verdict.value: counts[verdict] for verdict in Verdict},
        "oldest": oldest and {"node": oldest.node, "age": round(oldest.age or 0.0, 1)},
        "nodes": [_node(one, status.watched.get(one.node)) for one in status.nodes.values()],
        "next": [{"command": command, "why": why} for command, why in next_commands(status)],
    }


def line(status: FleetStatus) -> str:
    """Return the document on one line, in pure ASCII so that no text of a node can make it invalid."""
    return json.dumps(document(status), default=plain_fields, allow_nan=False) + "\n"


def _node(one: NodeStatus, watched: Watched | None) -> dict[str, Any]:
    result = one.document
    return {
        "node": one.node,
        "state": one.state,
        "verdict": one.verdict.value,
        "trouble": one.trouble,
        "age": None if one.age is None else round(one.age, 1),
        "written": None if one.written is None else iso(one.written),
        "result": None
        if result is None
        else {
            "gpuprov": result.gpuprov,
            "verdict": result.verdict.value,
            "measured": result.measured.value,
            "error": result.error,
            "interval": result.interval,
            "seconds": result.seconds,
            "checks": result.checks,
            "facts": dict(result.facts),
            "gpus": [plain_fields(gpu) for gpu in result.gpus],
        },
        "findings": [_finding(held) for held in one.held],
        "slurm": one.slurm and plain_fields(one.slurm),
        "watch": watched and plain_fields(watched),
    }


def _finding(held: HeldFinding) -> dict[str, Any]:
    fields = {name: value for name, value in plain_fields(held).items() if name != "finding"}
    return {**plain_fields(held.finding), **fields}
