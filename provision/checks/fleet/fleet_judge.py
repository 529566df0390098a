"""Comparison of every node's measurements with the other nodes of its SKU (pure).

This finds faults in metrics without a limit, and faults that a node's own GPUs cannot show: a node with all
of its GPUs slow. It only adds findings: a group too small to compare is reported, and nothing passes because
of it. Groups ignore the operating system, since the hardware does not depend on it.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from provision import yamlfile
from provision.checks.health import CheckResult, NodeHealth
from provision.checks.judge import (
    ACTIONS,
    Finding,
    Measurement,
    Typical,
    Verdict,
    finding_on,
    number,
    typical,
    worst,
)
from provision.checks.suspects import Cell, explain, reconciled
from provision.errors import GpuprovError
from provision.paths import DATA
from provision.text import many

_SOURCE = "the median of this run's nodes of the same SKU"
# A node counts as slow when this share of its GPUs is slow; two good GPUs of eight do not clear it.
_WHOLE = 0.75


@dataclass(frozen=True, slots=True)
class Measured:
    """One value of a node, compared with the values of the same `sku`, `metric` (table name) and `place`."""

    sku: str
    metric: str
    place: str
    device: str
    value: float
    unit: str


class _Values:
    """The values of one group in columns, since a fleet has millions; device and unit are interned."""

    __slots__ = ("_numbers", "_texts", "nodes", "values")

    def __init__(self) -> None:
        self.nodes, self.values = array("i"), array("d")
        self._texts: dict[tuple[str, str], int] = {}
        self._numbers = array("i")

    def add(self, node: int, one: Measured) -> None:
        self.nodes.append(node)
        self.values.append(one.value)
        self._numbers.append(self._texts.setdefault((one.device, one.unit), len(self._texts)))

    def __iter__(self) -> Iterator[tuple[int, str, float, str]]:
        """Yield node number, device, value and unit."""
        texts = list(self._texts)
        for node, which, value in zip(self.nodes, self._numbers, self.values, strict=True):
            device, unit = texts[which]
            yield node, device, value, unit

    @property
    def unit(self) -> str:
        """Unit of the first value."""
        return next(iter(self._texts))[1]

    @property
    def count(self) -> int:
        """Number of nodes with a value."""
        return len(set(self.nodes))


@dataclass(frozen=True)
class _Off:
    """A value far from its group: `shortfall` as a fraction of the median of `nodes` nodes."""

    device: str
    value: float
    unit: str
    shortfall: float
    usual: Typical
    limit: float
    nodes: int


class Peers:
    """The comparable values of a fleet, added node by node, and the findings of their comparison.

    Nothing else is kept per node, since the measurements of ten thousand nodes do not fit into memory.
    """

    def __init__(self, table: FleetMetrics | None = None) -> None:
        self._table = table or shipped()
        self._groups: dict[tuple[str, str], dict[str, _Values]] = defaultdict(lambda: defaultdict(_Values))
        self._nodes = 0

    def add(self, numbers: Iterable[Measured]) -> None:
        """Add the values of the next node."""
        for one in numbers:
            self._groups[one.sku, one.metric][one.place].add(self._nodes, one)
        self._nodes += 1

    def found(self) -> dict[int, list[Finding]]:
        """Return the comparison's findings by node number; nodes are numbered from 0 as they are added."""
        added: dict[int, list[Finding]] = defaultdict(list)
        for (sku, name), places in self._groups.items():
            metric = self._table.metrics[name]
            compared = [values for values in places.values() if values.count >= self._table.smallest]
            off: dict[int, list[_Off]] = defaultdict(list)
            for values in compared:
                for node, one in _far(metric, values):
                    off[node].append(one)
                for node, whole in _whole_nodes(metric, values):
                    off[node] = [whole, *(one for one in off[node] if _beyond(one, whole, metric))]
            measured: dict[int, list[str]] = {node: [] for node in off}
            for values in compared if off else ():
                for node, device, _, _ in values:
                    if node in measured:
                        measured[node].append(device)
            for node, outliers in off.items():
                added[node] += _findings(metric, sku, outliers, measured[node])
        return {node: findings for node, findings in added.items() if findings}

    def not_compared(self) -> tuple[str, ...]:
        """Return a line for each SKU, or metric of a SKU, with too few nodes to compare."""
        return tuple(_too_small(self._groups, self._table.smallest))


def judge(
    nodes: Iterable[NodeHealth], table: FleetMetrics | None = None
) -> tuple[tuple[NodeHealth, ...], tuple[str, ...]]:
    """Compare a few nodes held in memory and add the findings to their checks.

    Returns the nodes in the given order, and a line for each SKU or metric with too few nodes to compare.
    """
    nodes = tuple(nodes)
    peers = Peers(table)
    for node in nodes:
        peers.add(numbers(node, table))
    findings = peers.found()
    judged = tuple(extended(node, findings[i]) if i in findings else node for i, node in enumerate(nodes))
    return judged, peers.not_compared()


