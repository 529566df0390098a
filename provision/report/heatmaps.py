"""Heat maps of pairs as one SVG (pure): slow, broken and unknown ones.

See `canvas` for colours and marks, `peer_maps` and `pair_maps` for what is drawn.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.checks.judge import Verdict
from provision.report.canvas import (
    DPI,
    INK,
    LETTER,
    LINE,
    QUIET,
    SELF,
    SOFT,
    TONE,
    Axes,
    Cell,
    Image,
    Mark,
    Scale,
    boxes,
    canvas,
    draw_legend,
    ink,
    legend,
    look,
    svg,
)
from provision.text import one_line

LARGEST = 72  # names along a map: more are no longer told apart by eye
_ROOMY = 20  # up to so many, a cell's value is written in it
_LABEL = 30  # letters of a name
_SIDE = 9.4  # inches of a map's side at most
_NARROWEST = 6.6  # inches of an image: a legend's line
_SIGN = {Verdict.FAIL: Mark.FAIL, Verdict.ERROR: Mark.UNKNOWN, Verdict.WARN: Mark.WARN}

Group = tuple[str, int]  # the name of so many neighbours


@dataclass(frozen=True)
class HeatMap:
    """`names`: of the rows, and of the columns if `across` has no others. `cells`: by row and column, none
    where nothing was asked. `groups`: of the rows, told apart by a line (`beside`: of the columns `across`).
    `named`: name → verdict of those that stand out. `own`: what the cell of something with itself is, "" when
    it is a cell like any other. `directed`: from the row to the column. `largest`: inches of a cell at most.
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
    largest: float = 0.44

    @property
    def columns(self) -> Sequence[str]:
        return self.across or self.names


def draw(maps: Sequence[HeatMap], scale: Scale, alt: str) -> Image:
    """The maps side by side, with one legend. Raises ValueError without a map, or for one too large."""
    if not maps or any(not 0 < len(names) <= LARGEST for one in maps for names in (one.names, one.columns)):
        raise ValueError(f"a heat map takes 1 to {LARGEST} names")
    panels = [_Panel(one) for one in maps]
    width = _points(max(sum(panel.width for panel in panels), _NARROWEST))
    cells = [cell for one in maps for cell in one.cells.values()]
    foot = legend(cells, scale, next((one.own for one in maps if one.own), ""), width)
    height = _points(max(panel.height for panel in panels) + foot.height)
    with canvas(width, height) as figure:
        left = 0.0
        for panel in panels:
            at = ((left + panel.left) / width, 1 - (panel.top + panel.tall) / height)
            axes = figure.add_axes((*at, panel.wide / width, panel.tall / height))
            _draw(axes, panel, scale)
            left += panel.width
        draw_legend(figure, foot, width, height)
        source = svg(figure)
    return Image(source, alt, round(width * DPI), round(height * DPI))


class _Panel:
    """A map's measures, in inches."""

    def __init__(self, drawn: HeatMap) -> None:
        self.drawn = drawn
        count = max(len(drawn.names), len(drawn.columns))
        self.cell = math.floor(min(drawn.largest, _SIDE / count) * 144) / 144  # half points: short numbers
        self.wide, self.tall = self.cell * len(drawn.columns), self.cell * len(drawn.names)
        self.size = max(5.6, min(8.0, self.cell * 46))  # points of a name
        beside, above = (self._longest(names) for names in (drawn.names, drawn.columns))
        self.upright = above - 0.08 > self.cell
        self.left = _points(beside + (0.26 if drawn.directed else 0.12))
        self.top = _points(0.34 + (above if self.upright else 0.2) + (0.2 if drawn.directed else 0.0))
        right = max((len(shortened(name)) for name, _ in drawn.groups), default=0) * 8 * LETTER
        below = max((len(shortened(name)) for name, _ in drawn.beside), default=0) * 8 * LETTER
        self.width = _points(self.left + self.wide + (0.2 + right if right else 0.16))
        self.height = self.top + self.tall + (0.1 + below if below else 0.0)

    def _longest(self, names: Iterable[str]) -> float:
        return max(len(label(name, self.drawn)) for name in names) * self.size * LETTER + 0.1


def _points(inches: float) -> float:
    """Rounded up to whole points, for an image of many boxes is as large as its numbers are long."""
    return math.ceil(inches * 72) / 72


def shortened(name: str) -> str:
    """A name as long as there is room for, its end kept: that is where names differ."""
    name = one_line(name, 200)
    return name if len(name) <= _LABEL else f"{name[: _LABEL // 2]}…{name[-_LABEL // 2 + 1 :]}"


def label(name: str, drawn: HeatMap) -> str:
    """A name with the mark of its verdict."""
    sign = _SIGN.get(drawn.named[name], Mark.NONE) if name in drawn.named else Mark.NONE
    return f"{sign} {shortened(name)}".lstrip()


def _draw(axes: Axes, panel: _Panel, scale: Scale) -> None:
    drawn = panel.drawn
    axes.set_xlim(0, len(drawn.columns))
    axes.set_ylim(len(drawn.names), 0)
    axes.axis("off")
    _fill(axes, drawn, scale)
    _frame(axes, panel)
    _names(axes, panel)
    roomy = max(len(drawn.names), len(drawn.columns)) <= _ROOMY
    for (row, column), cell in sorted(drawn.cells.items()):
        if roomy or cell.mark is not Mark.FAIL:
            _write(
                axes, panel, (column + 0.5, row + 0.5), cell, scale, one_line(cell.text, 12) if roomy else ""
            )
    if not roomy:
        _crosses(axes, panel, scale)


