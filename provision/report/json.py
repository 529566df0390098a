"""report.json: the whole report for programs; its schema is data/schemas/report.schema.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from provision.checks.health import FORMAT, FleetHealth, plain_fields
from provision.runs.stored_health import StoredNodes


def render(fleet: FleetHealth) -> Iterator[str]:
    """Yield the document of `health.to_json` by node, so that 10,000 nodes are never in memory twice.

    Pure ASCII, so that no text of a node (a lone surrogate) makes it invalid.
    """
    head = {"format": FORMAT, **{name: value for name, value in vars(fleet).items() if name != "nodes"}}
    yield _encode(head)[:-1] + ', "nodes": ['
    nodes = fleet.nodes.records() if isinstance(fleet.nodes, StoredNodes) else fleet.nodes
    for number, node in enumerate(nodes):
        yield (",\n" if number else "\n") + _encode(node)
    yield "\n]}\n"


def _encode(value: Any) -> str:
    try:
        return json.dumps(value, default=plain_fields, allow_nan=False)
    except ValueError:  # NaN and Infinity are not JSON; other languages would reject the whole document
        return json.dumps(_finite(json.loads(json.dumps(value, default=plain_fields))), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
