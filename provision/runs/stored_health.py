"""Reader of a stored report, one node at a time, with low memory use.

report.json has one line for each node (report/json.py). Verdicts and non-passing findings are kept in memory;
passed findings and measurements, nearly all of the data, are read from the line again on access. A
report.json of another layout is left to `health.from_json`, which needs all of it in memory at once.
"""

from __future__ import annotations

import json
import os
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

from provision.checks import health
from provision.checks.check import GpuIdentity
from provision.checks.health import CheckResult, FleetHealth, LazyRows, NodeHealth
from provision.checks.judge import Verdict
from provision.errors import RunFolderError
from provision.runs.store import RunFolder

_METRIC = itemgetter("metric")
_BUFFER = 1 << 20  # bytes; a line has tens of thousands
_HEAD, _TAIL = b'"nodes": [', b"]}"
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
_VERDICTS: Mapping[str, Verdict] = {verdict.value: verdict for verdict in Verdict}


class StoredNodes(tuple[NodeHealth, ...]):
    """The nodes of a stored report, with the lines they come from."""

    lines: Lines

    def records(self) -> Iterator[Mapping[str, Any]]:
        """Return each node as written. Raises RunFolderError."""
        return map(self.lines.node, range(len(self)))


class Lines:
    """The lines of an open report.json, by node.
    The file stays open: a report that is rewritten meanwhile is another file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        weakref.finalize(self, os.close, descriptor)
        self._starts, self._lengths = array("q"), array("q")
        self.node = lru_cache(maxsize=2)(self._node)
        self.findings = lru_cache(maxsize=64)(partial(self._rows, "findings", health.finding_from))
        self.measurements = lru_cache(maxsize=64)(
            partial(self._rows, "measurements", health.measurement_from)
        )

    def add(self, start: int, length: int) -> None:
        self._starts.append(start)
        self._lengths.append(length)

    def _text(self, node: int) -> bytes:
        text = os.pread(self._descriptor, self._lengths[node], self._starts[node])
        if len(text) != self._lengths[node]:
            raise RunFolderError(f"{self.path} was cut while it was read", "add --rejudge to create it again")
        return text

    def _node(self, node: int) -> Mapping[str, Any]:
        """Return one node's record."""
        try:
            record: Mapping[str, Any] = json.loads(self._text(node))
        except (ValueError, RecursionError) as error:
            raise self.strange(node, error) from error
        return record

    def _rows(
        self, name: str, made: Callable[[Mapping[str, Any]], Any], place: tuple[int, int]
    ) -> tuple[Any, ...]:
        """Return one list of a node's check as objects; `place`: indices of node and check in the report."""
        node, check = place
        try:
            return tuple(made(row) for row in self.node(node)["checks"][check][name])
        except _DAMAGED as error:
            raise self.strange(node, error) from error

    def strange(self, node: int, error: Exception) -> RunFolderError:
        """Return the error for a node that does not fit the schema."""
        what = f"{self.path}: not a health report: node {node + 1}: {type(error).__name__}: {error}"
        return RunFolderError(what, "add --rejudge to create it again")


def read(path: Path) -> FleetHealth:
    """Return the report in a file. Raises RunFolderError, OSError, or ValueError if it is not JSON."""
    try:
        return _streamed(path) or health.from_json(json.loads(path.read_text(encoding="utf-8")))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _streamed(path: Path) -> FleetHealth | None:
    """Return the report if it has one line for each node, else None."""
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
    builder, offset = _Builder(lines), file.tell()
    for line in file:
        text = line.rstrip(b" \r\n,")
        if text == _TAIL and not file.read(4096).strip():
            stored = StoredNodes(nodes)
            stored.lines = lines
            return replace(fleet, nodes=stored)
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            return None  # another layout, or damaged: reading it as a whole tells which
        lines.add(offset, len(text))
        offset += len(line)
        nodes.append(builder.node(record))
    return None


class _Builder:
    """Builder of nodes; strings shared by many nodes are stored once."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._count = 0
        self._words: dict[str, str] = {}

    def node(self, record: Mapping[str, Any]) -> NodeHealth:
        number, self._count = self._count, self._count + 1
        try:
            checks = record["checks"]
            return NodeHealth(
                record["node"],
                _VERDICTS[record["verdict"]],
                tuple(self._check(number, index, check) for index, check in enumerate(checks)),
                tuple(self._gpu(gpu) for gpu in record["gpus"]),
                {self._word(key): self._word(value) for key, value in dict(record["facts"]).items()},
                record["error"],
                record["unreachable"],
            )
        except _DAMAGED as error:
            raise self._lines.strange(number, error) from error

    def _check(self, node: int, place: int, record: Mapping[str, Any]) -> CheckResult:
        key = node, place
        wrong = tuple(health.finding_from(row) for row in record["findings"] if row["verdict"] != "pass")
        metrics = frozenset(map(_METRIC, record["measurements"]))
        return CheckResult(
            self._word(record["check"]),
            _VERDICTS[record["verdict"]],
            LazyRows(self._lines.findings, key, wrong),
            LazyRows(self._lines.measurements, key, metrics=metrics),
            record["seconds"],
            record["raw"],
        )

    def _gpu(self, record: Mapping[str, Any]) -> GpuIdentity:
        name, address = self._word(record["name"]), self._word(record["pci_address"])
        return GpuIdentity(record["index"], name, record["serial"], record["uuid"], address)

    def _word(self, value: Any) -> Any:
        return self._words.setdefault(value, value) if isinstance(value, str) else value


def of_run(folder: RunFolder) -> FleetHealth:
    """Return the report of a run. Raises RunFolderError if it is missing or unreadable."""
    path = folder.path / "report.json"
    try:
        return read(path)
    except FileNotFoundError:
        raise RunFolderError(
            f"{folder.path} has no report.json: the run was interrupted, or wrote other formats only",
            "add --rejudge to judge the raw output in the run folder",
        ) from None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}", "add --rejudge to create it again") from error
    except RunFolderError as error:
        raise RunFolderError(f"{path}: {error.what}", error.fix) from error
