"""Tables of measurements: metrics by devices, matrices of device pairs, the fleet against its limits."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from provision.checks import thresholds
from provision.checks.check import Measurement
from provision.checks.fleet import fleet_judge
from provision.checks.fleet.fleet_judge import FleetMetric
from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict, limit_text, number
from provision.checks.thresholds import sku_names
from provision.node_names import natural
from provision.text import one_line, quantity

_PAIR = re.compile(r"^(.{0,80}\D|)(\d{1,9})->(.{0,80}\D|)(\d{1,9})$")
_LARGEST = 72  # devices along a matrix: one GB200 NVL72 domain; more become a list
# Share of the matrix's median → shade; each also shows its number. Below the first: the worst shade.
_SHADES = (0.5, 0.8, 0.9, 0.97, 1.03)


@dataclass(frozen=True)
class Cell:
    """One displayed value. `verdict`: of a finding about exactly this measurement, else None."""

    text: str
    shade: int | None = None
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Table:
    """A table. `heads`: columns after the first; a row: its name and a cell per head, None if missing."""

    title: str
    unit: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    matrix: bool = False


def tables(check: CheckResult) -> list[Table]:
    """Return all measurements of a check: a matrix per metric between pairs, and one table of the rest."""
    marked = blamed(check.findings)
    pairs: dict[tuple[str, str], list[Measurement]] = {}
    rest: list[Measurement] = []
    for row in check.measurements:
        if _PAIR.match(row.device):
            pairs.setdefault((row.metric, row.unit), []).append(row)
        else:
            rest.append(row)
    matrices = []
    for (metric, unit), rows in pairs.items():
        table = _matrix(metric, unit, rows, marked)
        if table is None:
            rest += rows
        else:
            matrices.append(table)
    return [*matrices, *([_plain(rest, marked)] if rest else [])]


def blamed(findings: Iterable[Finding]) -> dict[tuple[str, str], Verdict]:
    """Return (metric, device) → verdict of findings except passes; gpu2-gpu6 stands for both directions."""
    verdicts: dict[tuple[str, str], Verdict] = {}
    for finding in findings:
        if finding.verdict is Verdict.PASS:
            continue
        devices = [finding.device]
        if "->" not in finding.device and finding.device.count("-") == 1:
            one, other = finding.device.split("-")
            devices += [f"{one}->{other}", f"{other}->{one}"]
        for device in devices:
            verdicts[finding.metric, device] = finding.verdict
    return verdicts


def _matrix(
    metric: str, unit: str, rows: Sequence[Measurement], marked: dict[tuple[str, str], Verdict]
) -> Table | None:
    values = {tuple(row.device.split("->", 1)): row for row in rows}
    names = sorted({name for pair in values for name in pair}, key=natural)
    if len(names) > _LARGEST:
        return None
    numbers = [
        v for pair, row in values.items() if pair[0] != pair[1] and (v := number(row.value)) is not None
    ]
    middle = statistics.median(numbers) if numbers else 0.0
    faster_is_better = unit.endswith("/s")

    def cell(source: str, target: str) -> Cell | None:
        row = values.get((source, target))
        if row is None:
            return None
        shade = None if source == target else _shade(number(row.value), middle, faster_is_better)
        return Cell(quantity(row.value), shade, marked.get((metric, row.device)))

    cells = tuple((one_line(a, 40), tuple(cell(a, b) for b in names)) for a in names)
    return Table(
        one_line(metric, 80), one_line(unit, 40), tuple(one_line(name, 40) for name in names), cells, True
    )


def _shade(value: float | None, middle: float, faster_is_better: bool) -> int | None:
    """Return 0 (far worse than the median) to 5 (better), or None without a number or a median."""
    if value is None or middle <= 0 or value != value:
        return None
    share = value / middle if faster_is_better else middle / value if value > 0 else 0.0
    return sum(share >= step for step in _SHADES)


def _plain(rows: Sequence[Measurement], marked: dict[tuple[str, str], Verdict]) -> Table:
    devices = sorted({row.device for row in rows}, key=lambda name: (name != "node", natural(name)))
    metrics = dict.fromkeys((row.metric, row.unit) for row in rows)
    values = {(row.metric, row.unit, row.device): row for row in rows}

    def cell(metric: str, unit: str, device: str) -> Cell | None:
        row = values.get((metric, unit, device))
        return None if row is None else Cell(quantity(row.value), None, marked.get((metric, device)))

    return Table(
        "",
        "",
        tuple(one_line(device, 40) for device in devices),
        tuple(
            (
                f"{one_line(metric, 80)} {one_line(unit, 40)}".strip(),
                tuple(cell(metric, unit, d) for d in devices),
            )
            for metric, unit in metrics
        ),
    )


# --- the fleet against its limits: for each SKU the key metrics, with every value, the limit and the
# outliers. data/fleet_metrics.yml lists the key metrics: those worth comparing between nodes.


_SKUS = 4  # drawn; the others are only counted
_ROWS = 6  # per SKU
_LIMIT = re.compile(r"[≥≤=] (\d{1,12}(?:\.\d{1,6})?) (.+)")
_OF_PEERS = "median of"  # in the source of a limit for a single node or group, not the SKU


@dataclass(frozen=True)
class Mark:
    """A value that is not a pass, with the name of its node and device."""

    label: str
    value: float
    verdict: Verdict


@dataclass(frozen=True)
class Strip:
    """One metric of one SKU. `values`: all except the `marks`.

    `limit`: with its words, None without one; `better`: at_least (more is better) or at_most; `silent`:
    number of the SKU's nodes without a value."""

    what: str
    unit: str
    better: str
    values: tuple[float, ...]
    marks: tuple[Mark, ...]
    limit: float | None
    limit_words: str
    silent: int


