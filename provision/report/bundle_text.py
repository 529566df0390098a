"""The readable files of an evidence bundle, for the first reader at the vendor (pure)."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Finding, Verdict, number
from provision.report.causes import missing, silence
from provision.text import clean, columns, many, moment, one_line, quantity

_EVIDENCE = 40  # lines of raw output shown below a finding; raw/ has the rest
_PART_NUMBER = re.compile(r"<board_part_number>([^<]{1,80})</board_part_number>")


@dataclass(frozen=True)
class Moment:
    """One event. `at`: ISO 8601 UTC, as precise as known; `run`: the run's name; `what`: one line."""

    at: str
    run: str
    what: str


def readme(
    fleet: FleetHealth, node: NodeHealth, seen: Mapping[str, Any], raw: Sequence[Mapping[str, Any]]
) -> str:
    """Render the summary from the node's entry of facts.jsonl (`seen`) and its checks' documents (`raw`)."""
    title = f"GPU health evidence: {one_line(node.node, 200)}"
    lines = [title, "=" * len(title), ""]
    lines += [
        f"verdict   {node.verdict.value}",
        f"measured  {moment(fleet.started)}, run {one_line(fleet.run_id, 120)}",
        f"by        gpuprov {one_line(fleet.gpuprov_version, 40)}",
    ]
    if node.error or node.unreachable:
        lines.append(f"          {silence(node)}")
    if absent := missing(fleet, node):
        lines.append(f"          did not run: {', '.join(absent)}")
    lines += ["", *_heading("Machine"), *_machine(node, seen)]
    lines += ["", *_heading("GPUs"), *_gpus(node, seen, raw)]
    return "\n".join(lines) + "\n"


def findings(node: NodeHealth, rows: Sequence[Row]) -> str:
    """Render the summary's second part: every finding except passes, worst first, next to peers' values."""
    judged = [finding for check in node.checks for finding in check.findings]
    bad = sorted((f for f in judged if f.verdict is not Verdict.PASS), key=lambda f: -f.verdict.badness)
    lines = ["", *_heading(f"Findings: {len(bad)} bad, {len(judged) - len(bad)} passed")]
    if not bad:
        lines.append("every check that ran passed" if judged else "nothing was measured")
    for finding in bad:
        lines += ["", *_finding(node, finding, rows)]
    return "\n".join(lines) + "\n"


def _heading(text: str) -> list[str]:
    return [text, "-" * len(text)]


def _machine(node: NodeHealth, seen: Mapping[str, Any]) -> Iterator[str]:
    facts, problems = _mapping(seen.get("facts")), _mapping(seen.get("problems"))
    rows = [
        ("system", facts.get("firmware.system")),
        ("BIOS", facts.get("firmware.bios_version")),
        ("CPU microcode", facts.get("firmware.cpu_microcode")),
        ("operating system", node.facts.get("os")),
        ("kernel", node.facts.get("kernel")),
        ("driver", node.facts.get("driver")),
        ("driver module", facts.get("driver.flavour")),
        ("GPUs", f"{node.facts.get('gpus', '')} {node.facts.get('sku', '')}".strip()),
        ("NVSwitches", facts.get("gpu.nvswitch_count")),
    ]
    for name, value in rows:
        yield f"{name:<17} {one_line(str(value)) if value not in (None, '') else 'not stated'}"
    for card in facts.get("firmware.rdma") or ():
        if isinstance(card, Mapping):
            words = (str(card.get(key) or "?") for key in ("device", "address", "board_id", "firmware"))
            yield f"{'network card':<17} {one_line(', '.join(words))}"
    for fact, why in sorted(problems.items()):
        yield f"{'not read':<17} {one_line(f'{fact}: {why}', 300)}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _gpus(node: NodeHealth, seen: Mapping[str, Any], raw: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    vbios = {
        m.device: str(m.value) for check in node.checks for m in check.measurements if m.metric == "vbios"
    }
    parts = part_numbers(raw)
    if not node.gpus:
        uuids = _mapping(seen.get("facts")).get("firmware.gpu_uuid")
        yield "the identities of its GPUs were not measured"
        if isinstance(uuids, list):
            yield from (f"gpu{index}  uuid {one_line(str(uuid), 60)}" for index, uuid in enumerate(uuids))
        return
    heads = ("gpu", "model", "serial number", "part number", "VBIOS", "PCI address", "UUID")
    table = [
        (
            f"gpu{gpu.index}", gpu.name, gpu.serial, parts.get(_bus(gpu.pci_address), ""),
            vbios.get(f"gpu{gpu.index}", ""), gpu.pci_address, gpu.uuid,
        )
        for gpu in node.gpus
    ]  # fmt: skip
    yield from aligned([heads, *table])


