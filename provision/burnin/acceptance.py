"""Writer of a burn-in's files (record, pages, node lists, checksums); it also drains failed nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provision import report
from provision.burnin import record
from provision.burnin.campaign import Campaign
from provision.burnin.results import Results
from provision.burnin.watch import series
from provision.checks.health import FleetHealth
from provision.checks.judge import Verdict
from provision.fleet import Fleet
from provision.report import acceptance
from provision.runs.store import RunFolder, file_name
from provision.secrets_mask import masked, secrets_of
from provision.up import hooks

RECORD = "record.json"
SUMS = "SHA256SUMS"
_DRAWN = 128  # nodes whose telemetry is drawn, worst first: a record must not take longer than its reading


def write(run: Campaign, found: Results) -> dict[str, Path]:
    """The record of the fleet and of each node (JSON and HTML), the node lists and JUnit, and the checksums
    of all of it with what was collected; name → file."""
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
    page = "".join(acceptance.render(document, drawn, record.checksum(text)))
    return folder.write(f"{name}.html", page)


def _sums(path: Path) -> str:
    """As sha256sum writes and checks them: the record, its pages, and what it was made of."""
    files = [
        file
        for below in ("record.*", "records/*", "orders.jsonl", "facts.jsonl", "contacts.jsonl", "spool/**/*")
        for file in sorted(path.glob(below))
        if file.is_file() and not file.name.startswith(".")
    ]
    return "".join(f"{record.checksum(file.read_bytes())}  {file.relative_to(path)}\n" for file in files)


def drain(run: Campaign, found: Results, fleet: Fleet, overrides: Mapping[str, Any]) -> dict[str, str]:
    """Take the nodes that failed out of service, with the reason, where the inventory names a hook for it.
    Node → why that did not work."""
    known = hooks.load(fleet, overrides)
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
    caller = hooks.Runner(known, run.name, fleet.source, lambda _event, _nodes: None, heard, about)
    return caller.call(hooks.DRAIN, bad, 0, "burnin")


def reason(health: FleetHealth, name: str) -> str:
    """Why a node is not fit, in one line: its worst finding."""
    node = next(one for one in health.nodes if one.node == name)
    findings = [finding for check in node.checks for finding in check.findings]
    worst = max(findings, key=lambda finding: finding.verdict.badness, default=None)
    if worst is None:
        return node.error or "nothing was measured"
    return f"{worst.device}: {worst.message}"[:300]


def summary(run: Campaign, found: Results, drained: Sequence[str]) -> list[str]:
    """What a person reads at the end."""
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
            lines.append(f"      {row['verdict']:<5} {row['device']}: {row['message']}{since}{during}")
        if len(bad) > 4:
            lines.append(f"      and {len(bad) - 4} more")
    lines += [f"  {line}" for line in fleet["not_compared"]]
    lines += [f"  drained: {', '.join(drained)}"] if drained else []
    return lines
