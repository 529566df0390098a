"""A report of many nodes, read a node at a time: of each only what every report shows stays in memory.

report.json has one line for each node (report/json.py). Verdicts and what is no pass are kept; passed
findings and measurements, nearly all of it, are read from the line where something shows them: measurements
are not even parsed before. A report.json of another layout is left to `health.from_json`, which needs all
of it in memory at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

from provision import health
from provision.checks.check import GpuIdentity, Measurement
from provision.errors import RunFolderError
from provision.health import CheckResult, FleetHealth, NodeHealth
from provision.judge import Finding, Verdict
from provision.later import Later

T = TypeVar("T")
_BUFFER = 1 << 20  # bytes: lines have tens of thousands
_HEAD, _TAIL = b'"nodes": [', b"]}"
_CHECK = frozenset(one.name for one in fields(CheckResult))
_NAME = b'"measurements"'
_ROWS, _AFTER_ROWS = b', "measurements": [', b'], "seconds": '
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
_VERDICTS: Mapping[str, Verdict] = {verdict.value: verdict for verdict in Verdict}


class StoredNodes(tuple[NodeHealth, ...]):
    """The nodes of a stored report, with the lines they were read from."""

    lines: Lines

    def texts(self) -> Iterator[str]:
        """Each node as it is written: a JSON object. Raises RunFolderError when what was not read yet
        is none: what is damaged is not passed on."""
        for number in range(len(self)):
            self.lines.node(number)
            yield self.lines.text(number).decode()


class Lines:
    """The lines of an open report.json, by node. The file stays open: what replaces it meanwhile, as the same
    report written again, is another file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        weakref.finalize(self, os.close, descriptor)
        self._starts, self._lengths = array("q"), array("q")
        self._last: tuple[int, Mapping[str, Any]] = (-1, {})
        self._searched: tuple[int, bytes] = (-1, b"")

    def add(self, start: int, length: int) -> None:
        self._starts.append(start)
        self._lengths.append(length)

    def text(self, node: int) -> bytes:
        """One node's line."""
        text = os.pread(self._descriptor, self._lengths[node], self._starts[node])
        if len(text) != self._lengths[node]:
            raise RunFolderError(f"{self.path} was cut while it was read", "add --rejudge to create it again")
        return text

    def node(self, node: int) -> Mapping[str, Any]:
        """One node's record; the last one asked for is at hand."""
        if self._last[0] != node:
            try:
                self._last = node, json.loads(self.text(node))
            except (ValueError, RecursionError) as error:
                raise self.strange(node, error) from error
        return self._last[1]

    def mentions(self, node: int, metric: str) -> bool:
        """Whether the line has a row of this metric, without parsing it: a quote within a text of JSON is
        escaped, so no text that only looks like a row is taken for one."""
        if self._searched[0] != node:
            self._searched = node, self.text(node)
        text = self._searched[1]
        return json.dumps({"metric": metric})[1:-1].encode() in text

    def strange(self, node: int, error: Exception) -> RunFolderError:
        """What to raise for a node that does not fit the schema."""
        what = f"{self.path}: not a health report: node {node + 1}: {type(error).__name__}: {error}"
        return RunFolderError(what, "add --rejudge to create it again")


class _Rows(Generic[T]):
    """One list of a check, as objects; those of the last node asked for are at hand."""

    def __init__(self, lines: Lines, name: str, made: Callable[[Mapping[str, Any]], T]) -> None:
        self._lines, self._name, self._made = lines, name, made
        self._node = -1
        self._known: dict[int, tuple[T, ...]] = {}

    def mentions(self, node: int, metric: str) -> bool:
        return self._lines.mentions(node, metric)

    def rows(self, node: int, check: int) -> tuple[T, ...]:
        if node != self._node:
            self._node, self._known = node, {}
        if check not in self._known:
            try:
                rows = self._lines.node(node)["checks"][check][self._name]
                self._known[check] = tuple(self._made(row) for row in rows)
            except _DAMAGED as error:
                raise self._lines.strange(node, error) from error
        return self._known[check]


