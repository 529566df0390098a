"""GPU-to-GPU heat maps: nodes without a clean pass, next to a typical healthy node (pure)."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from provision.checks.health import CheckResult, FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict, number
from provision.node_names import natural
from provision.report.causes import worst_first
from provision.report.heatmaps import LARGEST, Cell, Drawn, HeatMap, Mark, Scale, digits, draw
from provision.report.tables import sku_name
from provision.text import many, one_line, quantity

CHECK = "p2p_bandwidth"
_USUAL = 256  # healthy nodes of a SKU from which usual values are computed
_NODES = 5  # drawn per SKU; others are only named
_BYTES = 450_000  # all maps together
_PAIR = re.compile(r"gpu(\d{1,4})->gpu(\d{1,4})")
_DEVICES = re.compile(r"gpu\d{1,4}")
_LIMIT = re.compile(r"≥ (\d{1,12}(?:\.\d{1,6})?) GB/s")
_STEPS = (0.95, 0.85, 0.7, 0.5)  # 15 % below its peers, a pair has lost links (checks/p2p_bandwidth.py)
_MARKS = {Verdict.FAIL: Mark.FAIL, Verdict.WARN: Mark.WARN, Verdict.ERROR: Mark.UNKNOWN}
_WORDS = {
    Mark.FAIL: "a finding fails it",
    Mark.WARN: "a finding warns of it",
    Mark.UNKNOWN: "not measured",
}

Place = tuple[int, int]  # two GPUs: from, to
Matrix = Mapping[Place, float | None]  # GB/s; None: the tool prints N/A


@dataclass(frozen=True)
class NodeMap:
    """One node's map. `typical`: a healthy node, shown for comparison."""

    node: NodeHealth
    verdict: Verdict
    heat: Drawn
    typical: bool = False


