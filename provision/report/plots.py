"""The charts of a report: GPUs over time, and the fleet against its limits (pure). `canvas` draws."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.checks.gpu.telemetry_rows import Series, Value
from provision.checks.judge import Verdict
from provision.node_names import natural
from provision.report.canvas import (
    DPI,
    INK,
    LIMIT,
    LINE,
    QUIET,
    SOFT,
    TONE,
    Axes,
    Image,
    MaxNLocator,
    canvas,
    svg,
)
from provision.report.tables import Sku, Strip
from provision.text import many, one_line, quantity

_MARKER = {Verdict.FAIL: "X", Verdict.ERROR: "s", Verdict.WARN: "^", Verdict.SKIP: "o"}
_DASH = {Verdict.FAIL: "-", Verdict.ERROR: ":", Verdict.WARN: "--", Verdict.SKIP: "-."}

_DEVICES = 72  # lines of one plot: a GB200 NVL72 domain
_BINS, _LANES = 140, 5  # where dots of a strip may be: what would cover each other is drawn once
_LABELS = 6  # of a strip
_NAME = 30  # letters of a line beside a strip
_WIDTH = 9.4  # inches of the fleet's chart
_CHARACTER = 0.0125  # width of a letter in parts of a strip's width


@dataclass(frozen=True)
class _Quantity:
    what: str
    unit: str
    values: Callable[[Series], Sequence[Value]]


_QUANTITIES = (
    _Quantity("temperature", "°C", lambda series: series.temperatures),
    _Quantity("power", "W", lambda series: series.powers),
    _Quantity("SM clock", "MHz", lambda series: series.clocks),
)


def telemetry(series: Mapping[str, Series], bad: Mapping[str, Verdict]) -> list[Image]:
    """Temperature, power and SM clock over time, a chart each; none of what was not sampled.

    `bad`: device → verdict of the devices that stand out: these are coloured and named, the others quiet.
    """
    shown = sorted(series, key=lambda name: (-_badness(bad, name), natural(name)))[:_DEVICES]
    return [
        image
        for each in _QUANTITIES
        if (image := _over_time(each, {name: series[name] for name in shown}, bad)) is not None
    ]


def _badness(bad: Mapping[str, Verdict], name: str) -> int:
    return bad[name].badness if name in bad else 0


def _over_time(what: _Quantity, series: Mapping[str, Series], bad: Mapping[str, Verdict]) -> Image | None:
    known = {name: what.values(one) for name, one in series.items()}
    known = {name: values for name, values in known.items() if any(v is not None for v in values)}
    if not known:
        return None
    unit, each = _time_unit(max(series[name].seconds[-1] for name in known))
    with canvas(4.2, 2.35) as figure:
        axes = figure.add_axes((0.13, 0.19, 0.73, 0.68))
        last = {name: next(v for v in reversed(values) if v is not None) for name, values in known.items()}
        for name in sorted(known, key=lambda name: _badness(bad, name)):
            numbers = [float("nan") if value is None else value for value in known[name]]
            verdict = bad.get(name)
            style = ({"color": QUIET, "linewidth": 0.9} if verdict is None else
                     {"color": TONE[verdict], "linewidth": 1.9, "linestyle": _DASH[verdict]})  # fmt: skip
            axes.plot([at / each for at in series[name].seconds], numbers, **style)  # type: ignore[arg-type]
        axes.set_title(f"{what.what}, {what.unit}")
        axes.set_xlabel(f"{unit} since the first sample")
        _quiet_frame(axes)
        axes.margins(x=0, y=0.12)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        named = [name for name in known if name in bad] or [_farthest(last)]
        _name_ends(axes, {name: last[name] for name in named}, bad)
        source = svg(figure)
    told = [_range(f"{what.what} of {many(len(known), 'GPU')}", known.values(), what.unit)]
    told += [
        _range(f"{name} ({bad[name].value})", [known[name]], what.unit) for name in named[:4] if name in bad
    ]
    return Image(source, "; ".join(told), 403, 226)


def _time_unit(longest: float) -> tuple[str, float]:
    """What a person counts so many seconds in, and how many seconds one of it is."""
    return (
        ("seconds", 1.0) if longest <= 900 else ("minutes", 60.0) if longest <= 10800 else ("hours", 3600.0)
    )


def _range(who: str, values: Iterable[Sequence[Value]], unit: str) -> str:
    flat = [value for each in values for value in each if value is not None]
    return f"{one_line(who, 60)} {quantity(min(flat))} to {quantity(max(flat))} {unit}"


def _farthest(last: Mapping[str, float]) -> str:
    """Who ended farthest from the middle: where nobody has a finding, the one a reader asks for."""
    middle = statistics.median(last.values())
    return max(last, key=lambda name: abs(last[name] - middle))


def _name_ends(axes: Axes, ends: Mapping[str, float], bad: Mapping[str, Verdict]) -> None:
    """Each line's name at its right end, moved apart where they would lie on each other."""
    low, high = axes.get_ylim()
    right, room = axes.get_xlim()[1], (high - low) * 0.095
    at = low - room
    for name, value in sorted(ends.items(), key=lambda end: end[1]):
        at = max(value, at + room)
        style: Any = {"color": TONE[bad[name]], "weight": "bold"} if name in bad else {"color": SOFT}
        axes.annotate(f" {one_line(name, 10)}", (right, at), va="center", annotation_clip=False, **style)


