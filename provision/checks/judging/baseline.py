"""Limits derived from a fleet's own measurements (pure).

A limit is the value that most devices of a SKU reach, less a margin. Bad values, up to a quarter, are
excluded first (`provision.checks.judge.typical`); a metric measured by too few nodes, or with too much
scatter, gets no limit and is reported. One limit applies to all devices of a SKU, so if the position matters
(GPUs that share a bridge or a socket) it follows the slowest position.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from provision import yamlfile
from provision.checks import thresholds
from provision.checks.fleet import fleet_judge
from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Typical, Verdict, number, typical
from provision.checks.judging import threshold_evidence
from provision.checks.judging.threshold_evidence import Certainty, Rule
from provision.checks.thresholds import Spread, Threshold
from provision.errors import GpuprovError
from provision.paths import DATA
from provision.text import many

_BY = "gpuprov baseline learn"  # source of the typical values
_COUNTED = ("lanes", "links")  # the most common count is the limit itself: counts have no noise


@dataclass(frozen=True)
class Sample:
    """One measured value, under the name of its limit."""

    sku: str
    metric: str
    run: str
    node: str
    device: str
    value: float


@dataclass(frozen=True)
class Rules:
    """Rules of data/baseline.yml: how many nodes a limit needs and how far below their values it is set."""

    nodes: int
    margin: float
    deviations: float
    widest: float
    alike: float
    trustworthy: float


@dataclass(frozen=True)
class Unlearnt:
    """A metric of a SKU for which no limit could be learnt, with the reason."""

    sku: str
    metric: str
    why: str


@dataclass(frozen=True)
class Baseline:
    """Limits by SKU, metrics without one, and the certainty of each limit by SKU and metric.

    Counts (of links, of lanes) have no noise and so no certainty.
    """

    limits: Mapping[str, Sequence[Threshold]]
    unlearnt: Sequence[Unlearnt]
    certainty: Mapping[tuple[str, str], Certainty] = field(default_factory=dict)


@dataclass(frozen=True)
class _Place:
    """The limit from the devices of one position, with their statistics and the limit's certainty."""

    limit: float
    usual: Typical
    nodes: int
    spread: float = 0.0
    certainty: Certainty | None = None


@cache
def rules() -> Rules:
    """Load the shipped rules."""
    document = yamlfile.load_mapping(DATA / "baseline.yml")
    return Rules(**{name: document[name] for name in Rules.__dataclass_fields__})


def samples(run: FleetHealth) -> Iterator[Sample]:
    """Yield the measurements of a run that can become limits, except from failed devices."""
    for node in run.nodes:
        sku = str(node.facts.get("sku") or "")
        if sku not in thresholds.sku_names():
            continue
        for check in node.checks:
            broken = {finding.device for finding in check.findings if finding.verdict is Verdict.FAIL}
            for m in check.measurements:
                name = _limit_name(sku, node, check, m.metric)
                value, metric = number(m.value), thresholds.find(name)
                if metric is None or metric.unit != m.unit or m.device in broken - {"node"}:
                    continue
                if value is not None and math.isfinite(value) and value > 0:
                    yield Sample(sku, name, run.run_id, node.node, m.device, value)


def _limit_name(sku: str, node: NodeHealth, check: CheckResult, metric: str) -> str:
    """Return the name of the limit, which for collectives depends on the number of GPUs and on SHARP."""
    name = f"{check.check}.{metric}"
    if metric != "busbw":
        return name
    words = {m.metric: str(m.value) for m in check.measurements}
    count = words.get("ranks") or str(node.facts.get("gpus", ""))
    ring = f"{name}_ring_{count}gpu"
    algorithm = words.get("algorithm", "nvls")
    is_ring = ring in thresholds.for_sku(sku) and not algorithm.startswith("nvls")
    return ring if is_ring else f"{name}_{count}gpu"


def learn(found: Iterable[Sample], date: str, use: Rules | None = None) -> Baseline:
    """Learn limits from the samples of one or more runs. `date`: YYYY-MM of the measurements."""
    use = use or rules()
    grouped: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in found:
        grouped[sample.sku, sample.metric].append(sample)
    limits: dict[str, list[Threshold]] = defaultdict(list)
    unlearnt = []
    certainty = {}
    for (sku, name), group in sorted(grouped.items()):
        try:
            limit, place = _learnt(sku, name, group, date, use)
            limits[sku].append(limit)
            if place.certainty:
                certainty[sku, name] = place.certainty
        except GpuprovError as reason:
            unlearnt.append(Unlearnt(sku, name, reason.what))
    return Baseline({sku: tuple(found) for sku, found in limits.items() if found}, tuple(unlearnt), certainty)


