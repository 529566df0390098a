"""Heat maps of pairs as SVG (pure): slow, broken and unknown ones.

A cell's colour is the share of its reference value, in steps; worse steps contrast more with the page, so
that they also show in grey. Faults have an additional mark, and missing measurements are hatched. `peer_maps`
and `pair_maps` select the content.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from provision.checks.judge import Verdict
from provision.report.canvas import LETTER, Image, short, svg, text, tone
from provision.text import one_line

LARGEST = 72  # names along a map; the eye cannot distinguish more
_ROOMY = 20  # up to this many names, a cell shows its value
_NAME = 30  # letters per name
_SIDE = 900  # maximum side of a map in pixels
_SIGN = {Verdict.FAIL: "✗", Verdict.ERROR: "?", Verdict.WARN: "!"}

Group = tuple[str, int]  # name and number of adjacent members


class Mark(enum.StrEnum):
    """Mark of a cell in addition to its colour."""

    NONE = ""
    FAIL = "✗"
    WARN = "!"
    UNSTEADY = "~"
    HANG = "H"
    ERROR = "E"
    UNKNOWN = "?"


@dataclass(frozen=True)
class Cell:
    """A cell. `share`: of its reference value, more is better, None without a number.
    `text`: the number, or a count."""

    share: float | None
    text: str = ""
    mark: Mark = Mark.NONE


@dataclass(frozen=True)
class Scale:
    """Meaning of a cell's colour (`says`) and of each mark (`words`; Mark.NONE: a blank cell).

    `steps`: shares below which a worse colour begins, the best first."""

    says: str
    steps: tuple[float, float, float, float]
    words: Mapping[Mark, str]


@dataclass(frozen=True)
class HeatMap:
    """A heat map.

    `names`: of the rows, and of the columns unless `across` has others. `cells`: by row and column, absent if
    nothing was requested. `groups`: of the rows, separated by a line (`beside`: of the columns `across`).
    `named`: name → verdict of highlighted ones. `own`: meaning of the diagonal, "" if it has ordinary cells.
    `directed`: from row to column. `largest`: maximum cell size in pixels. `alt`: the map in words.
    """

    title: str
    names: Sequence[str]
    cells: Mapping[tuple[int, int], Cell]
    groups: Sequence[Group] = ()
    across: Sequence[str] = ()
    beside: Sequence[Group] = ()
    named: Mapping[str, Verdict] = field(default_factory=dict)
    own: str = ""
    directed: bool = False
    largest: int = 42
    alt: str = ""

    @property
    def columns(self) -> Sequence[str]:
        return self.across or self.names


@dataclass(frozen=True)
class Entry:
    """A line of the legend: a cell's class and mark with their meaning."""

    look: str
    mark: Mark
    words: str


@dataclass(frozen=True)
class Drawn:
    """Maps with their titles and shared legend: `says` and its entries."""

    maps: tuple[tuple[str, Image], ...]
    says: str
    legend: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """Total number of characters of all maps."""
        return sum(len(image.source) for _, image in self.maps)


def draw(maps: Sequence[HeatMap], scale: Scale) -> Drawn:
    """Draw the maps for display next to each other. Raises ValueError for none or too large a map."""
    if not maps or any(not 0 < len(names) <= LARGEST for one in maps for names in (one.names, one.columns)):
        raise ValueError(f"a heat map takes 1 to {LARGEST} names")
    used = {cell.mark for one in maps for cell in one.cells.values()}
    own = next((one.own for one in maps if one.own), "")
    images = tuple((one_line(one.title, 80), _Map(one, scale).image()) for one in maps)
    return Drawn(images, scale.says, tuple(_legend(used, scale, own)))


# --- look of a cell: the class of its colour, and its text


_STEPS = ("s0", "s1", "s2", "s3", "s4")  # better ones first
_BROKEN, _UNKNOWN, _SELF, _BLANK = "broken", "unknown", "self", "blank"
_BREAKS = (Mark.HANG, Mark.ERROR)


