"""Rules for kernel log lines about the host: hung tasks, machine checks, drives, network cards.

Text → findings, by the catalogue provision/data/host_lines.yml, which also covers file systems. All lines of
one device form one incident: a failed drive takes its file system down with it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from provision import shipped
from provision.checks.check import CheckNode, Command, Measurement, Output
from provision.checks.judge import Finding, Verdict, finding_on, unmeasured
from provision.checks.kernel import kernel_log, kernel_meaning

METRIC = "host_line."  # prefix of a line's id
MANY = 100  # lines counted per kind and device: a node stores no more of them
_DRIVE = re.compile(r"(nvme\d+)n\d+")


@dataclass(frozen=True)
class Log:
    """A log with the catalogue `document` of its lines; `metric` is the prefix of a line's id."""

    document: str
    writer: str
    metric: str
    source: str


KERNEL = Log("host_lines", "the kernel", METRIC, "Linux or driver source: ")


@dataclass(frozen=True)
class Line:
    """A row of a catalogue at position `rank`; a later line of the kinds `until` supersedes it."""

    rank: int
    id: str
    line: re.Pattern[str]
    level: str
    action: str
    meaning: str
    source: str
    unless: str = ""
    until: Sequence[str] = ()


@dataclass(frozen=True)
class HostEvent:
    """Count and one sample of a kind of line about one device (`node` if the line names none)."""

    id: str
    device: str
    count: int
    line: str


@cache
def catalogue(document: str = KERNEL.document) -> Mapping[str, Line]:
    """Return the catalogue's rows by id, causes before their consequences."""
    data, rows = shipped.load_mapping(document), {}
    for rank, row in enumerate(data["lines"]):
        text = row["line"]
        for name, words in data.get("words", {}).items():
            text = text.replace(f"<{name}>", words)
        rows[row["id"]] = Line(**{**row, "rank": rank, "line": re.compile(text)})
    return rows


@cache
def _any(document: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{row.line.pattern})" for row in catalogue(document).values()))


def kind_of(text: str, document: str = KERNEL.document) -> tuple[str, str] | None:
    """Return (id, device) of a message without its stamp."""
    if not _any(document).match(text):
        return None
    for row in catalogue(document).values():
        if match := row.line.match(text):
            return row.id, _device(match[1] if row.line.groups else "")
    return None


def _device(name: str) -> str:
    if not name:
        return "node"
    drive = _DRIVE.fullmatch(name)
    return drive[1] if drive else name.lower()


def events(texts: Iterable[str]) -> list[HostEvent]:
    """Count the known lines among messages without stamps."""
    seen: dict[tuple[str, str], list[str]] = defaultdict(list)
    for text in texts:
        if kind := kind_of(text):
            seen[kind].append(text)
    return [HostEvent(*kind, len(lines), lines[0][:300]) for kind, lines in sorted(seen.items())]


def kept(messages: Iterable[str], known: Iterable[str]) -> list[str]:
    """Select the messages (with stamps) to store in addition to `known`, those stored from this boot."""
    selected, counted = [], Counter(map(kind_of, kernel_log.texts(known)))
    for message in messages:
        kind = kind_of(kernel_log.text_of(message))
        if kind and catalogue()[kind[0]].level != "info" and counted[kind] < MANY:
            counted[kind] += 1
            selected.append(message)
    return selected


def commands() -> list[Command]:
    """Return the commands to read the kernel log: the journal, and dmesg for times without journald."""
    kept_words = shipped.load_mapping(KERNEL.document)["kept"]
    return [
        Command("journal", kernel_log.JOURNAL, 60.0, keep=(*kernel_log.KEPT, *kept_words)),
        Command("dmesg", ("dmesg",), 30.0),
    ]


def measured(outputs: Mapping[str, Output]) -> list[Measurement]:
    """Return the events of this boot from both logs; `unreadable_log` if neither could be read."""
    logs = [output for name in ("journal", "dmesg") if (output := outputs.get(name)) is not None]
    seen: dict[tuple[str, str], HostEvent] = {}
    problems = []
    for output in logs:
        problem, texts = kernel_log.messages(output)
        problems += [problem] if problem else []
        for event in events(texts):
            previous = seen.get((event.id, event.device))
            if previous is None or previous.count < event.count:
                seen[event.id, event.device] = event
    measurements = []
    for event in seen.values():
        measurements.append(Measurement(f"{METRIC}{event.id}", event.count, "lines", event.device))
        measurements.append(Measurement(f"{METRIC}{event.id}.line", event.line, "", event.device))
    if logs and len(problems) == len(logs):
        measurements.append(Measurement("unreadable_log", "; ".join(problems), ""))
    return measurements


def remembered(measurements: Iterable[Measurement]) -> list[HostEvent]:
    """Rebuild the events from the measurements of `measured`."""
    rows: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for m in measurements:
        name, _, part = m.metric.removeprefix(METRIC).partition(".")
        if m.metric.startswith(METRIC) and name in catalogue():
            rows[name, m.device][part or "count"] = m.value
    return [HostEvent(*kind, row["count"], str(row["line"])) for kind, row in rows.items()]


def judge(
    check: str, node: CheckNode, found: Iterable[HostEvent], log: Log = KERNEL, *, during: bool = False
) -> list[Finding]:
    """Return a finding for each device with actionable lines; on the node, one for each kind of line.

    `during`: the lines were logged while one of our programs ran, not since boot.
    """
    incidents: dict[tuple[str, str], list[tuple[Line, HostEvent]]] = defaultdict(list)
    for event in found:
        line = catalogue(log.document)[event.id]
        if line.level == "info" or (line.unless and node.facts.get(line.unless) is True):
            continue
        key = event.device, event.id if event.device == "node" else ""
        incidents[key].append((line, event))
    return [
        _finding(check, device, sorted(rows, key=lambda row: row[0].rank), log, during)
        for (device, _), rows in sorted(incidents.items())
    ]


def judge_log(
    check: str, node: CheckNode, measurements: Sequence[Measurement], known: Sequence[Finding]
) -> list[Finding]:
    """Judge the log of this boot, without the memory errors that EDAC counters (`known`) report."""
    counted = any(one.metric == "memory_uncorrected" for one in known)
    relevant = [one for one in remembered(measurements) if not (counted and one.id == "edac_uncorrected")]
    unread = [str(m.value) for m in measurements if m.metric == "unreadable_log"]
    return [
        *judge(check, node, relevant),
        *(unmeasured(check, f"the kernel log could not be read: {why}; run it as root") for why in unread),
    ]


def _finding(
    check: str, device: str, rows: Sequence[tuple[Line, HostEvent]], log: Log, during: bool
) -> Finding:
    root, event = rows[0]
    lines = [line for line, _ in rows]
    often = (
        f"{MANY} times or more" if event.count >= MANY else f"{event.count} time{'s' * (event.count != 1)}"
    )
    message = f"{log.writer} logged: {root.meaning}; {often} {'during this test' if during else 'since boot'}"
    if rows[1:]:
        message += f"; with it: {'; '.join(line.meaning for line in lines[1:])}"
    return finding_on(
        check,
        Verdict.FAIL if any(line.level == "fail" for line in lines) else Verdict.WARN,
        Measurement(f"{log.metric}{root.id}", event.count, "lines", device),
        message,
        "",
        f"{log.source}{root.source}",
        max((line.action for line in lines), key=kernel_meaning.ACTIONS.index),
        [event.line for _, event in rows][:5],
    )