@dataclass(frozen=True)
class Sku:
    """The strips of one SKU; `left_out`: number of measured metrics without a strip."""

    name: str
    nodes: int
    strips: tuple[Strip, ...]
    left_out: int


@dataclass(frozen=True)
class Glance:
    """The SKUs with the most nodes; `more_skus`: number of other SKUs.

    `nodes_unknown`: number of nodes of unknown SKU, such as unreachable ones."""

    skus: tuple[Sku, ...]
    more_skus: int
    nodes_unknown: int


def glance(fleet: FleetHealth) -> Glance:
    """Select the strips to draw for a fleet, the largest SKU first."""
    groups: dict[str, list[NodeHealth]] = defaultdict(list)
    for node in fleet.nodes:
        if name := sku_name(node):
            groups[name].append(node)
    of_skus = [_sku(name, nodes) for name, nodes in sorted(groups.items(), key=lambda one: -len(one[1]))]
    drawn = [sku for sku in of_skus if sku.strips]
    unknown = len(fleet.nodes) - sum(len(nodes) for nodes in groups.values())
    return Glance(tuple(drawn[:_SKUS]), len(drawn[_SKUS:]), unknown)


def sku_name(node: NodeHealth) -> str:
    """Return a node's group: its SKU, or its GPUs' product name; "" if neither is known."""
    return one_line(str(node.facts.get("sku") or (node.gpus[0].name if node.gpus else "")), 60)


@dataclass
class _Seen:
    """Values of one metric on the nodes of a SKU."""

    metric: FleetMetric
    values: list[float] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    units: Counter[str] = field(default_factory=Counter)
    limits: Counter[tuple[float, str]] = field(default_factory=Counter)
    nodes: int = 0

    def take(self, value: float, unit: str, mark: Mark | None) -> None:
        self.units[unit] += 1
        if mark is None:
            self.values.append(value)
        else:
            self.marks.append(mark)


def _sku(name: str, nodes: Sequence[NodeHealth]) -> Sku:
    shipped = fleet_judge.shipped().metrics.values()
    by_check: dict[str, dict[str, _Seen]] = defaultdict(dict)
    for metric in shipped:
        by_check[metric.check][metric.metric] = _Seen(metric)
    for node in nodes:
        for check in node.checks:
            if metrics := by_check.get(check.check):
                _take(node, check, metrics)
    seen = [by_check[metric.check][metric.metric] for metric in shipped]
    strips = [_strip(one, name, len(nodes)) for one in seen if one.units]
    # Metrics with outliers are always shown; others fill the remaining room in the table's order.
    order = sorted(strips, key=lambda strip: -max((m.verdict.badness for m in strip.marks), default=0))
    chosen = order[:_ROWS]
    return Sku(name, len(nodes), tuple(s for s in strips if s in chosen), len(strips) - len(chosen))


def _take(node: NodeHealth, check: CheckResult, wanted: Mapping[str, _Seen]) -> None:
    bad = blamed(check.findings)
    # A device with a bad verdict for another metric of the check also stands out, labelled with that metric.
    wrong = {device: (name, verdict) for (name, device), verdict in bad.items() if device != "node"}
    measured = set()
    for row in check.measurements:
        seen = wanted.get(row.metric)
        value = number(row.value) if seen else None
        if seen is None or value is None or not 0 <= value < 1e15:  # also excludes NaN
            continue
        measured.add(row.metric)
        verdict, label = bad.get((row.metric, row.device)), ""
        if verdict is None and row.device in wrong:
            name, verdict = wrong[row.device]
            label = f" ({one_line(name, 30)})" if name else ""
        mark = Mark(_label(node, row.device) + label, value, verdict) if verdict else None
        seen.take(value, row.unit, mark)
    for name in measured:
        wanted[name].nodes += 1
    for finding in check.findings:
        if finding.metric in wanted:
            wanted[finding.metric].limits.update(_limits(finding))


def _strip(seen: _Seen, sku: str, nodes: int) -> Strip:
    unit = seen.units.most_common(1)[0][0]
    limit, words = _limit(seen, sku, unit)
    sign = 1 if seen.metric.direction == "at_least" else -1
    marks = sorted(seen.marks, key=lambda mark: (-mark.verdict.badness, sign * mark.value))
    return Strip(
        seen.metric.what, one_line(unit, 20), seen.metric.direction, tuple(seen.values), tuple(marks),
        limit, words, nodes - seen.nodes,
    )  # fmt: skip


def _label(node: NodeHealth, device: str) -> str:
    name = one_line(node.node, 40)
    return name if device == "node" else f"{name} {one_line(device, 24)}"


def _limits(finding: Finding) -> Iterator[tuple[float, str]]:
    """Yield the limit by which a finding was judged, if it applies to the whole SKU."""
    match = _LIMIT.fullmatch(finding.limit)
    if match and match[2] == finding.unit and _OF_PEERS not in finding.source:
        yield float(match[1]), one_line(finding.limit, 40)


def _limit(seen: _Seen, sku: str, unit: str) -> tuple[float | None, str]:
    """Return the limit used for most values, or the shipped one, marked as such, if no finding has one."""
    if seen.limits:
        (value, words), _ = seen.limits.most_common(1)[0]
        return value, f"limit {words}"
    shipped = thresholds.for_sku(sku).get(seen.metric.name) if sku in sku_names() else None
    if shipped is None or shipped.unit != unit:
        return None, ""
    return shipped.limit, f"shipped limit {limit_text(shipped)}"
