"""The charts of a report: GPUs over time, and the fleet against its limits (pure). `canvas` draws."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from provision.checks.gpu.telemetry_rows import Series, Value
from provision.checks.judge import Verdict
from provision.node_names import natural
from provision.report.canvas import (
    LETTER,
    Image,
    apart,
    banner,
    escaped,
    path,
    percent,
    short,
    svg,
    text,
    ticks,
    tone,
)
from provision.report.tables import Mark, Sku, Strip
from provision.text import many, one_line, quantity

_DEVICES = 72  # lines per plot; one GB200 NVL72 domain
_WIDTH, _HEIGHT = 400, 216  # size of a plot over time
_TOP, _BOTTOM = 26, 38  # room for the title above and the time axis below the lines
_SIZE = 11  # letter size of a chart, as in style.css
_LINE = 13  # distance between names next to a plot
_FINE = 2  # subdivisions of a pixel in line coordinates


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
    """Draw temperature, power and SM clock over time, one chart for each with samples.

    `bad`: device → verdict of flagged devices, which are coloured and named; the others stay grey."""
    shown = sorted(series, key=lambda name: (-_badness(bad, name), natural(name)))[:_DEVICES]
    return [
        image
        for each in _QUANTITIES
        if (image := _over_time(each, {name: series[name] for name in shown}, bad)) is not None
    ]


def _badness(bad: Mapping[str, Verdict], name: str) -> int:
    return bad[name].badness if name in bad else 0


def _over_time(what: _Quantity, series: Mapping[str, Series], bad: Mapping[str, Verdict]) -> Image | None:
    values_of = {name: what.values(one) for name, one in series.items()}
    values_of = {name: values for name, values in values_of.items() if any(v is not None for v in values)}
    if not values_of:
        return None
    alts = [_range(f"{what.what} of {many(len(values_of), 'GPU')}", values_of.values(), what.unit)]
    named = [name for name in values_of if name in bad]
    alts += [_range(f"{name} ({bad[name].value})", [values_of[name]], what.unit) for name in named[:4]]
    parts = _plot(what, {name: series[name].seconds for name in values_of}, values_of, bad)
    return svg(parts, _WIDTH, _HEIGHT, "; ".join(alts), "plot")


def _plot(
    what: _Quantity,
    seconds: Mapping[str, Sequence[float]],
    known: Mapping[str, Sequence[Value]],
    bad: Mapping[str, Verdict],
) -> Iterator[str]:
    """Draw one plot. `seconds`, `known`: times and values of each device."""
    low, high = _edges([value for values in known.values() for value in values if value is not None], 0.12)
    longest = max(times[-1] for times in seconds.values()) or 1.0
    last = {name: next(v for v in reversed(values) if v is not None) for name, values in known.items()}
    names = _names([name for name in known if name in bad] or [_farthest(last)])
    upright = ticks(low, high, 5)
    left = _wide(max((label for _, label in upright), key=len, default="")) + 8
    right = _WIDTH - max(map(_wide, names.values())) - 10
    bottom = _HEIGHT - _BOTTOM
    across, up = (right - left) / longest, (bottom - _TOP) / (high - low)

    yield text(f"{what.what}, {what.unit}", 2, 13, "head")
    rules = "".join(f"M{short(left)} {short(bottom - (at - low) * up)}H{short(right)}" for at, _ in upright)
    yield f'<path class="rule" d="{rules}"/>'
    for at, label in upright:
        yield text(label, left - 6, bottom - (at - low) * up + 4, "end")
    unit, each = _time_unit(longest)
    for at, label in ticks(0, longest / each, 5):
        yield text(label, left + at * each * across, bottom + 15, "mid")
    yield text(f"{unit} since the first sample", (left + right) / 2, _HEIGHT - 6, "mid")
    yield f'<g class="lines" transform="scale({short(1 / _FINE)})">'
    for name in sorted(known, key=lambda name: _badness(bad, name)):
        places = (
            None if v is None else (_FINE * (left + at * across), _FINE * (bottom - (v - low) * up))
            for at, v in zip(seconds[name], known[name], strict=True)
        )
        kind = f' class="{tone(bad[name])}"' if name in bad else ""
        yield f'<path{kind} d="{path(places)}"><title>{escaped(one_line(name, 60))}</title></path>'
    yield "</g>"
    ends = sorted(names, key=lambda name: -last[name])
    heights = apart([bottom - (last[name] - low) * up for name in ends], _LINE, _TOP, bottom)
    for name, y in zip(ends, heights, strict=True):
        yield text(names[name], right + 6, y + 4, f"{tone(bad[name])} loud" if name in bad else "")


def _names(named: Sequence[str]) -> dict[str, str]:
    """Return the label at each device's line end; if too many, the last one shown counts the rest."""
    fit = (_HEIGHT - _TOP - _BOTTOM) // _LINE
    names = {name: one_line(name, 10) for name in named[:fit]}
    if len(named) > fit:
        names[named[fit - 1]] += f" +{len(named) - fit}"
    return names


