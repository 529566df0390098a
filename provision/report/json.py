"""report.json: the whole report for programs; its form is data/schemas/report.schema.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from provision.health import FleetHealth, to_json


def render(fleet: FleetHealth) -> Iterator[str]:
    """The document in pieces; pure ASCII, so that no text of a node (a lone surrogate) makes it invalid."""
    document = to_json(fleet)
    # One piece per node: encoding 10,000 nodes in one string would cost their size in memory twice over.
    nodes = document.pop("nodes")
    head = _encode(document)
    yield head[:-1] + ', "nodes": ['
    for number, node in enumerate(nodes):
        yield (",\n" if number else "\n") + _encode(node)
    yield "\n]}\n"


def _encode(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (
        ValueError
    ):  # NaN and Infinity are not JSON: a reader in another language would refuse the whole report
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
