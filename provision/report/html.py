"""report.html: one file that needs no network, to read, filter, print and forward.

Text from nodes passes `_shown` (control characters) and Jinja2's autoescape (markup). Should both fail, a
content security policy allows only the page's own script and style. Charts are SVG with texts escaped by
`canvas`."""

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
# The page must stay responsive in a browser. Every node has its row in the table; full measurements are
# included worst node first up to this many bytes, and the page refers to report.json for the rest.
_DETAILS = 3_000_000
# Further bytes for the faults of later nodes in a large fleet.
_BRIEF = 4_000_000
_TROUBLED = (Verdict.FAIL, Verdict.ERROR, Verdict.WARN)
_LISTED = 1000  # bad nodes listed if the page's script cannot run
# Byte limits of charts over time (worst node first) and of all images, in which heat maps take precedence.
_PLOTS, _IMAGES = 1_200_000, 1_500_000
_CULPRITS = 60  # rows of one cause; further nodes are only named, with their own row and details
_CHANGED = 12  # changed nodes listed individually
_CAUSES = 150  # per verdict
_EVIDENCE = 60  # lines
_TILES = (
    (Verdict.FAIL, "unhealthy"),
    (Verdict.ERROR, "not measured"),
    (Verdict.WARN, "with warnings"),
    (Verdict.SKIP, "skipped: no check applies"),
    (Verdict.PASS, "healthy"),
)
_GPU = re.compile(r"\bgpu\d{1,4}\b")
_LONG = 4000  # characters per text; the raw output has longer ones in full


def render(fleet: FleetHealth, context: Context = NOTHING) -> Iterator[str]:
    """Yield the page in pieces."""
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
        # The fabric is not a node and has no section to link to.
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
    """Render another page in the same look, without script. `style`: style sheet after the common one."""
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
    """Clean every value inserted into the page, except Markup, which is trusted (macros, inlined files)."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return clean(value if len(value) <= _LONG else value[: _LONG - 1] + "…")
    return value


def _inline(*scripts: str) -> dict[str, Markup]:
    """Return style and script with the hashes for the page's security policy."""
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    script = "\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in scripts)
    # Safe to mark as Markup: these are our own files without text from nodes.
    return {
        "style": Markup(style),  # noqa: S704
        "script": Markup(script),  # noqa: S704
        "style_hash": Markup(_hash(style)),  # noqa: S704
        "script_hash": Markup(_hash(script)),  # noqa: S704
    }


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _telemetry(nodes: Sequence[NodeHealth], context: Context, room: int) -> dict[str, dict[str, list[Image]]]:
    """Return charts of GPUs under load by node and check, worst node first, as `room` (bytes) allows."""
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
    """Return each GPU named by (device, verdict) pairs, with its worst verdict other than pass and skip."""
    bad: dict[str, Verdict] = {}
    for device, verdict in wrong:
        for name in _GPU.findall(device) if verdict in _TROUBLED else ():
            bad[name] = max(bad.get(name, verdict), verdict, key=lambda v: v.badness)
    return bad


def _picture(image: Image) -> Markup:
    """Return a chart as Markup: our own markup with escaped texts, which may exceed the limit for texts."""
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
    """Render the section of each node, worst first, up to the budget (bytes without charts).

    `brief`: faults only; `first`: number of the first of these nodes."""
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
    """Return a node's facts in one line, for the table: `h100-sxm · driver 580.126.09`."""
    names = [
        str(node.facts[key])
        for key in ("sku", "driver", "driver_version", "driver version")
        if node.facts.get(key)
    ]
    return " · ".join(one_line(name, 60) for name in names)


# Built once, since a fleet's table has tens of thousands of these cells. No text from nodes.
_CELLS = {
    v: Markup('<td class="v-{0}" data-s="{1}">{2} {0}</td>').format(v.value, v.badness, SYMBOLS[v])
    for v in Verdict
}
_DID_NOT_RUN = Markup('<td class="v-error" data-s="3.5">? did not run</td>')