def part_numbers(raw: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return PCI address (bus and device) → board part number, if output of `nvidia-smi -q -x` is stored."""
    numbers = {}
    for document in raw:
        for output in document.get("outputs") or ():
            text = output.get("stdout") if isinstance(output, Mapping) else None
            for piece in text.split('<gpu id="')[1:] if isinstance(text, str) else ():
                if match := _PART_NUMBER.search(piece):
                    numbers[_bus(piece.partition('"')[0])] = match[1].strip()
    return numbers


def _bus(address: str) -> str:
    """Normalise a PCI address: 00000000:18:00.0 and 0000:18:00.0 are the same bus."""
    return address.lower().partition(":")[2] or address.lower()


def _finding(node: NodeHealth, finding: Finding, rows: Sequence[Row]) -> Iterator[str]:
    check = f"{finding.check}: " if finding.check else ""
    verdict = finding.verdict.value.upper()
    yield f"{verdict} {one_line(finding.device, 80)}: {check}{one_line(finding.message)}"
    named = set(re.findall(r"\bgpu\d+\b", finding.device))
    for gpu in node.gpus:
        if f"gpu{gpu.index}" in named:
            words = f"serial {gpu.serial or 'not stated'}, {gpu.pci_address}, {gpu.uuid}"
            yield f"  gpu{gpu.index}      {one_line(words, 300)}"
    if finding.value is not None:
        yield f"  measured  {quantity(finding.value, finding.unit)}"
    if finding.limit:
        yield f"  limit     {one_line(finding.limit, 200)}"
        yield f"  source    {one_line(finding.source or 'not stated')}"
    for line in beside(finding, rows)[:8]:
        yield f"  peers     {one_line(line, 300)}"
    yield f"  action    {finding.action}"
    for line in finding.evidence[:_EVIDENCE]:
        yield f"  | {columns(line)}"


def timeline(moments: Iterable[Moment]) -> str:
    """Render the history, one line per event."""
    return "".join(
        f"{moment(one.at):<24} {one_line(one.run, 60)}  {_indented(one.what)}\n" for one in moments
    )


def _indented(text: str) -> str:
    return " " * (len(text) - len(text.lstrip(" "))) + one_line(text, 400)


def measurements(rows: Sequence[Row]) -> str:
    """Render a table of every value next to its peers' values."""
    heads = (
        "check",
        "metric",
        "device",
        "value",
        "unit",
        "others on the node",
        "count",
        "other nodes",
        "count",
    )
    table = [
        (
            row.check, row.metric, row.device, quantity(row.value), row.unit, quantity(row.here),
            str(row.here_count), quantity(row.fleet), str(row.fleet_nodes),
        )
        for row in rows
    ]  # fmt: skip
    text = "others on the node: the median of the node's other devices of the kind\n"
    text += "other nodes: the median of the same device on as many other nodes of the SKU\n\n"
    return text + "\n".join(aligned([heads, *table])) + "\n"


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align rows in columns that fit their widest cell."""
    cells = [[one_line(cell, 80) or "-" for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def output(document: Mapping[str, Any]) -> str:
    """Render the raw output of one check as a terminal would have shown it."""
    parts = []
    if document.get("error"):
        parts.append(f"nothing came back: {document['error']}\n")
    for one in document.get("outputs") or ():
        if not isinstance(one, Mapping):
            continue
        words = one.get("argv")
        command = " ".join(map(str, words)) if isinstance(words, list) else str(one.get("name"))
        ends = [f"exit status {one.get('rc')}", f"{one.get('seconds')} s"]
        ends += [word.replace("_", " ") for word in ("timed_out", "truncated") if one.get(word)]
        ends += [f"did not start: {one['not_started']}"] if one.get("not_started") else []
        parts.append(f"$ {command}\n# {', '.join(ends)}\n{one.get('stdout') or ''}\n")
        if one.get("stderr"):
            parts.append(f"# standard error\n{one['stderr']}\n")
    return clean("\n".join(parts).replace("\r\n", "\n").replace("\r", "\n"))


def removals(removed: Mapping[str, int]) -> str:
    """Render the list of removed kinds with the number of removals."""
    lines = ["", *_heading("Removed from every file")]
    lines += [f"{kind:<24} {many(count, 'place')}" for kind, count in sorted(removed.items()) if count]
    lines += [] if any(removed.values()) else ["nothing: no secret and no name of another machine was found"]
    return "\n".join(lines) + "\n"


def contents(files: Mapping[str, bytes], notes: Iterable[str]) -> str:
    """Render the archive's table of contents, and the notes on missing parts."""
    words = {
        "findings.json": "every judged measurement, with its limit, the limit's source and the action",
        "measurements.txt": "every number beside those of its peers (measurements.json for programs)",
        "timeline.txt": "the node's history, in this run and before",
        "facts.json": "the node's observed facts: firmware, links, packages",
        "raw/": "the output of each check: .txt to read, .json with exit status and times",
        "MANIFEST.sha256": "check with: sha256sum -c MANIFEST.sha256",
    }
    lines = ["", *_heading(f"In this archive: {many(len(files) + 2, 'file')}")]
    lines += [f"{name:<18} {about}" for name, about in words.items()]
    return "\n".join([*lines, *(f"\n{note}" for note in notes)]) + "\n"


# --- a node's measurements next to those of its peers: its own other devices, and the same device on other
# nodes. Only medians and counts of other nodes are kept, so that a bundle names no other machine.


@dataclass(frozen=True)
class Row:
    """One value with the medians of its peers, None without any.

    `here`: of the node's `here_count` other devices of the kind; `fleet`: of the same device on `fleet_nodes`
    other nodes of the SKU."""

    check: str
    metric: str
    device: str
    value: float
    unit: str
    here: float | None
    here_count: int
    fleet: float | None
    fleet_nodes: int


_Key = tuple[str, str, str, str]  # check, metric, unit, device


def rows(fleet: FleetHealth, node: NodeHealth) -> list[Row]:
    """Return every value that the node's checks measured, in their order."""
    sku = node.facts.get("sku")
    places: dict[_Key, list[float]] = defaultdict(list)
    own = dict(_numbers(node))
    for other in fleet.nodes:
        if sku and other.node != node.node and other.facts.get("sku") == sku:
            for key, value in _numbers(other):
                if key in own:
                    places[key].append(value)
    kinds: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for key, value in own.items():
        kinds[*key[:3], _kind(key[3])].append(value)
    compared = []
    for key, value in own.items():
        check, metric, unit, device = key
        alike = list(kinds[check, metric, unit, _kind(device)])
        alike.remove(value)
        there = places.get(key, [])
        compared.append(
            Row(check, metric, device, value, unit, _median(alike), len(alike), _median(there), len(there))
        )
    return compared


def _numbers(node: NodeHealth) -> Iterator[tuple[_Key, float]]:
    for check in node.checks:
        for m in check.measurements:
            value = number(m.value)
            if value is not None and math.isfinite(value):
                yield (check.check, m.metric, m.unit, m.device), value


def _kind(device: str) -> str:
    """Return a device's kind for comparison: `gpu3` is compared with GPUs, `gpu0->gpu3` with pairs."""
    return "".join(letter for letter in device if not letter.isdigit())


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def beside(finding: Finding, found: Sequence[Row]) -> list[str]:
    """Compare a finding's value with its peers', one line for each device it names."""
    pair = (
        finding.device.split("-") if finding.device.count("-") == 1 and "->" not in finding.device else None
    )
    devices = {finding.device} if not pair else {"->".join(pair), "->".join(reversed(pair))}
    return [
        f"{row.device}: {quantity(row.value, row.unit)}; {peers}"
        for row in found
        if (row.check, row.metric) == (finding.check, finding.metric) and row.device in devices
        if (peers := told(row))
    ]


def told(row: Row) -> str:
    """Describe the peers: `median of the 7 others on the node 51900 Gflop/s, median of the same place …`."""
    parts = []
    if row.here is not None:
        parts.append(
            f"median of the {many(row.here_count, 'other')} on the node {quantity(row.here, row.unit)}"
        )
    if row.fleet is not None:
        nodes = many(row.fleet_nodes, "other node")
        parts.append(f"median of the same place on {nodes} of the SKU {quantity(row.fleet, row.unit)}")
    return ", ".join(parts)
