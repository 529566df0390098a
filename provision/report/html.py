"""report.html: one file that needs no network, for reading, filtering, printing and forwarding.

Every text from a node passes `_shown` (control characters) and Jinja2's autoescape (markup); a content
security policy in the page allows its own script and style and nothing else, should both ever fail.
"""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from provision.health import FleetHealth, NodeHealth
from provision.judge import Verdict
from provision.node_names import fold, natural
from provision.report.causes import HEADINGS, SYMBOLS, causes, coverage, headline, missing, overall, silence
from provision.report.tables import tables
from provision.report.terminal import next_commands
from provision.wording import clean, columns, duration, many, moment, one_line, quantity

_TEMPLATES = Path(__file__).parent / "templates"
# A browser must stay quick with the whole page. Every node has its row in the table; the full measurements
# come worst node first until this many bytes are spent, and the page says that the rest is in report.json.
_DETAILS = 7_000_000
_CULPRITS = 60  # rows of one cause; the rest are named, and have their own row and details
_CAUSES = 150  # of one verdict
_EVIDENCE = 60  # lines
_TILES = (
    (Verdict.FAIL, "unhealthy"),
    (Verdict.ERROR, "not measured"),
    (Verdict.WARN, "with warnings"),
    (Verdict.SKIP, "skipped: no check applies"),
    (Verdict.PASS, "healthy"),
)
_LONG = 4000  # characters of one text: whatever is longer has its place in the raw output


def render(fleet: FleetHealth) -> Iterator[str]:
    """The page in pieces."""
    environment = _environment()
    nodes = sorted(fleet.nodes, key=lambda node: (-node.verdict.badness, natural(node.node)))
    details, detailed = _details(environment, fleet, nodes)
    checks = list(dict.fromkeys((*fleet.asked, *(check.check for node in nodes for check in node.checks))))
    found = causes(fleet)
    page = environment.get_template("page.html.j2")
    stream = page.generate(
        fleet=fleet,
        nodes=nodes,
        # What is no node, the fabric, has no section to link to.
        ids=defaultdict(lambda: len(nodes), {id(node): number for number, node in enumerate(nodes)}),
        detailed=detailed,
        details=details,
        checks=checks,
        sections=[
            (v, [c for c in found if c.verdict is v]) for v in sorted(HEADINGS, key=lambda v: -v.badness)
        ],
        headline=headline(fleet),
        overall=overall(fleet),
        coverage=coverage(fleet),
        commands=list(next_commands(fleet, found)),
        **_inline(),
    )
    yield from _batched(stream)


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
        duration=duration, moment=moment, many=many, one_line=one_line, quantity=quantity, fold=fold,
        silence=silence, missing=missing, tables=tables, facts=facts, evidence=_evidence,
        row_words=_row_words, badge_cell=_cell, check_cells=_check_cells,
    )  # fmt: skip
    return environment


def _shown(value: Any) -> Any:
    """Every value on its way into the page. Markup is our own (macros, inlined files)."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return clean(value if len(value) <= _LONG else value[: _LONG - 1] + "…")
    return value


def _inline() -> dict[str, Markup]:
    """Style and script, with the hashes that the page's security policy names."""
    style = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    script = (_TEMPLATES / "script.js").read_text(encoding="utf-8")
    # Our own files, no node's text: marking them safe is the point.
    return {
        "style": Markup(style),  # noqa: S704
        "script": Markup(script),  # noqa: S704
        "style_hash": Markup(_hash(style)),  # noqa: S704
        "script_hash": Markup(_hash(script)),  # noqa: S704
    }


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _details(
    environment: Environment, fleet: FleetHealth, nodes: Sequence[NodeHealth]
) -> tuple[list[Markup], int]:
    """The full section of each node, worst first, as far as the budget goes; and how many that are."""
    template = environment.get_template("node.html.j2")
    spent, sections = 0, []
    for number, node in enumerate(nodes):
        section = template.render(fleet=fleet, node=node, number=number)
        spent += len(section.encode(errors="replace"))
        if spent > _DETAILS:
            break
        sections.append(Markup(section))  # noqa: S704 - rendered with autoescape
    return sections, len(sections)


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


def _evidence(lines: Sequence[str]) -> str:
    shown = "\n".join(columns(line) for line in lines[:_EVIDENCE])
    return f"{shown}\n… {len(lines) - _EVIDENCE:,} more lines" if len(lines) > _EVIDENCE else shown


def _row_words(node: NodeHealth) -> str:
    """What a node is found by besides what its row shows: serial numbers, and what is wrong with it."""
    words = [gpu.serial for gpu in node.gpus]
    wrong = [f for check in node.checks for f in check.findings if f.verdict is not Verdict.PASS]
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