def digits(value: float) -> str:
    """Format a number to fit a cell: 394, 61.3, 1.87."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def look(cell: Cell, scale: Scale) -> str:
    if cell.mark in _BREAKS:
        return _BROKEN
    if cell.share is None:
        return _UNKNOWN
    return _STEPS[sum(cell.share < step for step in scale.steps)]


def _legend(used: set[Mark], scale: Scale, own: str) -> Iterator[Entry]:
    """Yield the legend: every colour, and the marks in use."""
    shown = [f"{step * 100:g}" for step in scale.steps]
    between = [f"{low} to {high} %" for high, low in pairwise(shown)]
    for step, words in zip(_STEPS, (f"{shown[0]} % or more", *between, f"below {shown[-1]} %"), strict=True):
        yield Entry(step, Mark.NONE, words)
    for mark, words in scale.words.items():
        if mark in used and mark is not Mark.NONE:
            yield Entry(
                {Mark.UNKNOWN: _UNKNOWN, **dict.fromkeys(_BREAKS, _BROKEN)}.get(mark, _BLANK), mark, words
            )
    if blank := scale.words.get(Mark.NONE):
        yield Entry(_BLANK, Mark.NONE, blank)
    if own:
        yield Entry(_SELF, Mark.NONE, own)


# --- a map


class _Map:
    """A map's dimensions in pixels, large enough to read its names; the page scrolls if needed."""

    def __init__(self, drawn: HeatMap, scale: Scale) -> None:
        self.drawn, self.scale = drawn, scale
        self.rows, self.columns = len(drawn.names), len(drawn.columns)
        count = max(self.rows, self.columns)
        self.roomy = count <= _ROOMY
        self.cell = min(drawn.largest, _SIDE // count)
        self.size = max(9, min(11, self.cell - 3))
        beside, above = (self._longest(names) for names in (drawn.names, drawn.columns))
        self.upright = above > self.cell - 2
        self.left = beside + 8 + 18 * drawn.directed
        self.top = (above if self.upright else self.size) + 8 + 16 * drawn.directed
        self.right, self.bottom = self.left + self.columns * self.cell, self.top + self.rows * self.cell
        self.width = self.right + (
            10 + self._longest(name for name, _ in drawn.groups) if drawn.groups else 2
        )
        self.height = self.bottom + (
            10 + self._longest(name for name, _ in drawn.beside) if drawn.beside else 2
        )

    def _longest(self, names: Iterable[str]) -> int:
        return int(max(len(label(name, self.drawn)) for name in names) * self.size * LETTER) + 2

    def image(self) -> Image:
        kind = f"heat-map fs{self.size}"
        parts = [*self._cells(), *self._frame(), *self._names(), *self._marks()]
        return svg(parts, self.width, self.height, self.drawn.alt, kind)

    def _at(self, row: float, column: float) -> tuple[float, float]:
        """Return the x and y of a position."""
        return self.left + column * self.cell, self.top + row * self.cell

    def _cells(self) -> Iterator[str]:
        """Draw adjacent equal cells of a row as one dashed line as thick as a cell."""
        looks = {place: look(cell, self.scale) for place, cell in self.drawn.cells.items()}
        if self.drawn.own:
            at = {name: column for column, name in enumerate(self.drawn.columns)}
            own = [(row, at[name]) for row, name in enumerate(self.drawn.names) if name in at]
            looks = dict.fromkeys(own, _SELF) | looks
        runs: dict[str, list[str]] = defaultdict(list)
        for row, column, count in _runs(looks):
            x, y = self._at(row + 0.5, column)
            runs[looks[row, column]].append(f"M{short(x + 0.5)} {short(y)}h{count * self.cell}")
        yield f'<g class="cells" stroke-width="{self.cell - 1}" stroke-dasharray="{self.cell - 1} 1">'
        for kind, strokes in sorted(runs.items()):
            yield f'<path class="{kind}" d="{"".join(strokes)}"/>'
            if kind == _UNKNOWN:
                yield f'<path class="hatch" stroke-dasharray="1 3" d="{"".join(strokes)}"/>'
        yield "</g>"

    def _frame(self) -> Iterator[str]:
        """Draw a frame around the map, and lines and names for the groups."""
        drawn = self.drawn
        yield f'<path class="rule" d="{self._rules(range(1, self.rows), range(1, self.columns))}"/>'
        rows, columns = list(_ends(drawn.groups)), list(_ends(drawn.beside if drawn.across else drawn.groups))
        yield f'<path class="groups" d="{self._rules(rows[:-1], columns[:-1])}"/>'
        frame = f"M{self.left} {self.top}H{self.right}V{self.bottom}H{self.left}z"
        yield f'<path class="frame" d="{frame}"/>'
        for (name, size), end in zip(drawn.groups, rows, strict=True):
            yield text(shortened(name), self.right + 8, self._at(end - size / 2, 0)[1] + 4, "soft")
        for (name, size), end in zip(drawn.beside, _ends(drawn.beside), strict=True):
            yield self._turned(shortened(name), self._at(0, end - size / 2)[0], self.bottom + 8, "end soft")

    def _rules(self, rows: Iterable[int], columns: Iterable[int]) -> str:
        across = [f"M{self.left} {self.top + row * self.cell}H{self.right}" for row in rows]
        down = [f"M{self.left + column * self.cell} {self.top}V{self.bottom}" for column in columns]
        return "".join(across + down)

    def _names(self) -> Iterator[str]:
        drawn = self.drawn
        for row, name in enumerate(drawn.names):
            yield text(
                label(name, drawn), self.left - 6, self._at(row + 0.5, 0)[1] + 4, f"end {self._loud(name)}"
            )
        for column, name in enumerate(drawn.columns):
            x, y, words = self._at(0, column + 0.5)[0], self.top - 6, label(name, drawn)
            yield (
                self._turned(words, x, y, self._loud(name))
                if self.upright
                else text(words, x, y, f"mid {self._loud(name)}")
            )
        if drawn.directed:
            yield text("to", (self.left + self.right) / 2, 11, "mid soft")
            yield self._turned("from", 7, (self.top + self.bottom) / 2, "mid soft")

    def _turned(self, words: str, x: float, y: float, kind: str) -> str:
        """Draw words rotated to read upwards, centred on `x`."""
        return text(words, 0, 4, kind, f"translate({short(x)} {short(y)}) rotate(-90)")

    def _loud(self, name: str) -> str:
        verdict = self.drawn.named.get(name)
        return f"{tone(verdict)} loud" if verdict in _SIGN else "soft"

    def _marks(self) -> Iterator[str]:
        """Draw numbers, if cells have room, and marks; equal marks of a row share one text element."""
        marks: dict[tuple[float, str], list[tuple[float, Mark]]] = defaultdict(list)
        for (row, column), cell in sorted(self.drawn.cells.items()):
            number = one_line(cell.text, 12) if self.roomy else ""
            x, y = self._at(row + 0.5, column + 0.5)
            kind = f"{look(cell, self.scale)} in"
            if cell.mark:
                kind += " loud"
                marks[y - 2 if number else y + self.size / 2 - 1.5, kind].append((x, cell.mark))
            if number:
                yield text(number, x, y + (10 if cell.mark else 4), kind)
        for (y, kind), found in marks.items():
            yield text("".join(mark for _, mark in found), " ".join(short(x) for x, _ in found), y, kind)


def _runs(looks: Mapping[tuple[int, int], str]) -> Iterator[tuple[int, int, int]]:
    """Yield row, first column and length of each run of equal cells."""
    first: tuple[int, int] | None = None
    count = 0
    for place in sorted(looks):
        if first and place == (first[0], first[1] + count) and looks[place] == looks[first]:
            count += 1
            continue
        if first:
            yield (*first, count)
        first, count = place, 1
    if first:
        yield (*first, count)


def shortened(name: str) -> str:
    """Shorten a name in the middle, since the ends of names differ."""
    name = one_line(name, 200)
    return name if len(name) <= _NAME else f"{name[: _NAME // 2]}…{name[-_NAME // 2 + 1 :]}"


def label(name: str, drawn: HeatMap) -> str:
    """Return a name with the mark of its verdict."""
    sign = _SIGN.get(drawn.named[name], "") if name in drawn.named else ""
    return f"{sign} {shortened(name)}".lstrip()


def _ends(groups: Iterable[Group]) -> Iterator[int]:
    at = 0
    for _, size in groups:
        at += size
        yield at
