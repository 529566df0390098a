"""report.html: one file that needs no network, to read, filter, print and forward.

Every text from a node passes `_shown` (control characters) and Jinja2's autoescape (markup); a content
security policy in the page allows its own script and style and nothing else, should both ever fail. Charts
are SVG whose texts are escaped by `canvas`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Verdict
from provision.node_names import fold
from provision.report import diff_text, pair_maps, peer_maps, plots, tables
from provision.report.canvas import Image
from provision.report.causes import (
    HEADINGS,
    SYMBOLS,
    causes,
    coverage,
    headline,
    missing,
    overall,
    silence,
    worst_first,
)
from provision.report.context import NOTHING, Context
from provision.report.terminal import next_commands
from provision.text import clean, columns, duration, many, moment, one_line, quantity

_TEMPLATES = Path(__file__).parent / "templates"
# A browser must stay quick with the whole page. Every node has its row in the table; the full measurements
# come worst node first until this many bytes are spent, and the page says that the rest is in report.json.
_DETAILS = 3_000_000
# Of a large fleet what is wrong with the nodes after these is told in as many bytes more.
_BRIEF = 4_000_000
_TROUBLED = (Verdict.FAIL, Verdict.ERROR, Verdict.WARN)
_LISTED = 1000  # of those, without the page's script
# Charts over time are within this as well, worst node first, and have what heat maps leave of all images.
_PLOTS, _IMAGES = 1_200_000, 1_500_000
_CULPRITS = 60  # rows of one cause; the rest are named, and have their own row and details
_CHANGED = 12  # nodes told one by one of what is new since the last run
_CAUSES = 150  # of one verdict
_EVIDENCE = 60  # lines
_TILES = (
    (Verdict.FAIL, "unhealthy"),
    (Verdict.ERROR, "not measured"),
    (Verdict.WARN, "with warnings"),
    (Verdict.SKIP, "skipped: no check applies"),
    (Verdict.PASS, "healthy"),
)
_GPU = re.compile(r"\bgpu\d{1,4}\b")
_LONG = 4000  # characters of one text: whatever is longer has its place in the raw output


def render(fleet: FleetHealth, context: Context = NOTHING) -> Iterator[str]:
    """The page in pieces."""
    environment = _environment()
    nodes = worst_first(fleet)
    between = [pair_maps.between(fleet, pairs) for pairs in context.pairs]
    inside = peer_maps.peers(fleet)
    heat = [shown.heat.size for maps in between for shown in maps.shown]
    heat += [shown.heat.size for maps in inside.skus for shown in maps.shown]
    drawn = _telemetry(nodes, context, min(_PLOTS, _IMAGES - sum(heat)))
    large = len(nodes) > MANY
    troubled = [node for node in nodes if node.verdict in _TROUBLED] if large else []
    details = _sections(environment, fleet, nodes, _DETAILS, drawn)
    whole = len(details)
    if large:
        details += _sections(environment, fleet, troubled[whole:], _BRIEF, {}, first=whole, brief=True)
    detailed = len(details)
    glance = tables.glance(fleet)
    checks = list(dict.fromkeys((*fleet.asked, *(check.check for node in nodes for check in node.checks))))
    found = causes(fleet)
    page = environment.get_template("page.html.j2")
    stream = page.generate(
        fleet=fleet,
        nodes=nodes,
        # What is no node, the fabric, has no section to link to.
        ids=defaultdict(lambda: len(nodes), {id(node): number for number, node in enumerate(nodes)}),
        numbers={node.node: number for number, node in enumerate(nodes)},
        detailed=detailed,
        details=details,
        whole=whole,
        rows=data(nodes, checks, facts) if large else None,
        troubled=troubled,
        listed=_LISTED,
        checks=checks,
        sections=[
            (v, [c for c in found if c.verdict is v]) for v in sorted(HEADINGS, key=lambda v: -v.badness)
        ],
        headline=headline(fleet),
        overall=overall(fleet),
        coverage=coverage(fleet),
        commands=list(next_commands(fleet, found, context)),
        since=diff_text.since(context.earlier, fleet),
        glance=glance,
        charts=plots.fleet(glance.skus),
        pair_maps=between,
        peer_maps=inside,
        drawn=drawn,
        not_drawn=[*(name for name in context.loads if name not in drawn), *context.not_read],
        **_inline("fleet.js", "script.js") if large else _inline("script.js"),
    )
    yield from _batched(stream)


def page(template: str, style: str, **values: Any) -> Iterator[str]:
    """Another page with this one's look: `style` is its own style sheet after the common one; no script."""
    own = [(_TEMPLATES / name).read_text(encoding="utf-8") for name in ("style.css", style)]
    text = "\n".join(own)
    inline = {"style": Markup(text), "style_hash": Markup(_hash(text))}  # noqa: S704 - our own files
    yield from _batched(_environment().get_template(template).generate(**inline, **values))


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        headings=HEADINGS, symbols=SYMBOLS, tiles=_TILES, culprits_shown=_CULPRITS, causes_shown=_CAUSES,
        verdicts=sorted(Verdict, key=lambda v: -v.badness), passing=Verdict.PASS, id_of=id,
        duration=duration, moment=moment, many=many, one_line=one_line, quantity=quantity, fold=_folded,
        silence=silence, missing=missing, tables=tables.tables, facts=facts, evidence=_evidence,
        row_words=_row_words, badge_cell=_cell, check_cells=_check_cells, picture=_picture,
        breakable=_breakable, changed_shown=_CHANGED,
    )  # fmt: skip
    return environment