def _cell(verdict: Verdict) -> Markup:
    return _CELLS[verdict]


def _check_cells(node: NodeHealth, checks: Sequence[str]) -> Markup:
    """Render the cells of one row, one verdict per check; a missing check was not measured."""
    have = {check.check: check.verdict for check in node.checks}
    return Markup("").join(_CELLS[have[name]] if name in have else _DID_NOT_RUN for name in checks)


def _breakable(text: str, after: str = "_") -> Markup:
    """Allow a line break after each `after` character, such as the underscores of a check's name."""
    return Markup("{}<wbr>").format(after).join(_shown(part) for part in text.split(after))


def _folded(names: Iterable[str], limit: int) -> Markup:
    """Fold nodes into ranges, with line breaks allowed only between ranges."""
    return _breakable(fold(names, limit), ",")


def _evidence(lines: Sequence[str]) -> str:
    shown = "\n".join(columns(line) for line in lines[:_EVIDENCE])
    return f"{shown}\n… {len(lines) - _EVIDENCE:,} more lines" if len(lines) > _EVIDENCE else shown


def _row_words(node: NodeHealth) -> str:
    """Return search words of a node in addition to its row: serial numbers and faults."""
    words = [gpu.serial for gpu in node.gpus]
    wrong = [finding for check in node.checks for finding in check.wrong]
    words += [f"{one_line(f.device, 40)} {one_line(f.message, 120)}" for f in wrong[:8]]
    return " ".join(words).lower()


def _batched(stream: Iterator[str]) -> Iterator[str]:
    """Join pieces into batches: Jinja2 yields one per tag, and writing each costs more than rendering it."""
    batch: list[str] = []
    for piece in stream:
        batch.append(piece)
        if len(batch) >= 2000:
            yield "".join(batch)
            batch.clear()
    yield "".join(batch)


# --- the table of a large fleet as data, from which the page's script draws only visible rows. As markup, ten
# thousand rows take 15 MB, and seconds per keystroke in a browser. As data, values that nodes share (verdicts
# of all checks, facts, messages) are stored once.


MANY = 1000  # nodes; up to this many, all rows are in the page as markup
_WORST = sorted(Verdict, key=lambda verdict: -verdict.badness)
_MESSAGES = 8  # searchable messages per node


class _Shared:
    """Texts stored once: `of` returns a text's index in `all`."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def of(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    @property
    def all(self) -> list[str]:
        return list(self._places)


def data(nodes: Sequence[NodeHealth], checks: Sequence[str], facts: Callable[[NodeHealth], str]) -> Markup:
    """Build the rows for templates/fleet.js, in the given order.

    A row: name, verdict index, index of its checks' verdicts (a digit each, `.` for a check that did not
    run), number of GPUs, facts index, serial numbers, fault indexes. No node name can end the script or start
    markup."""
    cells, fact_texts, wrong = _Shared(), _Shared(), _Shared()
    rank = {verdict: str(number) for number, verdict in enumerate(_WORST)}
    rows: list[list[Any]] = []
    for node in nodes:
        have = {check.check: rank[check.verdict] for check in node.checks}
        findings = [finding for check in node.checks for finding in check.wrong][:_MESSAGES]
        rows.append(
            [
                one_line(node.node, 200),
                int(rank[node.verdict]),
                cells.of("".join(have.get(name, ".") for name in checks)),
                len(node.gpus),
                fact_texts.of(clean(facts(node))),
                " ".join(one_line(gpu.serial, 60) for gpu in node.gpus),
                [wrong.of(f"{one_line(f.device, 40)} {one_line(f.message, 120)}") for f in findings],
            ]
        )
    document = {
        "verdicts": [[verdict.value, SYMBOLS[verdict], verdict.badness] for verdict in _WORST],
        "checks": [one_line(name, 60) for name in checks],
        "cells": cells.all,
        "facts": fact_texts.all,
        "wrong": wrong.all,
        "rows": rows,
    }
    text = json.dumps(document, separators=(",", ":"))  # pure ASCII
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704 - escaped for a script of data above
