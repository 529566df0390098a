"""One check's measurements between nodes as cells of a heat map, and the nodes its findings name (pure)."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from provision.checks.health import FleetHealth
from provision.checks.judge import Verdict
from provision.checks.pairs.judge import Grade, Judged, judge
from provision.checks.pairs.results import Outcome, Result
from provision.node_names import fold
from provision.report.context import Pairs
from provision.report.heat_scale import Cell, Mark, Scale, digits
from provision.text import many, one_line, quantity

BAD = (Mark.HANG, Mark.ERROR, Mark.FAIL)
LOUD = (Verdict.FAIL, Verdict.ERROR, Verdict.WARN)
_RANK = (*BAD, Mark.UNKNOWN, Mark.UNSTEADY, Mark.NONE)
_EXPECTED, _USUAL = (1.0, 0.9, 0.75, 0.5), (0.9, 0.8, 0.65, 0.5)  # 10 %: pairs/judge.py, TOLERANCE
_BROKE = {Outcome.HANG: Mark.HANG, Outcome.ERROR: Mark.ERROR}
_LEAVES = ("leaf", "uplink", "some uplinks")  # as suspects.device calls what a rack shares

Pair = tuple[str, str]  # in the order of the inventory


class PairCells:
    """`cells`: of each pair that was to be measured, the worst of its results; `met`: node → with whom."""

    def __init__(self, fleet: FleetHealth, pairs: Pairs) -> None:
        self.pairs = pairs
        self.verdicts = {
            node.node: check.verdict
            for node in fleet.nodes
            for check in node.checks
            if check.check == pairs.check
        }
        self.verdicts |= dict.fromkeys(pairs.left_out, Verdict.ERROR)
        self._fabric = [finding for finding in fleet.fabric if finding.check == pairs.check]
        judged = judge(
            pairs.fleet, pairs.results, tolerance=pairs.tolerance, direction=pairs.direction
        ).judged
        self._judged: Mapping[Result, Judged] = {one.result: one for one in judged}
        measured = [one.result for one in judged if one.result.outcome is Outcome.MEASURED]
        self._expected = all(result.expected is not None for result in measured)
        self._values = sorted(result.value or 0.0 for result in measured)
        self._middle = statistics.median(self._values) if self._values else 0.0
        results: dict[Pair, list[Result]] = defaultdict(list)
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
        """Two nodes as `cells` has them."""
        order = self.pairs.fleet.order
        return (one, other) if order[one] < order[other] else (other, one)

    def of(self, one: str, other: str) -> Cell:
        """The cell of two nodes that met."""
        return self.cells[self.pair(one, other)]

    def _counts(self, result: Result) -> bool:
        return result in self._judged and result.outcome is not Outcome.NOT_RUN

    def _cells(self, results: Sequence[Result]) -> Iterator[Cell]:
        """Of one pair, a cell for each result: each rail, each time."""
        good = {r.rail for r in results if r in self._judged and self._judged[r].grade is Grade.OK}
        for result in results:
            if not self._counts(result):
                yield Cell(None, mark=Mark.UNKNOWN)
                continue
            judged = self._judged[result]
            mark = _BROKE.get(result.outcome, Mark.FAIL if judged.grade is Grade.BAD else Mark.NONE)
            if mark and result.rail in good:
                mark = Mark.UNSTEADY
            yield Cell(self._share(judged), "" if result.value is None else digits(result.value), mark)

    def _share(self, judged: Judged) -> float | None:
        value = judged.result.value
        reference = judged.result.expected if self._expected else (judged.usual or self._middle)
        if value is None or value <= 0 or not reference:
            return None
        return value / reference if self.pairs.direction == "at_least" else reference / value

    def scale(self, cell: str = "a pair's worst measurement, of its rails and rounds") -> Scale:
        """What colours and marks mean; `cell`: what a cell shows."""
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
        """Whom the findings name: what lies between the nodes, then the nodes that fail."""
        for finding in self._fabric:
            yield one_line(finding.message if finding.device == "suspects" else finding.device, 600)
        if failed := [node for node, verdict in self.verdicts.items() if verdict is Verdict.FAIL]:
            yield fold(failed, 300)

    def stands_out(self, rack: str) -> bool:
        """Whether a finding names what this rack's nodes share."""
        named = {f"{part} of rack {one_line(rack, 80)}" for part in _LEAVES}
        return any(finding.device.partition("/rail ")[0] in named for finding in self._fabric)

    def alt(self, what: str, pairs: Iterable[Pair]) -> str:
        """A map of these pairs in words: how much was measured, and what is bad, worst first."""
        drawn = [pair for pair in pairs if pair in self.measured]
        bad = sorted((p for p in drawn if self.cells[p].mark in BAD), key=lambda p: badness(self.cells[p]))
        unit = one_line(self.pairs.unit, 20)
        told = f"{self.pairs.check} between {what}: {many(len(drawn), 'pair')} measured"
        if self._values:
            told += f", {quantity(self._values[0])} to {quantity(self._values[-1])} {unit} in all"
        for one, other in bad[:8]:
            cell = self.cells[one, other]
            how = {Mark.HANG: "hang", Mark.ERROR: "error"}.get(cell.mark, f"{cell.text} {unit}")
            told += f"; {cell.mark} {one_line(one, 60)} and {one_line(other, 60)}: {how}"
        return told + (f"; and {len(bad) - 8:,} more bad pairs" if len(bad) > 8 else "")


def badness(cell: Cell) -> tuple[int, float]:
    """A cell's place among others, the worst first."""
    return _RANK.index(cell.mark), cell.share if cell.share is not None else 0.0


def worst(cells: Iterable[Cell]) -> Cell:
    return min(cells, key=badness)