def numbers(node: NodeHealth, table: FleetMetrics | None = None) -> Iterator[Measured]:
    """Yield the values of a node to be compared."""
    sku = str(node.facts.get("sku") or (node.gpus[0].name if node.gpus else ""))
    if not sku:
        return
    metrics = _wanted(table or shipped())
    for check in node.checks:
        for m in check.measurements:
            metric = metrics.get((check.check, m.metric))
            value = number(m.value) if metric else None
            if metric is not None and value is not None and math.isfinite(value):
                place = _place(metric, node, check, m.device)
                yield Measured(sku, metric.name, place, m.device, value, m.unit)


def _wanted(table: FleetMetrics) -> dict[tuple[str, str], FleetMetric]:
    return {(metric.check, metric.metric): metric for metric in table.metrics.values()}


def _place(metric: FleetMetric, node: NodeHealth, check: CheckResult, device: str) -> str:
    """Return the key of the group of values to compare a value with."""
    if metric.compare == "devices":
        return ""
    wired = str(node.facts.get("pcie_width", ""))  # slots with fewer lanes are slower in these metrics
    gpus = node.facts.get("gpus", "")  # a missing GPU shifts all positions after it
    if metric.compare == "position":
        return f"{device} {gpus} {wired}"
    ports = {m.metric: m.value for m in check.measurements if m.metric in ("cards", "rate")}
    rail = f" {ports}" if metric.compare == "rail" else ""
    return f"{gpus} {wired}{rail}"


def _shortfall(metric: FleetMetric, value: float, usual: float) -> float:
    """Return how much worse a value is than usual, as a fraction of the usual value."""
    return (usual - value if metric.direction == "at_least" else value - usual) / usual


def _limit(metric: FleetMetric, usual: Typical, tolerance: float) -> float:
    room = max(tolerance * usual.middle, usual.scatter)
    return usual.middle - room if metric.direction == "at_least" else usual.middle + room


def _far(metric: FleetMetric, values: _Values) -> Iterator[tuple[int, _Off]]:
    """Yield each value that is far from the majority of the group."""
    usual = typical(values.values, metric.warn)
    if usual.middle <= 0:
        return
    limit, nodes = _limit(metric, usual, metric.warn), values.count
    for node, device, value, unit in values:
        if value < limit if metric.direction == "at_least" else value > limit:
            yield (
                node,
                _Off(device, value, unit, _shortfall(metric, value, usual.middle), usual, limit, nodes),
            )


def _whole_nodes(metric: FleetMetric, values: _Values) -> Iterator[tuple[int, _Off]]:
    """Yield each node on which most devices are far from the group."""
    if not metric.node:
        return
    by_node: dict[int, list[float]] = defaultdict(list)
    for node, value in zip(values.nodes, values.values, strict=True):
        by_node[node].append(value)
    middles = {node: statistics.median(points) for node, points in by_node.items()}
    usual = typical(middles.values(), metric.node)
    if usual.middle <= 0:
        return
    limit = _limit(metric, usual, metric.node)
    for node, points in by_node.items():
        worse = sum(value < limit if metric.direction == "at_least" else value > limit for value in points)
        if len(points) > 1 and worse >= _WHOLE * len(points):
            short = _shortfall(metric, middles[node], usual.middle)
            yield node, _Off("node", middles[node], values.unit, short, usual, limit, len(by_node))


def _beyond(one: _Off, whole: _Off, metric: FleetMetric) -> bool:
    """Return whether a device is off even compared with its slow node."""
    return _shortfall(metric, one.value, whole.value) > metric.warn


def _findings(metric: FleetMetric, sku: str, off: Sequence[_Off], measured: Sequence[str]) -> list[Finding]:
    """Return one finding per culprit; slow cells of a matrix are attributed to their culprits first."""
    cells = {_cell(one.device): one for one in off if "->" in one.device}
    findings = [_finding(metric, sku, one.device, [one]) for one in off if "->" not in one.device]
    for culprit in explain(cells, [_cell(device) for device in measured if "->" in device]):
        findings.append(_finding(metric, sku, culprit.device, [cells[cell] for cell in culprit.cells]))
    return findings


def _cell(device: str) -> Cell:
    source, target = device.split("->")
    return int(source.removeprefix("gpu")), int(target.removeprefix("gpu"))


def _finding(metric: FleetMetric, sku: str, device: str, off: Sequence[_Off]) -> Finding:
    one = max(off, key=lambda each: each.shortfall)
    worse = "below" if metric.direction == "at_least" else "above"
    whole = "of all its devices together (their median) " if device == "node" and metric.node else ""
    message = (
        f"{metric.what} {whole}is {one.value:g} {one.unit}, {one.shortfall:.0%} {worse} the "
        f"{one.usual.middle:g} that is the median of {one.nodes} nodes of {sku}"
    )
    evidence = [f"{each.device}: {each.value:g} {each.unit}" for each in off[:16]]
    evidence.append(
        f"the fleet: median {one.usual.middle:g}, scatter {one.usual.deviation:.3g} {one.unit}, "
        f"{one.usual.core} of {one.usual.count} values are alike"
    )
    verdict = Verdict.FAIL if one.shortfall > metric.fail else Verdict.WARN
    measured = Measurement(metric.metric, one.value, one.unit, device)
    limit = f"{'≥' if metric.direction == 'at_least' else '≤'} {one.limit:.4g} {one.unit}"
    return finding_on(metric.check, verdict, measured, message, limit, _SOURCE, metric.action, evidence)


