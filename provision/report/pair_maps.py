"""Heat maps of the measurements between nodes, one for each check of pairs (pure).

Up to `_MOST` nodes, a single map has all of them, ordered by rack. Larger fleets get two maps: racks by
racks, and accused or suspected nodes by their partners."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from provision.checks.health import FleetHealth
from provision.checks.judge import Verdict
from provision.checks.pairs.judge import Grade, Judged, judge
from provision.checks.pairs.pairing import Outcome, Result
from provision.node_names import fold
from provision.report.context import Pairs
from provision.report.heatmaps import Cell, Drawn, Group, HeatMap, Mark, Scale, digits, draw
from provision.text import many, one_line, quantity

_MOST = 64  # names along a map
_NAMED = 48  # rows of the second map
_NO_RACK, _ABSENT = "rack not known", "took no part"


@dataclass(frozen=True)
class Shown:
    """A map with its caption."""

    heat: Drawn
    words: str


@dataclass(frozen=True)
class PairMaps:
    """One check's maps; `measured` of `possible` pairs in `rounds` rounds.

    `named`: accused or suspected parts of the network and nodes; `left_out`: nodes that took no part, a line
    for each reason; `notes`: omitted maps, with reasons."""

    check: str
    shown: tuple[Shown, ...]
    measured: int
    possible: int
    rounds: int
    named: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


def between(fleet: FleetHealth, pairs: Pairs) -> PairMaps:
    """Select and draw the maps of one check."""
    seen = PairCells(fleet, pairs)
    nodes = [*_by_rack(pairs, pairs.fleet.nodes), *pairs.left_out]
    few = len(nodes) <= _MOST
    shown, notes = ([_every_node(seen, nodes)] if len(nodes) > 1 else [], []) if few else _large(seen)
    reasons: dict[str, list[str]] = defaultdict(list)
    for node, why in pairs.left_out.items():
        reasons[why].append(node)
    count = len(pairs.fleet.nodes)
    return PairMaps(
        pairs.check,
        tuple(shown),
        len(seen.measured),
        count * (count - 1) // 2,
        max((result.round for result in pairs.results), default=0),
        tuple(seen.to_blame()),
        tuple(f"{fold(names, 300)}: {one_line(why, 200)}" for why, names in reasons.items()),
        tuple(notes),
    )


def _large(seen: PairCells) -> tuple[list[Shown], list[str]]:
    """Draw the maps of a fleet too large for a single map, with notes on omitted ones."""
    racks = list(seen.pairs.fleet.members)
    shown, notes = [], []
    if 2 <= len(racks) <= _MOST:
        shown.append(_racks(seen, racks))
    else:
        notes.append(f"Not drawn rack by rack: {many(len(racks), 'rack')} known.")
    if named := _named(seen):
        shown.append(_by_partner(seen, named))
    else:
        notes.append(f"No node stands out; {many(len(seen.pairs.fleet.nodes), 'node')} are too many to draw.")
    return shown, notes


def _by_rack(pairs: Pairs, nodes: Iterable[str]) -> list[str]:
    """Sort nodes by rack, in the inventory's order; nodes without a rack come last."""
    fleet = pairs.fleet
    racks = {rack: place for place, rack in enumerate(fleet.members)}

    def place(node: str) -> tuple[int, int]:
        return racks.get(fleet.racks.get(node, ""), len(racks)), fleet.order[node]

    return sorted(nodes, key=place)


def _every_node(seen: PairCells, nodes: Sequence[str]) -> Shown:
    place = {node: number for number, node in enumerate(nodes)}
    cells = {}
    for (one, other), cell in seen.cells.items():
        cells[place[one], place[other]] = cells[place[other], place[one]] = cell
    for absent in (place[node] for node in seen.pairs.left_out):
        for at in place.values():
            cells[absent, at] = cells[at, absent] = Cell(None, mark=Mark.UNKNOWN)
    drawn = HeatMap(
        _title(seen), nodes, cells, _groups(seen, nodes), named=_loud(seen), own="the node itself",
        alt=seen.alt(many(len(nodes), "node"), seen.cells),
    )  # fmt: skip
    return Shown(
        draw([drawn], seen.scale()),
        "Each pair is shown twice, so that the row of a node has all of its pairs.",
    )


