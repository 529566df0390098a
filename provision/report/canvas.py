"""The base of every chart in a report: matplotlib with gpuprov's style, and SVG as data for an <img>.

The same numbers give the same bytes. An image cannot run, load or link anything, whatever text of a node is
in it. Colours are near Okabe and Ito's, which the colour-blind tell apart; none stands without a mark, a line
or a word.
"""

from __future__ import annotations

import base64
import contextlib
import enum
import io
import logging
import os
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from provision.checks.judge import Verdict

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells users of its fonts and its cache
os.environ.pop("MPLBACKEND", None)  # meant for somebody's screen; one it does not know would stop it

import matplotlib  # noqa: E402
from matplotlib.axes import Axes as Axes  # noqa: E402
from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: E402
from matplotlib.figure import Figure as Figure  # noqa: E402
from matplotlib.patches import PathPatch  # noqa: E402
from matplotlib.path import Path  # noqa: E402
from matplotlib.ticker import MaxNLocator as MaxNLocator  # noqa: E402

INK, SOFT, QUIET, LINE, LIMIT = "#171a1f", "#4d5866", "#9aa5b1", "#d8dde4", "#0b57a8"
TONE = {Verdict.FAIL: "#c43c00", Verdict.ERROR: "#a0447c", Verdict.WARN: "#b37400", Verdict.SKIP: SOFT}
DPI = 96  # CSS pixels of an inch

# Names of devices and nodes are text, never formulas; text stays text, for searching and for the eye.
_STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "gpuprov", "text.parse_math": False, "text.usetex": False,
    "font.family": "sans-serif", "font.size": 9.0, "font.sans-serif": ["DejaVu Sans", "Arial", "sans-serif"],
    "text.color": INK, "axes.labelcolor": SOFT, "axes.edgecolor": LINE, "xtick.color": SOFT,
    "ytick.color": SOFT, "axes.spines.top": False, "axes.spines.right": False, "axes.unicode_minus": False,
    "axes.titlelocation": "left", "axes.titley": 1.04, "axes.titlesize": 9.0,
    "axes.titlecolor": INK, "path.simplify": True, "hatch.linewidth": 0.7,
}  # fmt: skip


@dataclass(frozen=True)
class Image:
    """`source`: a data URL; `alt`: what it shows in words; `width`, `height` in CSS pixels."""

    source: str
    alt: str
    width: int
    height: int


@contextlib.contextmanager
def canvas(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of so many inches, in our style alone: a style file of the user's changes nothing.

    What is drawn within is to be taken with `svg` within.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield Figure(figsize=(width, height))


def svg(figure: Figure) -> str:
    """The figure as a data URL."""
    written = io.BytesIO()
    FigureCanvasSVG(figure)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that its font lacks: the browser has another
        figure.savefig(written, format="svg", facecolor="white", metadata={"Date": None, "Creator": None})
    return "data:image/svg+xml;base64," + base64.b64encode(written.getvalue()).decode()


def boxes(axes: Axes, corners: Iterable[tuple[float, float]], **look: Any) -> None:
    """Boxes of size 1 at these corners (the lower x and y), all of one look, as a single small path."""
    points: list[tuple[float, float]] = []
    for x, y in corners:
        points += [(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1), (x, y)]
    if points:
        codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * (len(points) // 5)
        axes.add_patch(PathPatch(Path(points, codes), **look))


# --- the colours and marks of a heat map, with their legend. A cell's colour is its share of what it should
# be, in steps; the darker, the worse, so that it shows in grey as well. What is wrong has a mark besides,
# and what was to be measured and was not is hatched.


LETTER = 0.0088  # inches of a letter's width, by point of its size, at most; in a sentence it is less
SELF = "#f0f2f4"  # the cell of something with itself
LEGEND_LINE = 0.25  # inches of a legend's line
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
        return 0.14 + LEGEND_LINE * (len(self.says) + len(self.lines))


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
        axes.text(0.5, top - number * LEGEND_LINE / _BOX + 0.47, line, size=_SIZE, color=INK, va="center")
    for number, entries in enumerate(shown.lines, len(shown.says)):
        x, y = 0.5, top - number * LEGEND_LINE / _BOX
        for entry in entries:
            boxes(axes, [(x, y)], **dict(entry.box))
            axes.text(x + 0.5, y + 0.47, str(entry.mark), size=_SIZE, weight="bold", color=entry.ink,
                      ha="center", va="center")  # fmt: skip
            axes.text(x + 1.3, y + 0.47, entry.words, size=_SIZE, color=SOFT, va="center")
            x += entry.width / _BOX