def _shown(value: Any) -> Any:
    """Every value on its way into the page. Markup is our own (macros, inlined files)."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return clean(value if len(value) <= _LONG else value[: _LONG - 1] + "…")
    return value


def _inline(*scripts: str) -> dict[str, Markup]:
    """Style and script, with the hashes that the page's security policy names."""
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    script = "\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in scripts)
    # Our own files, no node's text: marking them safe is the point.
    return {
        "style": Markup(style),  # noqa: S704
        "script": Markup(script),  # noqa: S704
        "style_hash": Markup(_hash(style)),  # noqa: S704
        "script_hash": Markup(_hash(script)),  # noqa: S704
    }


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _telemetry(nodes: Sequence[NodeHealth], context: Context, room: int) -> dict[str, dict[str, list[Image]]]:
    """Node → check → its charts under load, worst node first, as far as there is room (bytes)."""
    spent, drawn = 0, {}
    for node in nodes:
        bad = standing_out((f.device, f.verdict) for check in node.checks for f in check.wrong)
        charts = {load.check: plots.telemetry(load.series, bad) for load in context.loads.get(node.node, ())}
        spent += sum(len(image.source) for images in charts.values() for image in images)
        if spent > room:
            break
        if any(charts.values()):
            drawn[node.node] = charts
    return drawn


def standing_out(wrong: Iterable[tuple[str, Verdict]]) -> dict[str, Verdict]:
    """GPU → the worst verdict, of these (device, verdict), that names it and is neither pass nor skip."""
    bad: dict[str, Verdict] = {}
    for device, verdict in wrong:
        for name in _GPU.findall(device) if verdict in _TROUBLED else ():
            bad[name] = max(bad.get(name, verdict), verdict, key=lambda v: v.badness)
    return bad


def _picture(image: Image) -> Markup:
    """A chart, read aloud by its words. It is our own markup, its texts escaped, and longer than any text may
    be."""
    return Markup(image.source)  # noqa: S704


def _sections(
    environment: Environment,
    fleet: FleetHealth,
    nodes: Sequence[NodeHealth],
    budget: int,
    drawn: Mapping[str, Mapping[str, Sequence[Image]]],
    *,
    first: int = 0,
    brief: bool = False,
) -> list[Markup]:
    """The section of each node, worst first, as far as the budget (bytes without charts) goes. `brief`: only
    what is wrong with it; `first`: the number of the first of these nodes."""
    template = environment.get_template("node.html.j2")
    spent, sections = 0, []
    for number, node in enumerate(nodes, first):
        charts = drawn.get(node.node, {})
        section = template.render(fleet=fleet, node=node, number=number, charts=charts, brief=brief)
        spent += len(section.encode(errors="replace"))
        spent -= sum(len(image.source) for images in charts.values() for image in images)
        if spent > budget:
            break
        sections.append(Markup(section))  # noqa: S704 - rendered with autoescape
    return sections


def facts(node: NodeHealth) -> str:
    """A node's facts in one line, for the table: `h100-sxm · driver 580.126.09`."""
    names = [
        str(node.facts[key])
        for key in ("sku", "driver", "driver_version", "driver version")
        if node.facts.get(key)
    ]
    return " · ".join(one_line(name, 60) for name in names)


