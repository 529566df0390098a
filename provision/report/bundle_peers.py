"""A node's measurements beside those of its peers: its own other devices, and the same device on other nodes
(pure).

Of other nodes only medians and counts are kept: a bundle names no machine but its own.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Finding, number
from provision.text import many, quantity


@dataclass(frozen=True)
class Row:
    """One measured number. `here`: the median of the node's `here_count` other devices of the kind; `fleet`:
    the median of the same device on `fleet_nodes` other nodes of the SKU; None where there is none."""

    check: str
    metric: str
    device: str
    value: float
    unit: str
    here: float | None
    here_count: int
    fleet: float | None
    fleet_nodes: int


_Key = tuple[str, str, str, str]  # check, metric, unit, device


def rows(fleet: FleetHealth, node: NodeHealth) -> list[Row]:
    """Every number the node's checks measured, in their order."""
    sku = node.facts.get("sku")
    places: dict[_Key, list[float]] = defaultdict(list)
    own = dict(_numbers(node))
    for other in fleet.nodes:
        if sku and other.node != node.node and other.facts.get("sku") == sku:
            for key, value in _numbers(other):
                if key in own:
                    places[key].append(value)
    kinds: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for key, value in own.items():
        kinds[*key[:3], _kind(key[3])].append(value)
    found = []
    for key, value in own.items():
        check, metric, unit, device = key
        alike = list(kinds[check, metric, unit, _kind(device)])
        alike.remove(value)
        there = places.get(key, [])
        found.append(
            Row(check, metric, device, value, unit, _median(alike), len(alike), _median(there), len(there))
        )
    return found


def _numbers(node: NodeHealth) -> Iterator[tuple[_Key, float]]:
    for check in node.checks:
        for m in check.measurements:
            value = number(m.value)
            if value is not None and math.isfinite(value):
                yield (check.check, m.metric, m.unit, m.device), value


def _kind(device: str) -> str:
    """Devices are compared with those of their kind: `gpu3` with GPUs, `gpu0->gpu3` with pairs."""
    return "".join(letter for letter in device if not letter.isdigit())


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def beside(finding: Finding, found: Sequence[Row]) -> list[str]:
    """What a finding's number is beside its peers', a line for each device it names."""
    pair = (
        finding.device.split("-") if finding.device.count("-") == 1 and "->" not in finding.device else None
    )
    devices = {finding.device} if not pair else {"->".join(pair), "->".join(reversed(pair))}
    return [
        f"{row.device}: {quantity(row.value, row.unit)}; {said}"
        for row in found
        if (row.check, row.metric) == (finding.check, finding.metric) and row.device in devices
        if (said := told(row))
    ]


def told(row: Row) -> str:
    """`median of the 7 others here 51900 Gflop/s, of the same place on 12 nodes 51880 Gflop/s`."""
    said = []
    if row.here is not None:
        said.append(
            f"median of the {many(row.here_count, 'other')} on the node {quantity(row.here, row.unit)}"
        )
    if row.fleet is not None:
        nodes = many(row.fleet_nodes, "other node")
        said.append(f"median of the same place on {nodes} of the SKU {quantity(row.fleet, row.unit)}")
    return ", ".join(said)