def read(path: Path) -> FleetHealth:
    """The report in this file. Raises RunFolderError, OSError, or ValueError when it is no JSON."""
    try:
        return _streamed(path) or health.from_json(json.loads(path.read_text(encoding="utf-8")))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _streamed(path: Path) -> FleetHealth | None:
    """The report, if it has a line for each node."""
    with path.open("rb", buffering=_BUFFER) as file:
        return _from(path, file)


def _from(path: Path, file: IO[bytes]) -> FleetHealth | None:
    head = file.readline().rstrip()
    if not head.endswith(_HEAD):
        return None
    try:
        fleet = health.from_json(json.loads(head + _TAIL))
    except (ValueError, RecursionError):
        return None
    lines = Lines(path, os.dup(file.fileno()))
    nodes: list[NodeHealth] = []
    builder, place = _Builder(lines), file.tell()
    for line in file:
        text = line.rstrip(b" \r\n,")
        if text == _TAIL and not file.read(4096).strip():
            stored = StoredNodes(nodes)
            stored.lines = lines
            return replace(fleet, nodes=stored)
        try:
            record = _record(text)
        except (ValueError, RecursionError):
            return None  # another layout, or damaged: whoever reads it whole says which
        lines.add(place, len(text))
        place += len(line)
        nodes.append(builder.node(record))
    return None


def _record(text: bytes) -> Any:
    """A node without its measurements, which are most of a line, where that is certain; else the whole."""
    short, lists = _without_rows(text)
    if lists:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            record = json.loads(short)
            checks = record["checks"]
            if len(checks) == lists and all(check.keys() >= _CHECK for check in checks):
                return record
    return json.loads(text)


def _without_rows(text: bytes) -> tuple[bytes, int]:
    """The line with each list of measurements empty, and how many lists these are.

    No text of a node is taken for a list's begin or end: within a text of JSON each quote has a backslash
    before it, and here neither quote of a name has one. In a line whose fields are in another order a list
    may seem to end too early or too late; that leaves brackets without a match, or takes a field or a check
    with it, which `_record` sees.
    """
    pieces, place, lists, named = [], 0, 0, text.count(_NAME)
    while (start := text.find(_ROWS, place)) >= 0:
        end = text.find(_AFTER_ROWS, start)
        if end < 0:
            return text, 0
        pieces.append(text[place : start + len(_ROWS)])
        place, lists = end, lists + 1
    return (b"".join((*pieces, text[place:])), lists) if lists == named else (text, 0)


class _Builder:
    """Makes the nodes; texts that many nodes share are kept once."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._findings = _Rows(lines, "findings", health.finding_from)
        self._measurements = _Rows(lines, "measurements", health.measurement_from)
        self._count = 0
        self._words: dict[str, str] = {}

    def node(self, record: Mapping[str, Any]) -> NodeHealth:
        number, self._count = self._count, self._count + 1
        try:
            checks = record["checks"]
            return NodeHealth(
                record["node"],
                _VERDICTS[record["verdict"]],
                tuple(self._check(number, place, check) for place, check in enumerate(checks)),
                tuple(self._gpu(gpu) for gpu in record["gpus"]),
                {self._word(key): self._word(value) for key, value in dict(record["facts"]).items()},
                record["error"],
                record["unreachable"],
            )
        except _DAMAGED as error:
            raise self._lines.strange(number, error) from error

    def _check(self, node: int, place: int, record: Mapping[str, Any]) -> CheckResult:
        wrong = tuple(health.finding_from(row) for row in record["findings"] if row["verdict"] != "pass")
        findings: Later[Finding] = Later(self._findings, node, place, wrong)
        measurements: Later[Measurement] = Later(self._measurements, node, place)
        return CheckResult(
            self._word(record["check"]), _VERDICTS[record["verdict"]], findings, measurements,
            record["seconds"], record["raw"],
        )  # fmt: skip

    def _gpu(self, record: Mapping[str, Any]) -> GpuIdentity:
        name, address = self._word(record["name"]), self._word(record["pci_address"])
        return GpuIdentity(record["index"], name, record["serial"], record["uuid"], address)

    def _word(self, value: Any) -> Any:
        return self._words.setdefault(value, value) if isinstance(value, str) else value
