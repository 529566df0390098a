"""The base of every chart in a report: SVG that is part of the page.

A chart uses the page's font, and colours only by class (templates/style.css), so that it follows dark mode
and print. All text from nodes passes `escaped`. Output is reproducible. Colours are close to Okabe and Ito's
colour-blind-safe palette, and each comes with a mark, a line or a word.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from provision.checks.judge import Verdict
from provision.text import clean

LETTER = 0.62  # maximum width of a letter as a share of its size; sentences are narrower


@dataclass(frozen=True)
class Image:
    """An SVG image. `source`: the <svg> element; `alt`: its description and label."""

    source: str
    alt: str


def svg(parts: Iterable[str], width: int, height: int, alt: str, kind: str) -> Image:
    """Build an image of this size in CSS pixels. `kind`: its classes in the style sheet."""
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return _image(parts, box, alt, kind)


def banner(parts: Iterable[str], height: int, alt: str, kind: str) -> Image:
    """Build an image of full width: its x are percent, its y CSS pixels."""
    return _image(parts, f'width="100%" height="{height}"', alt, kind)


def _image(parts: Iterable[str], size: str, alt: str, kind: str) -> Image:
    head = f'<svg class="{kind}" {size} role="img" aria-label="{escaped(alt)}">'
    return Image(f"{head}{''.join(parts)}</svg>", alt)


def escaped(text: str) -> str:
    """Escape a text for use between tags and in attributes."""
    return html.escape(clean(text))


def text(words: str, x: float | str, y: float, kind: str = "", turn: str = "") -> str:
    """Draw words at `x`: a number, several, or percent. `turn`: a transform.

    `kind`: classes; the style sheet has `mid` and `end` for words centred on or ending at `x`."""
    at = x if isinstance(x, str) else short(x)
    more = f' class="{kind}"' if kind else ""
    more += f' transform="{turn}"' if turn else ""
    return f'<text x="{at}" y="{short(y)}"{more}>{escaped(words)}</text>'


def tone(verdict: Verdict | None) -> str:
    """Return the colour class of this verdict, or "" without one."""
    return f"v-{verdict.value}" if verdict else ""


def short(value: float) -> str:
    """Format a coordinate; tenths of a pixel are finer than any screen."""
    return f"{round(value, 1):g}"


def percent(share: float) -> str:
    return f"{round(share * 100, 2):g}%"


def ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Return at most `most` evenly spaced round numbers from `low` to `high`, each with its text.

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
    """Place items of size `room` near their ascending `wanted` positions, without overlap.
    They lie within the range if they fit."""
    places: list[float] = []
    for at in wanted:
        places.append(max(at, low, places[-1] + room if places else low))
    for number in reversed(range(len(places))):
        places[number] = min(places[number], high if number == len(places) - 1 else places[number + 1] - room)
    return places


def path(points: Iterable[tuple[float, float] | None]) -> str:
    """Return a line through these points in whole units, broken at each None; a single point is a dot."""
    return "".join(_steps(points))


def _steps(points: Iterable[tuple[float, float] | None]) -> Iterator[str]:
    """Yield path steps in relative coordinates, which need fewer digits."""
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