def fleet(skus: Sequence[Sku]) -> Image | None:
    """A strip for each key metric of each SKU: every value a dot, the limit a line, who stands out named."""
    rows = sum(len(sku.strips) for sku in skus)
    if not rows:
        return None
    height = 0.62 * rows + 0.42 * len(skus) + 0.05
    with canvas(_WIDTH, height) as figure:
        top = 1.0
        for sku in skus:
            top -= 0.30 / height
            title = f"{sku.name}: {many(sku.nodes, 'node')}"
            figure.text(0.008, top, title, size=10, weight="bold", va="bottom")
            for strip in sku.strips:
                axes = figure.add_axes((0.205, top - 0.44 / height, 0.595, 0.34 / height))
                _draw_strip(axes, strip)
                top -= 0.62 / height
            top -= 0.12 / height
        source = svg(figure)
    alt = "; ".join(_strip_words(sku, strip) for sku in skus for strip in sku.strips)
    return Image(source, alt[:1500], round(_WIDTH * DPI), round(height * DPI))


def _draw_strip(axes: Axes, strip: Strip) -> None:
    every = [*strip.values, *(mark.value for mark in strip.marks)]
    edges = [*every, *([] if strip.limit is None else [strip.limit])]
    low, high = min(edges), max(edges)
    margin = (high - low) * 0.04 or abs(high) * 0.02 or 1.0
    low, high = low - margin, high + margin
    axes.set_xlim(low, high)
    axes.set_ylim(-1, 1)
    _quiet_frame(axes, grid=False)
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.tick_params(labelsize=8, pad=2)
    x, y = _dots(strip.values, low, high)
    axes.plot(x, y, linestyle="", marker="o", markersize=3.2, color=QUIET, markeredgewidth=0)
    _draw_marks(axes, strip, low, high)
    if every:
        axes.plot([statistics.median(every)] * 2, [-1, 1], color=INK, linewidth=1.1)
    if strip.limit is not None:
        axes.plot([strip.limit] * 2, [-1, 1], color=LIMIT, linewidth=1.4, linestyle=(0, (4, 2)))
    what, better = one_line(strip.what, 120), "more" if strip.better == "at_least" else "less"
    what = textwrap.fill(f"{what[:1].upper()}{what[1:]}", _NAME, max_lines=2, placeholder="…")
    _beside(axes, -0.02, 0.68 if "\n" not in what else 0.86, what, INK)
    _beside(axes, -0.02, 0.16, f"{strip.unit}, {better} is better".lstrip(", "), SOFT)
    _beside(axes, 1.02, 0.68, strip.limit_words or "no limit is known", LIMIT if strip.limit_words else SOFT)
    if strip.silent:
        said = f"? {many(strip.silent, 'node')} not measured"
        _beside(axes, 1.02, 0.16, said, TONE[Verdict.ERROR], weight="bold")


def _beside(axes: Axes, x: float, y: float, text: str, color: str, weight: str = "normal") -> None:
    """Words left or right of a strip; `x`, `y` in parts of its size."""
    side = "right" if x < 0 else "left"
    axes.text(
        x, y, text, transform=axes.transAxes, size=8.2, ha=side, va="center", color=color, weight=weight
    )


def _dots(values: Iterable[float], low: float, high: float) -> tuple[list[float], list[float]]:
    """Where the dots are: each value in one of a few lanes, and one dot for those that share a place."""
    scale = _BINS / (high - low)
    count: dict[int, int] = {}
    for value in values:
        place = int((value - low) * scale)
        count[place] = min(count.get(place, 0) + 1, _LANES)
    lanes = sorted((lane * 2 / (_LANES + 1) for lane in range(-(_LANES // 2), _LANES // 2 + 1)), key=abs)
    dots = [
        (low + (place + 0.5) / scale, lanes[lane]) for place, n in sorted(count.items()) for lane in range(n)
    ]
    return [x for x, _ in dots], [y for _, y in dots]


def _draw_marks(axes: Axes, strip: Strip, low: float, high: float) -> None:
    """The values that stand out, over each other's dots; the worst are named where there is room."""
    marks = strip.marks
    for verdict in sorted({mark.verdict for mark in marks}, key=lambda verdict: verdict.badness):
        x, _ = _dots([mark.value for mark in marks if mark.verdict is verdict], low, high)
        axes.plot(sorted(set(x)), [0.0] * len(set(x)), linestyle="", marker=_MARKER[verdict], markersize=7.5,
                  color=TONE[verdict], markeredgecolor="white", markeredgewidth=0.6)  # fmt: skip
    taken: list[tuple[float, float]] = []
    named: set[str] = set()
    for mark in marks:
        at = (mark.value - low) / (high - low)
        half = len(mark.label) * _CHARACTER / 2
        middle = min(max(at, half), 1 - half)
        free = all(middle + half < start or middle - half > end for start, end in taken)
        if mark.label in named or not free or len(named) == _LABELS:
            continue
        taken.append((middle - half, middle + half))
        named.add(mark.label)
        axes.text(middle, 1.02, mark.label, transform=axes.transAxes, size=8, ha="center", va="bottom",
                  weight="bold", color=TONE[mark.verdict])  # fmt: skip
    left = len({mark.label for mark in marks} - named)
    if left:
        _beside(axes, 1.02, -0.36 if strip.silent else 0.16, f"and {left:,} more marked", SOFT)


def _strip_words(sku: Sku, strip: Strip) -> str:
    every = [*strip.values, *(mark.value for mark in strip.marks)]
    told = f"{sku.name} {_range(strip.what, [every], strip.unit)}"
    marks = ", ".join(f"{mark.label} {quantity(mark.value)}" for mark in strip.marks[:3])
    return f"{told}{f', stands out: {marks}' if marks else ''}"


def _quiet_frame(axes: Axes, *, grid: bool = True) -> None:
    axes.tick_params(length=0)
    if grid:
        axes.grid(axis="y", color=LINE, linewidth=0.6)
        axes.set_axisbelow(True)
