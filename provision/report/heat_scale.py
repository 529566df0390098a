"""The colours and marks of a heat map, with their legend (pure).

A cell's colour is its share of what it should be, in steps; the darker, the worse, so that it shows in grey
as well. What is wrong has a mark besides, and what was to be measured and was not is hatched.
"""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from provision.checks.judge import Verdict
from provision.report.canvas import INK, QUIET, SOFT, TONE, Figure, boxes

LETTER = 0.0088  # inches of a letter's width, by point of its size, at most; in a sentence it is less
SELF = "#f0f2f4"  # the cell of something with itself
LINE = 0.25  # inches of a legend's line
_GOOD = "#c6dcf0"  # then worse and worse
_WORSE = ("#fdd7a8", "#f79a58", "#d7481c", "#8c1408")
_BROKEN = "#171a1f"
_DARK = frozenset((*_WORSE[2:], _BROKEN))
_BOX = 0.23  # inches
_SIZE = 8.0  # points of the legend's words


class Mark(enum.StrEnum):
    """What a cell is besides its colour."""

    NONE = ""
    FAIL = "✗"
    WARN = "!"
    UNSTEADY = "~"
    HANG = "H"
    ERROR = "E"
    UNKNOWN = "?"


_BREAKS = (Mark.HANG, Mark.ERROR)


@dataclass(frozen=True)
class Cell:
    """`share`: of what it should be, the more the better; None when there is no number. `text`: the number,
    or how many."""

    share: float | None
    text: str = ""
    mark: Mark = Mark.NONE


@dataclass(frozen=True)
class Scale:
    """`says`: what a cell's colour is the share of; `steps`: where a worse colour begins, the best first;
    `words`: of each mark, and of Mark.NONE what a blank cell is."""

    says: str
    steps: tuple[float, float, float, float]
    words: Mapping[Mark, str]


def digits(value: float) -> str:
    """A number as there is room for in a cell: 394, 61.3, 1.87."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def look(cell: Cell, scale: Scale) -> tuple[tuple[str, Any], ...]:
    """How a cell's box is filled, for `canvas.boxes`."""
    if cell.mark in _BREAKS:
        return _plain(_BROKEN)
    if cell.share is None:
        return _HATCHED
    return _plain((_GOOD, *_WORSE)[sum(cell.share < step for step in scale.steps)])


def ink(cell: Cell, scale: Scale) -> str:
    """The colour of what is written in a cell."""
    shown = look(cell, scale)
    return TONE[Verdict.ERROR] if shown == _HATCHED else "white" if dict(shown)["facecolor"] in _DARK else INK


def _plain(colour: str, edge: str = "white") -> tuple[tuple[str, Any], ...]:
    return ("facecolor", colour), ("edgecolor", edge), ("linewidth", 0.7)


_HATCHED = (*_plain("white", TONE[Verdict.ERROR]), ("hatch", "////"))


class _Entry(NamedTuple):
    box: tuple[tuple[str, Any], ...]
    mark: Mark
    ink: str
    words: str

    @property
    def width(self) -> float:
        """Inches."""
        return 0.46 + len(self.words) * _SIZE * LETTER * 0.9


@dataclass(frozen=True)
class Legend:
    """`says` in lines, then the entries in lines, as many as fit the width."""

    says: Sequence[str]
    lines: Sequence[Sequence[_Entry]]

    @property
    def height(self) -> float:
        """Inches."""
        return 0.14 + LINE * (len(self.says) + len(self.lines))


def legend(cells: Iterable[Cell], scale: Scale, own: str, width: float) -> Legend:
    """The legend of these cells, `width` inches wide. `own`: what a grey cell is, "" where there is none."""
    room = width - 0.2
    lines: list[list[_Entry]] = [[]]
    for entry in _entries({cell.mark for cell in cells}, scale, own):
        if lines[-1] and sum(one.width for one in lines[-1]) + entry.width > room:
            lines.append([])
        lines[-1].append(entry)
    return Legend(textwrap.wrap(scale.says, max(40, int(room / (_SIZE * LETTER)))), lines)


def _entries(used: set[Mark], scale: Scale, own: str) -> Iterator[_Entry]:
    shown = [f"{step * 100:g}" for step in scale.steps]
    between = [f"{low} to {high} %" for high, low in pairwise(shown)]
    words = [f"{shown[0]} % or more", *between, f"below {shown[-1]} %"]
    for colour, said in zip((_GOOD, *_WORSE), words, strict=True):
        yield _Entry(_plain(colour, QUIET), Mark.NONE, INK, said)
    for mark, said in scale.words.items():
        if mark in used and mark is not Mark.NONE:
            cell = Cell(None if mark is Mark.UNKNOWN else 1.0, mark=mark)
            box = _plain("white", QUIET) if mark not in (*_BREAKS, Mark.UNKNOWN) else look(cell, scale)
            yield _Entry(box, mark, ink(cell, scale), said)
    if blank := scale.words.get(Mark.NONE):
        yield _Entry(_plain("white", QUIET), Mark.NONE, INK, blank)
    if own:
        yield _Entry(_plain(SELF, QUIET), Mark.NONE, INK, own)


def draw_legend(figure: Figure, shown: Legend, width: float, height: float) -> None:
    """Draw it along the lower edge of a figure of `width` by `height` inches."""
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width / _BOX)
    axes.set_ylim(0, height / _BOX)
    axes.axis("off")
    top = shown.height / _BOX - 1.4
    for number, line in enumerate(shown.says):
        axes.text(0.5, top - number * LINE / _BOX + 0.47, line, size=_SIZE, color=INK, va="center")
    for number, entries in enumerate(shown.lines, len(shown.says)):
        x, y = 0.5, top - number * LINE / _BOX
        for entry in entries:
            boxes(axes, [(x, y)], **dict(entry.box))
            axes.text(x + 0.5, y + 0.47, str(entry.mark), size=_SIZE, weight="bold", color=entry.ink,
                      ha="center", va="center")  # fmt: skip
            axes.text(x + 1.3, y + 0.47, entry.words, size=_SIZE, color=SOFT, va="center")
            x += entry.width / _BOX
