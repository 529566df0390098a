"""Writer of a burn-in's files (record, pages, node lists, checksums); drains failed nodes, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provision import report
from provision.burnin import record
from provision.burnin.campaign import Campaign
from provision.burnin.results import Results
from provision.burnin.watch import series
from provision.checks.gpu.telemetry_rows import Series
from provision.checks.health import FleetHealth
from provision.checks.judge import Verdict
from provision.fleet import Fleet
from provision.node_names import file_name
from provision.remote.schedulers import chosen
from provision.report import html, plots
from provision.report.canvas import Image
from provision.runs.store import RunFolder
from provision.secrets_mask import masked, secrets_of
from provision.up import hooks

RECORD = "record.json"
SUMS = "SHA256SUMS"
_DRAWN = 128  # nodes with telemetry charts, worst first: a record must not take longer to write than to read


def write(run: Campaign, found: Results) -> dict[str, Path]:
    """Write the fleet's and the nodes' records, node lists, JUnit and checksums; return name → file.

    Records are JSON and HTML; the checksums cover them and the collected files."""
    folder = run.folder
    worst = sorted(found.nodes, key=lambda name: -found.nodes[name].burned.health.verdict.badness)
    watched = {name: found.nodes[name].watch for name in worst[:_DRAWN]}
    drawn = {name: series(watch) for name, watch in watched.items() if watch is not None}
    fleet = record.document(found, folder.meta(), run.name)
    written = {"record": _both(folder, "record", fleet, drawn)}
    for name in found.nodes:
        mine = {name: drawn[name]} if name in drawn else {}
        _both(folder, f"records/{file_name(name)}", record.of_node(fleet, name), mine)
    written |= report.write_all(found.health, folder, ["json", "junit", "nodes"])
    folder.write(SUMS, _sums(folder.path))
    written["checksums"] = folder.path / SUMS
    return written


def _both(folder: RunFolder, name: str, document: Mapping[str, Any], drawn: Mapping[str, Any]) -> Path:
    text = record.text(document)
    folder.write(f"{name}.json", text)
    page = "".join(render(document, drawn, record.checksum(text)))
    return folder.write(f"{name}.html", page)


def _sums(path: Path) -> str:
    """Return checksums of the record, its pages and their sources, in the format of sha256sum."""
    files = [
        file
        for below in ("record.*", "records/*", "orders.jsonl", "facts.jsonl", "contacts.jsonl", "spool/**/*")
        for file in sorted(path.glob(below))
        if file.is_file() and not file.name.startswith(".")
    ]
    return "".join(f"{record.checksum(file.read_bytes())}  {file.relative_to(path)}\n" for file in files)


def drain(run: Campaign, found: Results, fleet: Fleet, overrides: Mapping[str, Any]) -> dict[str, str]:
    """Drain the failed nodes by the inventory's hooks and schedulers; return node → why draining failed."""
    configured = hooks.load(fleet, overrides)
    schedulers = chosen.load(fleet, overrides)
    already = {str(node) for row in run.folder.read("hooks") for node in row.get("nodes") or ()}
    bad = [
        name
        for name, one in found.nodes.items()
        if name in fleet.nodes
        and one.burned.over
        and one.burned.health.verdict in (Verdict.FAIL, Verdict.ERROR)
        and name not in already
    ]
    secrets = secrets_of(*(run.variables[name] for name in run.variables))

    def heard(called: hooks.Called) -> None:
        run.folder.append("hooks", masked(asdict(called), secrets))

    about = {name: {"reason": reason(found.health, name), "roles": [], "reboot": False} for name in bad}
    caller = hooks.Runner(configured, run.name, fleet.source, lambda _event, _nodes: None, heard, about)
    reasons = {
        name: f"burn-in {run.name}: {masked(about[name]['reason'], secrets)}"
        for name in bad
        if name in schedulers.of
    }
    problems = schedulers.drain(reasons)
    for name in reasons.keys() - problems.keys():
        heard(hooks.Called(hooks.DRAIN, (name,), "", 0, 0.0, ""))
    return {**caller.call(hooks.DRAIN, bad, 0, "burnin"), **problems}


def reason(health: FleetHealth, name: str) -> str:
    """Return the reason why a node is unfit, in one line: its worst finding."""
    node = next(one for one in health.nodes if one.node == name)
    findings = [finding for check in node.checks for finding in check.findings]
    worst = max(findings, key=lambda finding: finding.verdict.badness, default=None)
    if worst is None:
        return node.error or "nothing was measured"
    return f"{worst.device}: {worst.message}"[:300]


