"""report.json: the whole report for programs; its schema is data/schemas/report.schema.json."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from provision.health import FORMAT, FleetHealth, NodeHealth
from provision.later import Later
from provision.stored_health import StoredNodes


def render(fleet: FleetHealth) -> Iterator[str]:
    """The document of `health.to_json` in pieces, a node each: 10,000 nodes never lie in memory twice.

    Pure ASCII, so that no text of a node (a lone surrogate) makes it invalid.
    """
    yield from document(fleet, _nodes(fleet))


def document(fleet: FleetHealth, nodes: Iterable[str]) -> Iterator[str]:
    """The document of these nodes, each as `node_text` wrote it; of `fleet` everything but its own nodes."""
    head = {"format": FORMAT, **{name: value for name, value in vars(fleet).items() if name != "nodes"}}
    yield _encode(head)[:-1] + ', "nodes": ['
    for number, text in enumerate(nodes):
        yield (",\n" if number else "\n") + text
    yield "\n]}\n"


def node_text(node: NodeHealth) -> str:
    """A node as an object, in one line of ASCII."""
    return _encode(node)


def _nodes(fleet: FleetHealth) -> Iterator[str]:
    """Each node as an object; those of a stored report as they were written."""
    if not isinstance(fleet.nodes, StoredNodes):
        yield from map(_encode, fleet.nodes)
        return
    for node, text in zip(fleet.nodes, fleet.nodes.texts(), strict=True):
        yield text if text.isascii() and "NaN" not in text and "Infinity" not in text else _encode(node)


def _encode(value: Any) -> str:
    try:
        return json.dumps(value, default=_fields, allow_nan=False)
    except ValueError:  # NaN and Infinity are not JSON: a reader in another language would refuse the whole
        return json.dumps(_finite(json.loads(json.dumps(value, default=_fields))), allow_nan=False)


def _fields(value: Any) -> Any:
    """What the encoder does not know: our classes as their fields, anything foreign in a fact as text."""
    if dataclasses.is_dataclass(value):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, Later):
        return value.all()
    return dict(value) if isinstance(value, Mapping) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