def _learnt(sku: str, name: str, group: Sequence[Sample], date: str, use: Rules) -> tuple[Threshold, _Place]:
    """Return the limit of one metric and the position that sets it, or raise GpuprovError."""
    metric = thresholds.find(name)
    if metric is None:
        raise GpuprovError("is not a metric we judge")
    devices: dict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in group:
        devices[sample.node, sample.device].append(sample.value)
    # Each device counts once, no matter how often it was measured.
    values = {key: statistics.median(candidates) for key, candidates in devices.items()}
    places: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for (node, device), value in values.items():
        places[device if _by_place(name, device) else ""][node, device] = value
    candidates = [_place_limit(values, metric, use, len(places)) for values in places.values()]
    tight = min if metric.direction == "at_least" else max
    place = tight(candidates, key=lambda each: each.limit)
    usual = place.usual
    if wrong := thresholds.problem(metric, place.limit, thresholds.able(sku)):
        raise GpuprovError(f"the derived limit is not plausible: {wrong}")
    source = (
        f"{_BY}: {_arithmetic(usual, metric.unit, use, places=len(places))}, "
        f"{many(len(values), 'device')} of {many(len({node for node, _ in values}), 'node')}; "
        f"runs {', '.join(sorted({sample.run for sample in group}))}"
    )
    learnt = Threshold(
        name, place.limit, metric.unit, metric.direction, source, "measured", date, place.nodes
    )
    if place.certainty:
        middle, percent = (
            float(f"{value:.6g}") for value in (usual.middle, 100 * place.spread / usual.middle)
        )
        learnt = replace(
            learnt,
            typical=thresholds.TypicalValue(middle, place.nodes, _BY),
            spread=Spread(percent, place.nodes, _BY),
        )
    return learnt, place


def _arithmetic(usual: Typical, unit: str, use: Rules, *, places: int) -> str:
    text = f"median {usual.middle:.5g} {unit}, scatter {usual.deviation:.3g}"
    text += f", {usual.core} of {usual.count} alike"
    if places > 1:
        text += f", in the slowest of {places} places"
    if unit in _COUNTED:
        return text
    off = max(use.margin * usual.middle, use.deviations * usual.deviation)
    why = f"{use.margin:.0%}" if off == use.margin * usual.middle else f"{use.deviations:g} deviations"
    return f"{text}, less {why}"


def _by_place(name: str, device: str) -> bool:
    compared = fleet_judge.shipped().metrics.get(name)
    return "->" in device or (compared is not None and compared.compare == "position")


def _place_limit(
    values: Mapping[tuple[str, str], float], metric: thresholds.Metric, use: Rules, places: int
) -> _Place:
    """Return the limit that these devices yield; raise GpuprovError with the reason if they yield none."""
    nodes = len({node for node, _ in values})
    if nodes < use.nodes:
        raise GpuprovError(f"measured on {many(nodes, 'node')}, it takes {use.nodes}")
    usual = typical(values.values(), use.margin)
    if usual.core < use.alike * usual.count:
        raise GpuprovError(f"only {usual.core} of {usual.count} values are alike, it takes {use.alike:.0%}")
    if usual.deviation > use.widest * usual.middle:
        spread = usual.deviation / usual.middle
        raise GpuprovError(
            f"values scatter by {spread:.1%} of their median, at most {use.widest:.0%} is usable"
        )
    if metric.unit in _COUNTED:
        most, count = Counter(values.values()).most_common(1)[0]
        if count < use.alike * usual.count:
            raise GpuprovError(f"only {count} of {usual.count} devices have the same {metric.unit}")
        return _Place(most, usual, nodes)
    return _noisy_limit(values, usual, metric, use, places)


def _noisy_limit(
    values: Mapping[tuple[str, str], float],
    usual: Typical,
    metric: thresholds.Metric,
    use: Rules,
    places: int,
) -> _Place:
    low = metric.direction == "at_least"
    rule = Rule(use.margin, use.deviations, low)
    limit = _rounded(rule.choose(rule.candidates(usual.middle, usual.deviation)), down=low)
    nearest = sorted(values.items(), key=lambda each: abs(each[1] - usual.middle))
    alike: dict[str, list[float]] = defaultdict(list)
    for (node, _), value in nearest[: usual.core]:
        alike[node].append(value)
    if len(alike) < 2:
        raise GpuprovError("all values that are alike come from one node")
    parts = threshold_evidence.healthy(alike.values())
    certainty = threshold_evidence.of_limit(
        rule,
        usual.middle,
        usual.deviation,
        parts,
        fraction=use.trustworthy,
        least=use.nodes,
        places=places,
    )
    return _Place(limit, usual, parts.nodes, parts.deviation, certainty)


def _rounded(value: float, *, down: bool) -> float:
    """Round to four significant digits, towards the lenient side."""
    digits = 3 - math.floor(math.log10(abs(value)))
    step = math.floor if down else math.ceil
    power = 10.0**digits
    return round(step(round(value * power, 6)) / power, max(digits, 0))


def render(baseline: Baseline, when: str) -> str:
    """Render a thresholds file with one document per SKU. `when`: date text for the file's header."""
    head = f"# Limits learnt from this fleet's own measurements by gpuprov baseline learn, {when}.\n"
    return head + "---\n".join(_document(sku, found) for sku, found in baseline.limits.items())


def _document(sku: str, limits: Iterable[Threshold]) -> str:
    lines = [f"sku: {sku}", "thresholds:"]
    for limit in limits:
        lines += [
            f"  {limit.metric}:",
            f"    limit: {limit.limit:.12g}",
            f"    unit: {json.dumps(limit.unit)}",
            f"    direction: {limit.direction}",
            f"    kind: {limit.kind}",
            f"    date: {limit.date}",
            f"    machines: {limit.machines}",
            f"    source: {json.dumps(limit.source, ensure_ascii=False)}",
        ]
        if limit.typical and limit.spread:
            for key, label, value in (
                ("typical", "value", limit.typical.value),
                ("spread", "percent", limit.spread.percent),
            ):
                lines.append(
                    f"    {key}: {{{label}: {value:.12g}, machines: {limit.machines}, source: {_BY}}}"
                )
    return "\n".join(lines) + "\n"
