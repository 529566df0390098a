"""The base of every chart in a report: SVG that is part of the page.

A chart has the page's font, and its colours by class only (templates/style.css), so that it follows dark mode
and print. Whatever text of a node is in it passes `escaped`. The same numbers give the same bytes. Colours
are near Okabe and Ito's, which the colour-blind tell apart; none stands without a mark, a line or a word.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from provision.checks.judge import Verdict
from provision.text import clean

LETTER = 0.62  # width of a letter in parts of its size, at most; in a sentence it is less


@dataclass(frozen=True)
class Image:
    """`source`: an <svg> element; `alt`: what it shows in words, which is its label as well."""

    source: str
    alt: str


def svg(parts: Iterable[str], width: int, height: int, alt: str, kind: str) -> Image:
    """An image of CSS pixels. `kind`: its classes, by which the style sheet knows it."""
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return _image(parts, box, alt, kind)


def banner(parts: Iterable[str], height: int, alt: str, kind: str) -> Image:
    """An image as wide as there is room: its x are percent, its y CSS pixels."""
    return _image(parts, f'width="100%" height="{height}"', alt, kind)


def _image(parts: Iterable[str], size: str, alt: str, kind: str) -> Image:
    head = f'<svg class="{kind}" {size} role="img" aria-label="{escaped(alt)}">'
    return Image(f"{head}{''.join(parts)}</svg>", alt)


def escaped(text: str) -> str:
    """A text as markup, for between tags and for an attribute."""
    return html.escape(clean(text))


def text(words: str, x: float | str, y: float, kind: str = "", turn: str = "") -> str:
    """Words at a place; `x`: a number, or several, or percent. `kind`: classes; the style sheet has `mid` and
    `end` for words that have `x` there. `turn`: a transform."""
    at = x if isinstance(x, str) else short(x)
    more = f' class="{kind}"' if kind else ""
    more += f' transform="{turn}"' if turn else ""
    return f'<text x="{at}" y="{short(y)}"{more}>{escaped(words)}</text>'


def tone(verdict: Verdict | None) -> str:
    """The class that colours what has this verdict; "" for what has none."""
    return f"v-{verdict.value}" if verdict else ""


def short(value: float) -> str:
    """A coordinate: tenths of a pixel are finer than any screen."""
    return f"{round(value, 1):g}"


def percent(share: float) -> str:
    return f"{round(share * 100, 2):g}%"


def ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """At most `most` round numbers from `low` to `high`, evenly apart, as they are and as they are written.

    >>> ticks(58.2, 91, 5)
    [(60.0, '60'), (70.0, '70'), (80.0, '80'), (90.0, '90')]
    """
    if not low < high:
        return []
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (factor * power for factor in (1, 2, 2.5, 5, 10, 20, 25, 50)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            break
    plain = step > 1e-6 and max(abs(low), abs(high)) < 1e9
    places = len(f"{step:.8f}".rstrip("0").partition(".")[2])
    at = [n * step for n in range(first, last + 1)]
    return [(value, f"{value:,.{places}f}" if plain else f"{value:.4g}") for value in at]


def apart(wanted: Sequence[float], room: float, low: float, high: float) -> list[float]:
    """Where things go that want these places, in ascending order, and take `room` each: as near as can be,
    none over another, all from `low` to `high` if they fit."""
    found: list[float] = []
    for at in wanted:
        found.append(max(at, low, found[-1] + room if found else low))
    for number in reversed(range(len(found))):
        found[number] = min(found[number], high if number == len(found) - 1 else found[number + 1] - room)
    return found


def path(points: Iterable[tuple[float, float] | None]) -> str:
    """A line through these points, broken at each None, in whole units; one point alone is a dot."""
    return "".join(_steps(points))


def _steps(points: Iterable[tuple[float, float] | None]) -> Iterator[str]:
    """Relative, for a difference has fewer digits than a place."""
    x = y = 0
    points_of_line = 0
    for point in points:
        if point is None:
            if points_of_line == 1:
                yield "h0"
            points_of_line = 0
            continue
        before, (x, y) = (x, y), (round(point[0]), round(point[1]))
        if not points_of_line:
            yield f"M{x} {y}"
        else:
            letter = "l" if points_of_line == 1 else " "
            yield f"{letter}{x - before[0]} {y - before[1]}".replace(" -", "-")
        points_of_line += 1
    if points_of_line == 1:
        yield "h0"