def _edges(values: Sequence[float], margin: float) -> tuple[float, float]:
    """Return the ends of an axis for these values, with a margin."""
    low, high = min(values), max(values)
    more = (high - low) * margin or abs(high) * 0.02 or 1.0
    return low - more, high + more


def _wide(words: str, size: float = _SIZE) -> float:
    """Return the maximum width of these words in pixels."""
    return len(words) * size * LETTER


def _time_unit(longest: float) -> tuple[str, float]:
    """Return a readable time unit for this duration, and its length in seconds."""
    return (
        ("seconds", 1.0) if longest <= 900 else ("minutes", 60.0) if longest <= 10800 else ("hours", 3600.0)
    )


def _range(who: str, values: Iterable[Sequence[Value]], unit: str) -> str:
    flat = [value for each in values for value in each if value is not None]
    return f"{one_line(who, 60)} {quantity(min(flat))} to {quantity(max(flat))} {unit}"


def _farthest(last: Mapping[str, float]) -> str:
    """Return the device farthest from the median at the end: the most interesting one without findings."""
    middle = statistics.median(last.values())
    return max(last, key=lambda name: abs(last[name] - middle))


# --- the fleet against its limits. A strip's x are percent, because the page shows its words next to it, or
# above it if space is limited.


_BINS, _LANES = 140, 5  # grid of a strip's dots; dots at the same point are drawn once
_LANE = 4.5  # pixels between dots
# Minimum width of a strip, and on a wide page (style.css), which has room for more names.
_NARROW, _ROOMY = 300, 480
_LABELS = 6  # names per strip
_NAME = 44  # letters per name
_BAND, _TALL, _STRIP = 18, 26, 60  # top of the dots, their height, the height of the strip
_MARKER = {
    Verdict.FAIL: "M-4-4l8 8m0-8l-8 8",
    Verdict.WARN: "M0-5.5l5.5 10h-11z",
    Verdict.ERROR: "M-4.5-4.5h9v9h-9z",
    Verdict.SKIP: "M-4 0a4 4 0 1 0 8 0 4 4 0 1 0-8 0z",
}


@dataclass(frozen=True)
class StripChart:
    """A strip with its caption: `what` is measured, its `unit` and better direction, its `limit`.

    `silent`: number of nodes without a value; `more`: number of highlighted values without a name."""

    what: str
    unit: str
    image: Image
    limit: str
    silent: int
    more: int


@dataclass(frozen=True)
class SkuChart:
    title: str
    strips: tuple[StripChart, ...]


def fleet(skus: Sequence[Sku]) -> list[SkuChart]:
    """Draw a strip for each key metric of each SKU: values as dots, the limit as line, outliers named."""
    return [
        SkuChart(f"{sku.name}: {many(sku.nodes, 'node')}", tuple(_strip(sku, strip) for strip in sku.strips))
        for sku in skus
    ]


def _strip(sku: Sku, strip: Strip) -> StripChart:
    every = [*strip.values, *(mark.value for mark in strip.marks)]
    low, high = _edges([*every, *([] if strip.limit is None else [strip.limit])], 0.04)
    names = list(_labels(strip.marks, low, high))
    parts = [
        *_axis(low, high), _dots(strip.values, low, high),
        _upright(statistics.median(every), low, high, "median"),
        "" if strip.limit is None else _upright(strip.limit, low, high, "limit"),
        *_markers(strip.marks, low, high), *names,
    ]  # fmt: skip
    what, better = one_line(strip.what, 120), "more" if strip.better == "at_least" else "less"
    return StripChart(
        f"{what[:1].upper()}{what[1:]}",
        f"{strip.unit}, {better} is better".lstrip(", "),
        banner(parts, _STRIP, _strip_words(sku, strip), "strip"),
        strip.limit_words,
        strip.silent,
        len({mark.label for mark in strip.marks}) - len(names),
    )