def _by_partner(seen: PairCells, named: Sequence[str]) -> Shown:
    """Draw the worst of the named nodes as rows and their partners as columns, as many as fit."""
    rows = _by_rack(seen.pairs, named[:_NAMED])
    # Each partner's worst measurement with one of the rows: the columns that fit are those with the worst.
    met = {
        other: min(badness(seen.of(node, other)) for node in seen.met[other] if node in rows)
        for node in rows
        for other in seen.met[node]
    }
    order = seen.pairs.fleet.order
    fitting = sorted(met, key=lambda node: (met[node], order[node]))[:_MOST]
    columns = _by_rack(seen.pairs, fitting)
    place = {node: number for number, node in enumerate(columns)}
    within = {(node, other) for node in rows for other in seen.met[node] if other in place}
    cells = {(rows.index(node), place[other]): seen.of(node, other) for node, other in within}
    pairs = {seen.pair(node, other) for node, other in within}
    drawn = HeatMap(
        _title(seen), rows, cells, _groups(seen, rows), columns, _groups(seen, columns), _loud(seen),
        own="the node itself", largest=32, alt=seen.alt(f"{many(len(rows), 'node')} and others", pairs),
    )  # fmt: skip
    words = f"The nodes that stand out ({len(rows):,} of {len(named):,}), a row each"
    words += f", by those they were measured with ({len(columns):,} of {len(met):,})."
    words += f" Of {many(len(order), 'node')} the others are in the map of racks only."
    return Shown(draw([drawn], seen.scale()), words)


def _named(seen: PairCells) -> list[str]:
    """Return the nodes with a finding, worst first, or else the nodes with a bad pair."""

    def bad(node: str) -> int:
        return sum(seen.of(node, other).mark in BAD for other in seen.met[node])

    order = seen.pairs.fleet.order
    named = [node for node in order if seen.verdicts.get(node) in LOUD and seen.met[node]]
    named = named or [node for node in order if bad(node)]
    worse = {node: LOUD.index(v) for node, v in seen.verdicts.items() if v in LOUD}
    return sorted(named, key=lambda node: (worse.get(node, len(LOUD)), -bad(node), order[node]))


def _title(seen: PairCells) -> str:
    return f"{seen.pairs.check}, {one_line(seen.pairs.unit, 20)}"


def _loud(seen: PairCells) -> dict[str, Verdict]:
    return {node: verdict for node, verdict in seen.verdicts.items() if verdict in LOUD}


def _groups(seen: PairCells, nodes: Sequence[str]) -> list[Group]:
    """Group adjacent nodes of a rack; empty if no rack is known and all nodes took part."""
    racks = seen.pairs.fleet.racks

    def rack(node: str) -> str:
        return _ABSENT if node in seen.pairs.left_out else racks.get(node, "")

    runs = [(name, len(list(each))) for name, each in groupby(nodes, rack)]
    if len(runs) == 1 and not runs[0][0]:
        return []
    return [(f"✗ {name}" if seen.stands_out(name) else name or _NO_RACK, size) for name, size in runs]


