"""A plot of a document: one SVG file with its own colours, to be read on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.results import Plot
from provision.report.canvas import escaped, short, text, ticks

_WIDTH, _HEIGHT = 680, 380
_LEFT, _RIGHT, _BOTTOM = 88, 36, 52
_TOP = 44  # below the title; a line of it for each name comes on top
_ROW = 18
_DOTS = 12  # a line with so few points shows each
# Of Okabe and Ito, whom the colour-blind tell apart; each has a stroke of its own besides.
_STROKES = (("#0072b2", ""), ("#d55e00", "7 4"), ("#009e73", "2 3"))
_STYLE = """
svg { font: 13px system-ui, sans-serif; --page: #fff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0 }
@media (prefers-color-scheme: dark) {
svg { --page: #0d1117; --ink: #f0f6fc; --soft: #9198a1; --line: #3d444d }
}
text { fill: var(--soft) } .name { fill: var(--ink) }
.head { fill: var(--ink); font-weight: 600; font-size: 15px }
.mid { text-anchor: middle } .end { text-anchor: end }
.page { fill: var(--page) } .rule { stroke: var(--line); fill: none }
.band { fill: var(--line); opacity: .45 }
.data { fill: none; stroke-width: 2.5; stroke-linejoin: round }
"""


def drawn(plot: Plot) -> str:
    """The SVG file, whose name `plot.file` is."""
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escaped(plot.title)}">'
    return "\n".join([head, f"<style>{_STYLE}</style>", *_parts(plot), "</svg>", ""])


def _parts(plot: Plot) -> Iterator[str]:
    points = [point for _, line in plot.lines for point in line]
    far = max(x for x, _ in points)
    high = max(y for _, y in points) * 1.05 or 1.0
    top, bottom, right = _TOP + _ROW * len(plot.lines), _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    across, up = (right - _LEFT) / far, (bottom - top) / high

    yield f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}" rx="6"/>'
    yield text(plot.title, 16, 26, "head")
    if plot.band is not None:
        begin, end, word = plot.band
        left, wide = _LEFT + begin * across, (min(end, far) - begin) * across
        box = f'x="{short(left)}" y="{short(top)}" width="{short(wide)}" height="{short(bottom - top)}"'
        yield f'<rect class="band" {box}/>'
        yield text(word, left + wide - 8, bottom - 8, "end")
    rules = "".join(f"M{_LEFT} {short(bottom - at * up)}H{right}" for at, _ in ticks(0, high, 6))
    yield f'<path class="rule" d="{rules}"/>'
    for at, label in ticks(0, high, 6):
        yield text(label, _LEFT - 8, bottom - at * up + 4, "end")
    for at, label in ticks(0, far, 7):
        yield text(label, _LEFT + at * across, bottom + 18, "mid")
    yield text(plot.across, (_LEFT + right) / 2, _HEIGHT - 12, "mid")
    yield text(plot.up, -(top + bottom) / 2, 18, "mid", "rotate(-90)")
    for number, (name, line) in enumerate(plot.lines):
        colour, dashes = _STROKES[number % len(_STROKES)]
        stroke = f'class="data" stroke="{colour}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")
        y = _TOP + _ROW * number
        yield f'<path {stroke} d="M{_LEFT} {y}h32"/>'
        yield text(name, _LEFT + 42, y + 4, "name")
        places = [(short(_LEFT + x * across), short(bottom - y * up)) for x, y in line]
        yield f'<path {stroke} d="M{"L".join(f"{x} {y}" for x, y in places)}"/>'
        marked = places if len(places) <= _DOTS else places[-1:]
        yield "".join(f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>' for x, y in marked)