def _axis(low: float, high: float) -> Iterator[str]:
    """Draw the line below the dots, and as many round numbers as fit a narrow strip."""
    bottom = _BAND + _TALL
    yield f'<line class="rule" x2="100%" y1="{bottom}" y2="{bottom}"/>'
    for most in (6, 5, 4, 3, 2):
        marks = ticks(low, high, most)
        step = (marks[1][0] - marks[0][0]) / (high - low) * _NARROW if len(marks) > 1 else _NARROW
        if step > _wide(max((label for _, label in marks), key=len, default="")) + 12:
            break
    for at, label in marks:
        share = (at - low) / (high - low)
        half = _wide(label) / 2 / _NARROW
        if half <= share <= 1 - half:
            yield text(label, percent(share), _STRIP - 3, "mid")


def _upright(value: float, low: float, high: float, kind: str) -> str:
    x = percent((value - low) / (high - low))
    return f'<line class="{kind}" x1="{x}" x2="{x}" y1="{_BAND - 2}" y2="{_BAND + _TALL}"/>'


def _dots(values: Iterable[float], low: float, high: float) -> str:
    """Draw each value in one of a few lanes, with a single dot for values at the same point."""
    count: dict[int, int] = {}
    for value in values:
        place = _place(value, low, high)
        count[place] = min(count.get(place, 0) + 1, _LANES)
    lanes = sorted(((lane - _LANES // 2) * _LANE for lane in range(_LANES)), key=abs)
    # The dots' own box is stretched to the strip's width; the style keeps the dots round.
    dots_drawn = [
        f"M{place * 10 + 5} {short(_TALL / 2 + lanes[lane])}h0"
        for place, dots in sorted(count.items())
        for lane in range(dots)
    ]
    box = f'y="{_BAND}" width="100%" height="{_TALL}" viewBox="0 0 {_BINS * 10} {_TALL}"'
    return f'<svg {box} preserveAspectRatio="none"><path class="dots" d="{"".join(dots_drawn)}"/></svg>'


def _place(value: float, low: float, high: float) -> int:
    return min(int((value - low) / (high - low) * _BINS), _BINS - 1)


def _markers(marks: Sequence[Mark], low: float, high: float) -> Iterator[str]:
    """Draw the highlighted values over the dots, with the worst on top."""
    for verdict in sorted({mark.verdict for mark in marks}, key=lambda verdict: verdict.badness):
        for place in sorted({_place(mark.value, low, high) for mark in marks if mark.verdict is verdict}):
            x, y = percent((place + 0.5) / _BINS), _BAND + _TALL // 2
            yield f'<svg x="{x}" y="{y}"><path class="marker {tone(verdict)}" d="{_MARKER[verdict]}"/></svg>'


def _labels(marks: Sequence[Mark], low: float, high: float) -> Iterator[str]:
    """Draw the names of the worst values, as far as there is room.

    Names that fit a narrow strip come first, then names that only a wide one shows."""
    named: dict[str, tuple[float, float, str]] = {}  # share of the strip, pixels, anchor
    for width, kind in ((_NARROW, ""), (_ROOMY, "roomy")):
        for mark in marks:
            if mark.label in named or len(named) == _LABELS:
                continue
            at = (mark.value - low) / (high - low)
            words = one_line(mark.label, int(max(at, 1 - at) * width / (_SIZE * LETTER)))
            wide, near = _wide(words), min(at, 1 - at) * width
            one = at, wide, "mid" if near >= wide / 2 else "" if at < 0.5 else "end"
            if all(_are_apart(one, other, width) for other in named.values()):
                named[mark.label] = one
                yield text(words, percent(at), 11, f"{one[2]} {tone(mark.verdict)} loud {kind}".strip())


def _are_apart(one: tuple[float, float, str], other: tuple[float, float, str], width: int) -> bool:
    (start, end), (other_start, other_end) = (
        (at * width - part * wide, at * width + (1 - part) * wide)
        for at, wide, anchor in (one, other)
        for part in ({"": 0.0, "mid": 0.5, "end": 1.0}[anchor],)
    )
    return end + 6 < other_start or other_end + 6 < start


def _strip_words(sku: Sku, strip: Strip) -> str:
    every = [*strip.values, *(mark.value for mark in strip.marks)]
    description = f"{sku.name} {_range(strip.what, [every], strip.unit)}"
    marks = ", ".join(f"{mark.label} {quantity(mark.value)}" for mark in strip.marks[:3])
    return f"{description}{f', stands out: {marks}' if marks else ''}"