@dataclass(frozen=True)
class SkuMaps:
    """The maps of one SKU, the typical node first. `left_out`: bad nodes without a map for lack of room."""

    sku: str
    shown: tuple[NodeMap, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class PeerMaps:
    """Maps of each SKU with a node that does not pass. `unmeasured`: nodes without a value to draw."""

    skus: tuple[SkuMaps, ...]
    unmeasured: tuple[str, ...]
    check: str = CHECK


def peers(fleet: FleetHealth) -> PeerMaps:
    """Select and draw the maps, the largest SKU first, leaving out SKUs in which all nodes pass or skip."""
    groups: dict[str, list[NodeHealth]] = defaultdict(list)
    for node in worst_first(fleet):
        if CHECK in fleet.asked or any(check.check == CHECK for check in node.checks):
            groups[sku_name(node)].append(node)
    maps_of_skus, spent, unmeasured = [], 0, []
    for sku, nodes in sorted(groups.items(), key=lambda one: (-len(one[1]), one[0])):
        measured = {node.node: _matrices(_check(node)) for node in _looked_at(nodes)}
        unmeasured += [n.node for n in nodes if _verdict(n) in _MARKS and not measured[n.node]]
        maps = _of_sku(sku, nodes, measured, _BYTES - spent)
        if maps.shown or maps.left_out:
            maps_of_skus.append(maps)
        spent += sum(one.heat.size for one in maps.shown)
    return PeerMaps(tuple(maps_of_skus), tuple(sorted(unmeasured, key=natural)))


def _of_sku(
    sku: str, nodes: Sequence[NodeHealth], measured: Mapping[str, Mapping[str, Matrix]], room: int
) -> SkuMaps:
    healthy = [n for n in nodes if _verdict(n) is Verdict.PASS and measured.get(n.node)]
    bad = [n for n in nodes if _verdict(n) in _MARKS and measured[n.node]]
    bad.sort(key=lambda node: (-_verdict(node).badness, natural(node.node)))
    usual = _usual([measured[node.node] for node in healthy])
    shown: list[NodeMap] = []
    if bad and healthy:
        typical = _typical(healthy, measured)
        shown.append(NodeMap(typical, Verdict.PASS, _drawn(typical, measured, usual, len(healthy)), True))
    for node in bad[:_NODES]:
        one = NodeMap(node, _verdict(node), _drawn(node, measured, usual, len(healthy)))
        if sum(each.heat.size for each in (*shown, one)) > room:
            break
        shown.append(one)
    drawn = {one.node.node for one in shown}
    if not any(not one.typical for one in shown):
        shown = []
    left_out = tuple(sorted((node.node for node in bad if node.node not in drawn), key=natural))
    return SkuMaps(sku, tuple(shown), left_out)


def _looked_at(nodes: Sequence[NodeHealth]) -> list[NodeHealth]:
    """Return nodes to read: all bad ones, and a sample of passing ones from all over the fleet.

    Empty if no node is bad."""
    bad = [node for node in nodes if _verdict(node) in _MARKS]
    passed = [node for node in nodes if _verdict(node) is Verdict.PASS] if bad else []
    return bad + passed[:: max(1, -(-len(passed) // _USUAL))]


def _check(node: NodeHealth) -> CheckResult | None:
    return next((check for check in node.checks if check.check == CHECK), None)


def _verdict(node: NodeHealth) -> Verdict:
    """Return the verdict of the check, `error` if it is missing although requested."""
    check = _check(node)
    return check.verdict if check else Verdict.ERROR


def _matrices(check: CheckResult | None) -> dict[str, Matrix]:
    """Return a matrix of values between GPUs per metric, without those empty or too large to draw."""
    matrices: dict[str, dict[Place, float | None]] = defaultdict(dict)
    for row in check.measurements if check else ():
        match = _PAIR.fullmatch(row.device)
        if match and match[1] != match[2] and row.unit == "GB/s":
            value = number(row.value)
            usable = value is not None and 0 <= value < 1e6  # also excludes NaN
            matrices[row.metric][int(match[1]), int(match[2])] = value if usable else None
    return {
        one_line(metric, 40): matrix
        for metric, matrix in matrices.items()
        if any(value is not None for value in matrix.values())
        and len({gpu for place in matrix for gpu in place}) <= LARGEST
    }


def _usual(healthy: Iterable[Mapping[str, Matrix]]) -> Mapping[tuple[str, Place], float]:
    """Return the healthy nodes' median of each pair of GPUs, since bridges depend on where GPUs sit."""
    values: dict[tuple[str, Place], list[float]] = defaultdict(list)
    for matrices in healthy:
        for metric, matrix in matrices.items():
            for place, value in matrix.items():
                if value:
                    values[metric, place].append(value)
    return {key: statistics.median(each) for key, each in values.items()}


def _typical(healthy: Sequence[NodeHealth], measured: Mapping[str, Mapping[str, Matrix]]) -> NodeHealth:
    """Return the middle node, by the median of all its pairs."""

    def middle(node: NodeHealth) -> float:
        return statistics.median(v for m in measured[node.node].values() for v in m.values() if v is not None)

    return sorted(healthy, key=lambda node: (middle(node), natural(node.node)))[(len(healthy) - 1) // 2]


def _drawn(
    node: NodeHealth,
    measured: Mapping[str, Mapping[str, Matrix]],
    usual: Mapping[tuple[str, Place], float],
    healthy: int,
) -> Drawn:
    check, matrices = _check(node), measured[node.node]
    findings = [f for f in check.findings if f.verdict in _MARKS] if check else []
    gpus = sorted({gpu for m in matrices.values() for p in m for gpu in p} | {g.index for g in node.gpus})
    gpus = gpus[:LARGEST]
    maps = []
    for metric, matrix in list(matrices.items())[:2]:
        own = statistics.median(value for value in matrix.values() if value is not None)
        reference = {place: usual.get((metric, place), own) for place in matrix}
        cells = dict(_cells(metric, matrix, gpus, reference, findings))
        names = tuple(f"gpu{gpu}" for gpu in gpus)
        alt = _alt(node, metric, matrix, names, cells)
        title = f"{metric}, GB/s"
        maps.append(HeatMap(title, names, cells, own="the GPU itself", directed=True, largest=32, alt=alt))
    of = (
        f"the same pair in the healthy nodes of this SKU (median of {healthy:,})"
        if healthy
        else "the median of this node's own pairs: no node of this SKU is healthy"
    )
    return draw(maps, Scale(f"Colour: share of {of}", _STEPS, _WORDS))


def _cells(
    metric: str,
    matrix: Matrix,
    gpus: Sequence[int],
    reference: Mapping[Place, float],
    findings: Sequence[Finding],
) -> Iterator[tuple[Place, Cell]]:
    for row, source in enumerate(gpus):
        for column, target in enumerate(gpus):
            place = (source, target)
            if source == target:
                continue
            if place not in matrix:
                yield (row, column), Cell(None, mark=Mark.UNKNOWN)
                continue
            value = matrix[place]
            share = None if value is None else value / (reference[place] or 1.0)
            mark = max(
                (f.verdict for f in findings if _concerns(f, metric, place, value, share)),
                key=lambda verdict: verdict.badness,
                default=None,
            )
            text = "N/A" if value is None else digits(value)
            yield (row, column), Cell(share, text, _MARKS[mark] if mark else Mark.NONE)


def _concerns(finding: Finding, metric: str, place: Place, value: float | None, share: float | None) -> bool:
    """Return whether a finding concerns this cell.

    The finding names exactly this pair; or it names GPUs of the pair or the node, and the cell is slower than
    the finding's limit or has no value."""
    if finding.metric not in ("p2p_read", "p2p_write", metric):
        return False
    source, target = (f"gpu{gpu}" for gpu in place)
    if finding.device == f"{source}->{target}" and finding.metric == metric:
        return True
    devices = set(_DEVICES.findall(finding.device))
    if finding.device != "node" and (not devices or not devices <= {source, target}):
        return False
    if "->" in finding.device or value is None or share is None:
        return value is None
    limit = _LIMIT.fullmatch(finding.limit)
    return value < float(limit[1]) if limit else share < _STEPS[1]


def _alt(
    node: NodeHealth, metric: str, matrix: Matrix, names: Sequence[str], cells: Mapping[Place, Cell]
) -> str:
    """Describe a map: `peer bandwidth inside gpu-03. p2p_read: 56 of 56 pairs measured, …; ✗ gpu2 to …`."""
    values = [value for value in matrix.values() if value is not None]
    description = f"peer bandwidth inside {one_line(node.node, 60)}. {metric}: "
    description += f"{len(values):,} of {many(len(names) * (len(names) - 1), 'pair')} measured, "
    description += f"{quantity(min(values))} to {quantity(max(values))} GB/s"
    marked = [(place, cell) for place, cell in sorted(cells.items()) if cell.mark]
    for (row, column), cell in marked[:8]:
        description += f"; {cell.mark} {names[row]} to {names[column]} {cell.text or 'not measured'}"
    return description + (f" and {len(marked) - 8} more marked" if len(marked) > 8 else "")
