"""Roll-up of findings by device, check, node and fleet (pure), the input of every report."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, overload

from provision.checks.check import GpuIdentity as GpuIdentity  # re-exported: it is part of the report
from provision.checks.check import Measurement
from provision.checks.judge import Finding, Verdict, worst
from provision.errors import RunFolderError

FORMAT = 1  # of report.json; a report with a newer format is refused with advice


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Findings, measurements and worst verdict of one check on one node; `raw`: path in the run folder."""

    check: str
    verdict: Verdict
    findings: Sequence[Finding]
    measurements: Sequence[Measurement]
    seconds: float
    raw: str = ""

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """Findings that did not pass; available without decompressing lazy rows."""
        if isinstance(self.findings, LazyRows):
            return self.findings.wrong
        return tuple(finding for finding in self.findings if finding.verdict is not Verdict.PASS)

    def may_have(self, metric: str) -> bool:
        """Whether the check measured this metric."""
        if isinstance(self.measurements, LazyRows):
            return metric in self.measurements.metrics
        return any(row.metric == metric for row in self.measurements)


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """The health of one node.

    `verdict`: worst of its checks; `error` if the node was unreachable (`error`: why) or a requested check is
    missing. `facts`: os, kernel, driver version and sku, for the header.
    """

    node: str
    verdict: Verdict
    checks: tuple[CheckResult, ...]
    gpus: tuple[GpuIdentity, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    unreachable: bool = False


@dataclass(frozen=True)
class FleetHealth:
    """The whole report.

    `started`, `finished`: ISO 8601 UTC. `asked`: the requested checks. `not_compared`: measurements of too
    few nodes to compare, one line per SKU. `fabric`: findings about links, leaves and uplinks between the
    nodes. `between`: notes on those measurements and on open questions.
    """

    run_id: str
    gpuprov_version: str
    inventory: str
    started: str
    finished: str
    asked: tuple[str, ...]
    nodes: tuple[NodeHealth, ...]
    interrupted: bool = False
    not_compared: tuple[str, ...] = ()
    fabric: tuple[Finding, ...] = ()
    between: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of nodes by verdict."""
        return {v: sum(node.verdict is v for node in self.nodes) for v in Verdict}


def to_json(fleet: FleetHealth) -> dict[str, Any]:
    """Convert a report to JSON (data/schemas/report.schema.json): fields by name, verdicts as names."""
    plain: dict[str, Any] = json.loads(json.dumps(fleet, default=plain_fields))
    return {**plain, "format": FORMAT}


def plain_fields(value: Any) -> Any:
    """Convert a value for JSON: dataclasses to their fields, foreign values (in facts) to text."""
    if is_dataclass(value):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, LazyRows):
        return value.all()
    return dict(value) if isinstance(value, Mapping) else str(value)


def from_json(document: Mapping[str, Any]) -> FleetHealth:
    """Parse the document that `to_json` writes; raise RunFolderError if it does not fit the schema."""
    try:
        if document.get("format", FORMAT) > FORMAT:
            raise RunFolderError(
                f"the report has format {document['format']}, this gpuprov reads up to {FORMAT}",
                "read it with the newer gpuprov that wrote it",
            )
        return FleetHealth(
            **_fields(
                document, "run_id", "gpuprov_version", "inventory", "started", "finished", "interrupted"
            ),
            asked=tuple(str(check) for check in document["asked"]),
            nodes=tuple(node_from(node) for node in document["nodes"]),
            not_compared=tuple(str(line) for line in document.get("not_compared", ())),
            fabric=tuple(finding_from(finding) for finding in document.get("fabric", ())),
            between=tuple(str(line) for line in document.get("between", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise RunFolderError(
            f"not a health report: {problem}", "give the report.json of a validate run"
        ) from error


def _fields(document: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: document[name] for name in names}


def node_from(document: Mapping[str, Any]) -> NodeHealth:
    """Parse a node of a report; raise KeyError, TypeError or ValueError if it is malformed."""
    return NodeHealth(
        **_fields(document, "node", "error", "unreachable"),
        verdict=Verdict(document["verdict"]),
        checks=tuple(check_from(check) for check in document["checks"]),
        gpus=tuple(
            GpuIdentity(**_fields(gpu, "index", "name", "serial", "uuid", "pci_address"))
            for gpu in document["gpus"]
        ),
        facts=dict(document["facts"]),
    )


def check_from(document: Mapping[str, Any]) -> CheckResult:
    """Parse a check of a report; raise KeyError, TypeError or ValueError if it is malformed."""
    return CheckResult(
        **_fields(document, "check", "seconds", "raw"),
        verdict=Verdict(document["verdict"]),
        findings=tuple(finding_from(finding) for finding in document["findings"]),
        measurements=tuple(measurement_from(row) for row in document["measurements"]),
    )


def compressed(node: NodeHealth) -> NodeHealth:
    """Return the same node with its rows compressed to a tenth of the memory."""
    return replace(node, checks=tuple(map(compressed_check, node.checks)))


def compressed_check(check: CheckResult) -> CheckResult:
    """Return the same result with its rows compressed; findings that did not pass stay in memory."""
    findings, measurements = check.findings, check.measurements
    if not isinstance(findings, LazyRows):
        findings = compressed_rows(findings, wrong=check.wrong)
    if not isinstance(measurements, LazyRows):
        metrics = frozenset(row.metric for row in measurements)
        measurements = compressed_rows(measurements, metrics=metrics)
    return replace(check, findings=findings, measurements=measurements)


def finding_lines(fleet: FleetHealth) -> Iterator[str]:
    """Serialise each finding with its node as a JSON line, for findings.jsonl."""
    for node in fleet.nodes:
        for finding in (finding for check in node.checks for finding in check.findings):
            yield json.dumps({"node": node.node, **plain_fields(finding)}, default=str) + "\n"


def measurement_from(document: Mapping[str, Any]) -> Measurement:
    """Parse a measurement of a report; raise KeyError or TypeError if it is malformed."""
    return Measurement(document["metric"], document["value"], document["unit"], document["device"])


def finding_from(document: Mapping[str, Any]) -> Finding:
    """Parse a finding of a report; raise KeyError, TypeError or ValueError if it is malformed."""
    names = ("check", "device", "message", "metric", "value", "unit", "limit", "source", "action")
    return Finding(
        **_fields(document, *names),
        verdict=Verdict(document["verdict"]),
        evidence=tuple(str(line) for line in document["evidence"]),
    )


def roll_up(checks: Sequence[CheckResult]) -> Verdict:
    """Return the worst verdict of the checks, or `error` if there are none."""
    return worst(check.verdict for check in checks)


# --- lazily read findings and measurements: those of a large fleet do not fit in memory as objects, and a
# report shows only a few


T = TypeVar("T")

_METRICS: dict[frozenset[str], frozenset[str]] = {}  # nodes measure the same metrics: each set is stored once


class LazyRows(Sequence[T]):
    """The rows of one check on one node, read by `read(key)` at each access; equal to their tuple.

    Available without reading: `wrong`, the findings that did not pass, which every report shows, and
    `metrics`, the names of the measured metrics.
    """

    __slots__ = ("_key", "_read", "metrics", "wrong")

    def __init__(
        self,
        read: Callable[[Any], tuple[T, ...]],
        key: Any,
        wrong: tuple[T, ...] = (),
        metrics: frozenset[str] = frozenset(),
    ) -> None:
        self._read, self._key, self.wrong = read, key, wrong
        self.metrics = _METRICS.setdefault(metrics, metrics)

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyRows, (self._read, self._key, self.wrong, self.metrics)

    @property
    def packed(self) -> bytes | None:
        """Compressed rows, the argument of `unpacked`; None if the rows are stored elsewhere."""
        return self._key if isinstance(self._key, bytes) else None

    def all(self) -> tuple[T, ...]:
        """Read all rows."""
        return self._read(self._key)

    def __len__(self) -> int:
        return len(self.all())

    def __iter__(self) -> Iterator[T]:
        return iter(self.all())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self.all()[index]

    def __eq__(self, other: Any) -> bool:
        return self.all() == tuple(other) if isinstance(other, (tuple, LazyRows)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.all())

    def __repr__(self) -> str:
        return repr(self.all())


def compressed_rows(
    rows: Sequence[T], wrong: tuple[T, ...] = (), metrics: frozenset[str] = frozenset()
) -> LazyRows[T]:
    """Return lazy rows that take about a tenth of the memory."""
    return LazyRows(unpacked, zlib.compress(pickle.dumps(tuple(rows), 5), 3), wrong, metrics)


@lru_cache(maxsize=64)  # the checks of a few nodes: reports read a node's rows several times
def unpacked(data: bytes) -> tuple[Any, ...]:
    """Decompress rows."""
    rows: tuple[Any, ...] = pickle.loads(zlib.decompress(data))  # noqa: S301 - made above, never stored
    return rows