def summary(run: Campaign, found: Results, drained: Sequence[str]) -> list[str]:
    """Return the summary lines printed at the end."""
    fleet = record.document(found, run.folder.meta(), run.name)
    lines = [
        f"burn-in {run.name}: {fleet['load_hours']:.4g} node-hours under load"
        + ("" if fleet["over"] else "; it is still running")
    ]
    for node in fleet["nodes"]:
        bad = [row for row in node["findings"] if row["verdict"] not in ("pass", "skip")]
        lines.append(f"  {node['node']}: {node['verdict']}")
        for row in bad[:4]:
            since = f"; since {row['since']}" if row["since"] else ""
            during = f", during {row['during']}" if row["during"] and since else ""
            lines.append(
                f"      {row['verdict']:<5} {row['check']} {row['device']}: {row['message']}{since}{during}"
            )
        if len(bad) > 4:
            lines.append(f"      and {len(bad) - 4} more")
    lines += [f"  {line}" for line in fleet["not_compared"]]
    lines += [f"  drained: {', '.join(drained)}"] if drained else []
    return lines


# --- record.html: the record for printing, signing and filing; one file, no network. It contains only the
# record (JSON) and the samples in its charts; texts from nodes are escaped as in every report (html.py).


_CHARTED = 24  # nodes with charts, worst first, so that the page still opens and prints
_COURSE = 60  # lines of a node's history
_FINDINGS = 60
_HOT, _WARM = 12.0, 6.0  # degrees above the median of the same place on the other nodes


def render(record: Mapping[str, Any], series: Mapping[str, Mapping[str, Series]], sha: str) -> Iterator[str]:
    """Render the page in pieces. `series`: node → device → its samples; `sha`: of the record's JSON."""
    nodes = sorted(record["nodes"], key=lambda node: -Verdict(node["verdict"]).badness)
    charts = {node["node"]: _charts(node, series.get(node["node"], {})) for node in nodes[:_CHARTED]}
    yield from html.page(
        "record.html.j2",
        "record.css",
        record=record,
        nodes=nodes,
        verdict=Verdict(record["verdict"]),
        verdict_of=Verdict,
        charts={name: images for name, images in charts.items() if images},
        sha=sha,
        course_shown=_COURSE,
        findings_shown=_FINDINGS,
        thermal=_thermal(record),
        load_words=_load_words,
        headline=_headline(record),
    )


def _charts(node: Mapping[str, Any], series: Mapping[str, Series]) -> list[Image]:
    bad = html.standing_out((str(f["device"]), Verdict(f["verdict"])) for f in node["findings"])
    return plots.telemetry(series, bad) if series else []


def _headline(record: Mapping[str, Any]) -> str:
    """Return the headline: `6 of 8 nodes accepted`."""
    accepted = sum(node["verdict"] in ("pass", "warn") and node["over"] for node in record["nodes"])
    count = len(record["nodes"])
    headline = f"{accepted} of {count} node{'s' * (count != 1)} accepted"
    if count == 1:
        headline = f"{record['nodes'][0]['node']} {'accepted' if accepted else 'not accepted'}"
    return headline if record["over"] else f"{headline}; the burn-in is not over"


def _thermal(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the table of temperatures by place: each cell has its text and how far it stands out."""
    tables = []
    for sku in dict.fromkeys(row["sku"] for row in record["thermal"]):
        rows = [row for row in record["thermal"] if row["sku"] == sku]
        names = list(dict.fromkeys(name for row in rows for name in row["celsius"]))
        tables.append(
            {
                "sku": sku,
                "nodes": names[:12],
                "more": max(0, len(names) - 12),
                "rows": [
                    (row["place"], [_cell(row["celsius"], name) for name in names[:12]]) for row in rows
                ],
            }
        )
    return tables


def _cell(values: Mapping[str, float], name: str) -> tuple[str, str]:
    """Return a cell's text and its CSS class."""
    if name not in values:
        return "—", ""
    others = sorted(value for other, value in values.items() if other != name)
    if len(others) < 3:
        return f"{values[name]:.0f}", ""
    far = values[name] - others[len(others) // 2]
    return f"{values[name]:.0f}", "hot" if far > _HOT else "warm" if far > _WARM else ""


def _load_words(seconds: float) -> str:
    """Format seconds under load as readable text."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.2f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