def _racks(seen: PairCells, racks: Sequence[str]) -> Shown:
    place = {rack: number for number, rack in enumerate(racks)}
    of = seen.pairs.fleet.racks
    cells_by_place: dict[tuple[int, int], list[Cell]] = defaultdict(list)
    within = [pair for pair in seen.cells if pair[0] in of and pair[1] in of]
    for pair in within:
        one, other = (place[of[node]] for node in pair)
        for at in {(one, other), (other, one)}:  # a set, since within a rack both are the same cell
            cells_by_place[at].append(seen.cells[pair])
    cells = {}
    for at, each in cells_by_place.items():
        bad = sum(cell.mark in BAD for cell in each)
        cells[at] = Cell(worst(each).share, f"{bad} of {len(each)}" if bad else "", worst(each).mark)
    named = {rack: Verdict.FAIL for rack in racks if seen.stands_out(rack)}
    alt = seen.alt(many(len(racks), "rack"), within)
    drawn = HeatMap(f"{seen.pairs.check}, rack by rack", racks, cells, named=named, largest=35, alt=alt)
    scale = seen.scale("the worst measurement of all pairs of two racks")
    words = (
        "The diagonal has the pairs within a rack. A bad leaf slows all of its row, those included; a bad "
    )
    words += "uplink only the rest of it; a bad node a few cells of it."
    return Shown(draw([drawn], scale), words)


# --- one check's measurements as cells, and the nodes its findings name


BAD = (Mark.HANG, Mark.ERROR, Mark.FAIL)
LOUD = (Verdict.FAIL, Verdict.ERROR, Verdict.WARN)
_RANK = (*BAD, Mark.UNKNOWN, Mark.UNSTEADY, Mark.NONE)  # worst first, for `badness`
_EXPECTED, _USUAL = (1.0, 0.9, 0.75, 0.5), (0.9, 0.8, 0.65, 0.5)  # 10 %: pairs/judge.py, TOLERANCE
_BROKE = {Outcome.HANG: Mark.HANG, Outcome.ERROR: Mark.ERROR}
_LEAVES = ("leaf", "uplink", "some uplinks")  # terms of suspects.device for parts shared by a rack

Pair = tuple[str, str]  # in the order of the inventory