def extended(node: NodeHealth, added: Sequence[Finding]) -> NodeHealth:
    """Add findings to a node; a device that already failed a metric is not reported twice."""
    checks = reconciled([_extended(c, [f for f in added if f.check == c.check]) for c in node.checks])
    verdict = worst([node.verdict, *(check.verdict for check in checks)])
    return replace(node, checks=tuple(checks), verdict=verdict)


def _extended(check: CheckResult, added: Iterable[Finding]) -> CheckResult:
    # A finding without a limit only means that the metric has no limit; it blames no device.
    accused = {
        (f.metric, f.device) for f in check.findings if f.verdict in (Verdict.WARN, Verdict.FAIL) and f.limit
    }
    fresh = [finding for finding in added if (finding.metric, finding.device) not in accused]
    return replace(check, findings=(*check.findings, *fresh))


def _too_small(groups: Mapping[tuple[str, str], Mapping[str, _Values]], smallest: int) -> Iterator[str]:
    """Yield a line for each SKU with the metrics that could not be compared."""
    left: dict[str, list[str]] = defaultdict(list)
    whole: dict[str, set[int]] = defaultdict(set)
    for (sku, name), places in sorted(groups.items()):
        whole[sku].update(node for values in places.values() for node in values.nodes)
        if any(values.count < smallest for values in places.values()):
            left[sku].append(name)
    for sku, names in left.items():
        if len(whole[sku]) < smallest:
            yield f"{sku}: {many(len(whole[sku]), 'node')}; it takes {smallest} to compare them"
        else:
            yield f"{sku}: {', '.join(names)}: measured alike on fewer than {smallest} nodes"


# --- the compared metrics, with the smallest relevant difference: data/fleet_metrics.yml


FILE = DATA / "fleet_metrics.yml"
COMPARE = ("devices", "position", "gpu_count", "rail")
_DIRECTIONS = ("at_least", "at_most")


@dataclass(frozen=True)
class FleetMetric:
    """How one metric is compared. `compare`: one of COMPARE, the grouping of values.

    `warn`, `fail`, `node`: fractions of the group's median; `node` 0: nodes are not judged as a whole."""

    name: str  # "<check>.<metric>"
    what: str
    direction: str
    compare: str
    warn: float
    fail: float
    action: str
    node: float = 0.0

    @property
    def check(self) -> str:
        return self.name.partition(".")[0]

    @property
    def metric(self) -> str:
        return self.name.partition(".")[2]


@dataclass(frozen=True)
class FleetMetrics:
    """The table of compared metrics; `smallest`: number of nodes a group needs to be judged."""

    smallest: int
    metrics: Mapping[str, FleetMetric]


@cache
def shipped() -> FleetMetrics:
    """Load the shipped table."""
    return read(yamlfile.load_mapping(FILE), str(FILE))


def read(document: Mapping[str, Any], where: str) -> FleetMetrics:
    """Parse a table; raise GpuprovError with the position of a mistake. `where`: the file's name."""
    smallest = document.get("smallest_group", {}).get("nodes")
    if not isinstance(smallest, int) or smallest < 3:
        raise GpuprovError(
            f"{where}: smallest_group.nodes: must be a whole number of at least 3", "correct it"
        )
    rows = document.get("metrics", {})
    return FleetMetrics(smallest, {name: _metric(str(name), row, where) for name, row in rows.items()})


def _metric(name: str, row: Mapping[str, Any], where: str) -> FleetMetric:
    fields = {key: value for key, value in row.items() if key not in ("source", "why")}
    unstated = [key for key in ("source", "why") if len(str(row.get(key) or "")) < 10]
    try:
        metric = FleetMetric(name, **fields)
    except TypeError as error:
        raise GpuprovError(f"{where}: {name}: {error}", "imitate the other metrics") from None
    wrong = [
        f"{key} must be one of {', '.join(allowed)}"
        for key, allowed in (("direction", _DIRECTIONS), ("compare", COMPARE), ("action", ACTIONS))
        if row[key] not in allowed
    ]
    if not 0 < metric.warn < metric.fail < 1 or not 0 <= metric.node < 1:
        wrong.append("warn and fail must be fractions, warn the smaller one, and so must node")
    if unstated or wrong or not name.partition(".")[2]:
        text = "; ".join([*wrong, *(f"{key} is missing" for key in unstated)]) or "must be <check>.<metric>"
        raise GpuprovError(f"{where}: {name}: {text}", "correct it")
    return metric
