"""The base of every chart in a report: matplotlib with gpuprov's style, and SVG as data for an <img>.

The same numbers give the same bytes. An image cannot run, load or link anything, whatever text of a node is
in it. Colours are near Okabe and Ito's, which the colour-blind tell apart; none stands without a mark, a line
or a word.
"""

from __future__ import annotations

import base64
import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells users of its fonts and its cache
os.environ.pop("MPLBACKEND", None)  # meant for somebody's screen; one it does not know would stop it

import matplotlib  # noqa: E402
from matplotlib.axes import Axes as Axes  # noqa: E402
from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: E402
from matplotlib.figure import Figure as Figure  # noqa: E402
from matplotlib.patches import PathPatch  # noqa: E402
from matplotlib.path import Path  # noqa: E402
from matplotlib.ticker import MaxNLocator as MaxNLocator  # noqa: E402

from provision.checks.judge import Verdict  # noqa: E402

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