class PairCells:
    """One check's cells: `cells` has each pair's worst result, `met` the partners of each node."""

    def __init__(self, fleet: FleetHealth, pairs: Pairs) -> None:
        self.pairs = pairs
        self.verdicts = {
            node.node: check.verdict
            for node in fleet.nodes
            for check in node.checks
            if check.check == pairs.check and (pairs.fabric is None or node.node in pairs.fleet.order)
        }
        self.verdicts |= dict.fromkeys(pairs.left_out, Verdict.ERROR)
        fabric = fleet.fabric if pairs.fabric is None else pairs.fabric
        self._fabric = [finding for finding in fabric if finding.check == pairs.check]
        judged = judge(
            pairs.fleet, pairs.results, tolerance=pairs.tolerance, direction=pairs.direction
        ).judged
        self._judged: Mapping[Result, Judged] = {one.result: one for one in judged}
        measured = [one.result for one in judged if one.result.outcome is Outcome.MEASURED]
        # A map has one scale of colours: shares of expected values only if every measured result has one.
        self._expected = all(result.expected is not None for result in measured)
        self._values = sorted(result.value or 0.0 for result in measured)
        self._middle = statistics.median(self._values) if self._values else 0.0
        results: dict[Pair, list[Result]] = defaultdict(list)
        # A cell is of two nodes; results of larger groups have none.
        for result in pairs.results:
            if len(set(result.nodes)) == 2 and all(node in pairs.fleet.order for node in result.nodes):
                results[self.pair(*result.nodes)].append(result)
        self.cells = {pair: worst(self._cells(each)) for pair, each in results.items()}
        self.measured = {pair for pair, each in results.items() if any(self._counts(one) for one in each)}
        self.met: dict[str, list[str]] = defaultdict(list)
        for one, other in self.cells:
            self.met[one].append(other)
            self.met[other].append(one)

    def pair(self, one: str, other: str) -> Pair:
        """Order two nodes as in the keys of `cells`."""
        order = self.pairs.fleet.order
        return (one, other) if order[one] < order[other] else (other, one)

    def of(self, one: str, other: str) -> Cell:
        """Return the cell of two nodes that were measured together."""
        return self.cells[self.pair(one, other)]

    def _counts(self, result: Result) -> bool:
        return result in self._judged and result.outcome is not Outcome.NOT_RUN

    def _cells(self, results: Sequence[Result]) -> Iterator[Cell]:
        """Yield a cell for each result of one pair, that is, each rail and each repetition."""
        good = {r.rail for r in results if r in self._judged and self._judged[r].grade is Grade.OK}
        for result in results:
            if not self._counts(result):
                yield Cell(None, mark=Mark.UNKNOWN)
                continue
            judged = self._judged[result]
            mark = _BROKE.get(result.outcome, Mark.FAIL if judged.grade is Grade.BAD else Mark.NONE)
            if mark and result.rail in good:
                mark = Mark.UNSTEADY  # the same rail was good in another round
            yield Cell(self._share(judged), "" if result.value is None else digits(result.value), mark)

    def _share(self, judged: Judged) -> float | None:
        value = judged.result.value
        reference = judged.result.expected if self._expected else (judged.usual or self._middle)
        if value is None or value <= 0 or not reference:
            return None
        # More is better in both: a latency of twice its reference has the share 0.5.
        return value / reference if self.pairs.direction == "at_least" else reference / value

    def scale(self, cell: str = "a pair's worst measurement, of its rails and rounds") -> Scale:
        """Return the meaning of colours and marks; `cell`: the content of a cell."""
        most = self.pairs.direction == "at_most"
        limit = f"the {'most' if most else 'least'} that is expected" if self._expected else "what is usual"
        says = f"{limit} as a share of {cell}" if most else f"{cell}, as a share of {limit}"
        words = {
            Mark.FAIL: "too slow", Mark.HANG: "hangs", Mark.ERROR: "ends with an error",
            Mark.UNSTEADY: "bad once, good when repeated", Mark.UNKNOWN: "was to be measured, and was not",
            Mark.NONE: "not measured",
        }  # fmt: skip
        return Scale(f"Colour: {says}", _EXPECTED if self._expected else _USUAL, words)

    def to_blame(self) -> Iterator[str]:
        """Yield the culprits named by findings: first parts of the network, then failing nodes."""
        # `suspects` is no part of the network; the message of such a finding lists the possible parts.
        for finding in self._fabric:
            yield one_line(finding.message if finding.device == "suspects" else finding.device, 600)
        if failed := [node for node, verdict in self.verdicts.items() if verdict is Verdict.FAIL]:
            yield fold(failed, 300)

    def stands_out(self, rack: str) -> bool:
        """Return whether a finding names a part that this rack's nodes share."""
        named = {f"{part} of rack {one_line(rack, 80)}" for part in _LEAVES}
        # A part may be limited to one rail, as `gpu-03/rail 2` is; its rack stands out all the same.
        return any(finding.device.partition("/rail ")[0] in named for finding in self._fabric)

    def alt(self, what: str, pairs: Iterable[Pair]) -> str:
        """Describe a map of these pairs in a sentence: their number, and bad pairs, worst first."""
        drawn = [pair for pair in pairs if pair in self.measured]
        bad = [pair for pair in drawn if self.cells[pair].mark in BAD]
        bad.sort(
            key=lambda pair: (badness(self.cells[pair]), pair)
        )  # makes the text independent of the order of `pairs`
        unit = one_line(self.pairs.unit, 20)
        description = f"{self.pairs.check} between {what}: {many(len(drawn), 'pair')} measured"
        if self._values:
            description += f", {quantity(self._values[0])} to {quantity(self._values[-1])} {unit} in all"
        for one, other in bad[:8]:
            cell = self.cells[one, other]
            how = {Mark.HANG: "hang", Mark.ERROR: "error"}.get(cell.mark, f"{cell.text} {unit}")
            description += f"; {cell.mark} {one_line(one, 60)} and {one_line(other, 60)}: {how}"
        return description + (f"; and {len(bad) - 8:,} more bad pairs" if len(bad) > 8 else "")


def badness(cell: Cell) -> tuple[int, float]:
    """Return a sort key for cells, the worst first."""
    return _RANK.index(cell.mark), cell.share if cell.share is not None else 0.0  # None: worst of its mark


def worst(cells: Iterable[Cell]) -> Cell:
    return min(cells, key=badness)