# A fleet's table has tens of thousands of these few cells: made once. Our own words, no node's text.
_CELLS = {
    v: Markup('<td class="v-{0}" data-s="{1}">{2} {0}</td>').format(v.value, v.badness, SYMBOLS[v])
    for v in Verdict
}
_DID_NOT_RUN = Markup('<td class="v-error" data-s="3.5">? did not run</td>')


def _cell(verdict: Verdict) -> Markup:
    return _CELLS[verdict]


def _check_cells(node: NodeHealth, checks: Sequence[str]) -> Markup:
    """The cells of one row: the verdict of each check; one that is missing was not measured."""
    have = {check.check: check.verdict for check in node.checks}
    return Markup("").join(_CELLS[have[name]] if name in have else _DID_NOT_RUN for name in checks)


def _breakable(text: str, after: str = "_") -> Markup:
    """A text that may go on in the next line after this character: a check's name, after an underscore."""
    return Markup("{}<wbr>").format(after).join(_shown(part) for part in text.split(after))


def _folded(names: Iterable[str], limit: int) -> Markup:
    """Nodes as ranges, broken between two of them and not within a number."""
    return _breakable(fold(names, limit), ",")


def _evidence(lines: Sequence[str]) -> str:
    shown = "\n".join(columns(line) for line in lines[:_EVIDENCE])
    return f"{shown}\n… {len(lines) - _EVIDENCE:,} more lines" if len(lines) > _EVIDENCE else shown


def _row_words(node: NodeHealth) -> str:
    """What a node is found by besides what its row shows: serial numbers, and what is wrong with it."""
    words = [gpu.serial for gpu in node.gpus]
    wrong = [finding for check in node.checks for finding in check.wrong]
    words += [f"{one_line(f.device, 40)} {one_line(f.message, 120)}" for f in wrong[:8]]
    return " ".join(words).lower()


def _batched(stream: Iterator[str]) -> Iterator[str]:
    """Jinja2 yields a piece per tag; writing each would cost more than making it."""
    batch: list[str] = []
    for piece in stream:
        batch.append(piece)
        if len(batch) >= 2000:
            yield "".join(batch)
            batch.clear()
    yield "".join(batch)


# --- the table of a large fleet as data, of which the page's own script draws the visible rows. Ten thousand
# rows as markup are 15 MB, and a browser needs seconds for each keystroke over them. As data, what nodes have
# in common, verdicts of all checks, facts, messages, is told once.


MANY = 1000  # nodes; up to here every row is in the page as markup
_WORST = sorted(Verdict, key=lambda verdict: -verdict.badness)
_MESSAGES = 8  # of a node, to be found by


class _Shared:
    """Texts that are told once: `of` gives the place of one in `all`."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def of(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    @property
    def all(self) -> list[str]:
        return list(self._places)


def data(nodes: Sequence[NodeHealth], checks: Sequence[str], facts: Callable[[NodeHealth], str]) -> Markup:
    """The rows for templates/fleet.js, in the order given. A row: name, verdict's place, place of its checks'
    verdicts (a digit each, `.` where a check did not run), GPUs, place of its facts, serial numbers, places
    of what is wrong. It ends no script and begins no markup, whatever a node is called."""
    cells, told, wrong = _Shared(), _Shared(), _Shared()
    place = {verdict: str(number) for number, verdict in enumerate(_WORST)}
    rows: list[list[Any]] = []
    for node in nodes:
        have = {check.check: place[check.verdict] for check in node.checks}
        found = [finding for check in node.checks for finding in check.wrong][:_MESSAGES]
        rows.append(
            [
                one_line(node.node, 200),
                int(place[node.verdict]),
                cells.of("".join(have.get(name, ".") for name in checks)),
                len(node.gpus),
                told.of(clean(facts(node))),
                " ".join(one_line(gpu.serial, 60) for gpu in node.gpus),
                [wrong.of(f"{one_line(f.device, 40)} {one_line(f.message, 120)}") for f in found],
            ]
        )
    document = {
        "verdicts": [[verdict.value, SYMBOLS[verdict], verdict.badness] for verdict in _WORST],
        "checks": [one_line(name, 60) for name in checks],
        "cells": cells.all,
        "facts": told.all,
        "wrong": wrong.all,
        "rows": rows,
    }
    text = json.dumps(document, separators=(",", ":"))  # pure ASCII
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704 - escaped for a script of data above