def _fill(axes: Axes, drawn: HeatMap, scale: Scale) -> None:
    """The cells, those of one look at once."""
    places: dict[tuple[tuple[str, Any], ...], list[tuple[float, float]]] = defaultdict(list)
    for (row, column), cell in sorted(drawn.cells.items()):
        places[look(cell, scale)].append((column, row))
    if drawn.own:
        place = {name: column for column, name in enumerate(drawn.columns)}
        both = [(place[name], row) for row, name in enumerate(drawn.names) if name in place]
        boxes(axes, [(x, y) for x, y in both if (y, x) not in drawn.cells], facecolor=SELF, linewidth=0)
    for shown, corners in sorted(places.items(), key=str):
        boxes(axes, corners, **dict(shown))


def _frame(axes: Axes, panel: _Panel) -> None:
    """Fine lines between cells, and strong ones between groups with the groups' names."""
    drawn, right, bottom = panel.drawn, len(panel.drawn.columns), len(panel.drawn.names)
    few = max(right, bottom) <= _ROOMY
    fine = {"color": LINE, "linewidth": 0.5 if few else 0.25, "zorder": 0.5}
    _rule(axes, range(1, bottom), right, upright=False, **fine)
    _rule(axes, range(1, right), bottom, upright=True, **fine)
    strong = {"color": INK if few else SOFT, "linewidth": 1.0 if few else 0.6}
    columns = drawn.beside if drawn.across else drawn.groups
    _rule(axes, list(_ends(drawn.groups))[:-1], right, upright=False, **strong)
    _rule(axes, list(_ends(columns))[:-1], bottom, upright=True, **strong)
    axes.plot([0, right, right, 0, 0], [0, 0, bottom, bottom, 0], color=QUIET, linewidth=0.9, clip_on=False)
    gap, words = 0.08 / panel.cell, {"size": 8, "color": SOFT}
    for (name, size), end in zip(drawn.groups, _ends(drawn.groups), strict=True):
        axes.text(right + gap, end - size / 2, shortened(name), va="center", ha="left", **words)  # type: ignore[arg-type]
    for (name, size), end in zip(drawn.beside, _ends(drawn.beside), strict=True):
        axes.text(end - size / 2, bottom + gap, shortened(name), rotation=90, va="top", ha="center", **words)  # type: ignore[arg-type]


def _ends(groups: Iterable[Group]) -> Iterator[int]:
    at = 0
    for _, size in groups:
        at += size
        yield at


def _rule(axes: Axes, places: Iterable[int], length: int, *, upright: bool, **look: Any) -> None:
    """Lines over the whole map, as one."""
    at = [x for place in places for x in (place, place, None)]
    along = [x for _ in at[::3] for x in (0, length, None)]
    if at:
        x, y = (at, along) if upright else (along, at)
        axes.plot(x, y, **look)  # type: ignore[arg-type]


def _names(axes: Axes, panel: _Panel) -> None:
    drawn, gap = panel.drawn, 0.06 / panel.cell
    turned: Any = {"rotation": 90} if panel.upright else {}
    for row, name in enumerate(drawn.names):
        axes.text(-gap, row + 0.5, label(name, drawn), ha="right", va="center", **_type(panel, name))
    for column, name in enumerate(drawn.columns):
        text = label(name, drawn)
        axes.text(column + 0.5, -gap, text, ha="center", va="bottom", **turned, **_type(panel, name))
    top = -(panel.top - 0.1) / panel.cell
    axes.text(
        -panel.left / panel.cell + 0.1, top, one_line(drawn.title, 80), size=9.5, weight="bold", va="top"
    )
    if drawn.directed:
        words: Any = {"size": 8, "color": SOFT, "ha": "center"}
        axes.text(len(drawn.columns) / 2, -(panel.top - 0.32) / panel.cell, "to", va="top", **words)
        middle = -(panel.left - 0.14) / panel.cell
        axes.text(middle, len(drawn.names) / 2, "from", rotation=90, va="center", **words)


def _type(panel: _Panel, name: str) -> dict[str, Any]:
    """How a name is written: louder where it stands out."""
    verdict = panel.drawn.named.get(name)
    if verdict not in _SIGN:
        return {"size": panel.size, "color": SOFT}
    return {"size": panel.size, "color": TONE[verdict], "weight": "bold"}


def _write(axes: Axes, panel: _Panel, at: tuple[float, float], cell: Cell, scale: Scale, number: str) -> None:
    """A cell's mark, and its number below."""
    text = "\n".join(part for part in (str(cell.mark), number) if part)
    if text:
        size = 7.4 if number else max(5.6, min(9.0, panel.cell * 42))
        axes.text(*at, text, size=size, color=ink(cell, scale), ha="center", va="center", linespacing=1.0,
                  weight="bold" if cell.mark else "normal")  # fmt: skip


def _crosses(axes: Axes, panel: _Panel, scale: Scale) -> None:
    """The marks of failed cells as one path of each colour: there may be thousands."""
    strokes: dict[str, tuple[list[float | None], list[float | None]]] = defaultdict(lambda: ([], []))
    for (row, column), cell in sorted(panel.drawn.cells.items()):
        if cell.mark is Mark.FAIL:
            x, y = strokes[ink(cell, scale)]
            x += [column + 0.25, column + 0.75, None, column + 0.25, column + 0.75, None]
            y += [row + 0.25, row + 0.75, None, row + 0.75, row + 0.25, None]
    for colour, (x, y) in sorted(strokes.items()):
        axes.plot(x, y, color=colour, linewidth=1.1)  # type: ignore[arg-type]
