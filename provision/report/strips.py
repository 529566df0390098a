"""The fleet against its limits: for each SKU the key metrics, with every value, the limit and the outliers
(pure).

Which metrics are key says data/fleet_metrics.yml: those that are worth comparing between nodes.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from provision.checks import thresholds
from provision.checks.fleet import fleet_metrics
from provision.checks.fleet.fleet_metrics import FleetMetric
from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict, limit_text, number
from provision.checks.threshold_metrics import sku_names
from provision.report.tables import blamed
from provision.text import one_line

_SKUS = 4  # drawn; the rest is said to be left out
_ROWS = 6  # of a SKU
_LIMIT = re.compile(r"[≥≤=] (\d{1,12}(?:\.\d{1,6})?) (.+)")
_OF_PEERS = "median of"  # in the source of a limit that holds for one node or group, not for the SKU


@dataclass(frozen=True)
class Mark:
    """A value that is no pass, with the name of what has it."""

    label: str
    value: float
    verdict: Verdict


@dataclass(frozen=True)
class Strip:
    """One metric of one SKU. `values`: all that are not `marks`; `limit` with its words, None when there is
    none; `better`: at_least (more is better) or at_most; `silent`: nodes of the SKU without a value.
    """

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
    """The strips of one SKU; `left_out`: measured metrics that have none."""

    name: str
    nodes: int
    strips: tuple[Strip, ...]
    left_out: int


@dataclass(frozen=True)
class Glance:
    """The SKUs with the most nodes; `more_skus`: how many others there are; `nodes_unknown`: nodes of which
    not even the SKU is known, as of one that was not reached."""

    skus: tuple[Sku, ...]
    more_skus: int
    nodes_unknown: int


def glance(fleet: FleetHealth) -> Glance:
    """What to draw of a fleet, the largest SKU first."""
    groups: dict[str, list[NodeHealth]] = defaultdict(list)
    for node in fleet.nodes:
        if name := sku_name(node):
            groups[name].append(node)
    found = [_sku(name, nodes) for name, nodes in sorted(groups.items(), key=lambda one: -len(one[1]))]
    drawn = [sku for sku in found if sku.strips]
    unknown = len(fleet.nodes) - sum(len(nodes) for nodes in groups.values())
    return Glance(tuple(drawn[:_SKUS]), len(drawn[_SKUS:]), unknown)


def sku_name(node: NodeHealth) -> str:
    """What a node is grouped by: its SKU, or its GPUs' product name; "" when neither is known."""
    return one_line(str(node.facts.get("sku") or (node.gpus[0].name if node.gpus else "")), 60)


@dataclass
class _Seen:
    """What a SKU's nodes have of one metric."""

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
    known = fleet_metrics.shipped().metrics.values()
    by_check: dict[str, dict[str, _Seen]] = defaultdict(dict)
    for metric in known:
        by_check[metric.check][metric.metric] = _Seen(metric)
    for node in nodes:
        for check in node.checks:
            if wanted := by_check.get(check.check):
                _take(node, check, wanted)
    seen = [by_check[metric.check][metric.metric] for metric in known]
    found = [_strip(one, name, len(nodes)) for one in seen if one.units]
    # Who stands out is shown whatever the metric; the others fill what room is left, in the table's order.
    order = sorted(found, key=lambda strip: -max((m.verdict.badness for m in strip.marks), default=0))
    chosen = order[:_ROWS]
    return Sku(name, len(nodes), tuple(s for s in found if s in chosen), len(found) - len(chosen))


def _take(node: NodeHealth, check: CheckResult, wanted: Mapping[str, _Seen]) -> None:
    bad = blamed(check.findings)
    # A device that is no pass by another metric of the check stands out as well, with that metric's name.
    wrong = {device: (name, verdict) for (name, device), verdict in bad.items() if device != "node"}
    measured = set()
    for row in check.measurements:
        seen = wanted.get(row.metric)
        value = number(row.value) if seen else None
        if seen is None or value is None or not 0 <= value < 1e15:  # nor NaN
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
    """The limit that a finding was judged by, where it is one for the whole SKU."""
    match = _LIMIT.fullmatch(finding.limit)
    if match and match[2] == finding.unit and _OF_PEERS not in finding.source:
        yield float(match[1]), one_line(finding.limit, 40)


def _limit(seen: _Seen, sku: str, unit: str) -> tuple[float | None, str]:
    """The limit most values were judged by; where no finding tells one, the shipped one, named so."""
    if seen.limits:
        (value, words), _ = seen.limits.most_common(1)[0]
        return value, f"limit {words}"
    shipped = thresholds.for_sku(sku).get(seen.metric.name) if sku in sku_names() else None
    if shipped is None or shipped.unit != unit:
        return None, ""
    return shipped.limit, f"shipped limit {limit_text(shipped)}"
