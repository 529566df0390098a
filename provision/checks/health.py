"""Roll-up of findings: device, check, node, fleet (pure). Every report renders this."""

from __future__ import annotations

import json
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, overload

from provision.checks.check import GpuIdentity as GpuIdentity  # named here too: it is part of the report
from provision.checks.check import Measurement
from provision.checks.judge import Finding, Verdict, worst
from provision.errors import RunFolderError

FORMAT = 1  # of report.json; a newer one is refused politely


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check on one node. `verdict` is the worst of its findings; `raw` the raw output's path in the run
    folder.
    """

    check: str
    verdict: Verdict
    findings: Sequence[Finding]
    measurements: Sequence[Measurement]
    seconds: float
    raw: str = ""

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The findings that are no pass; of lazy rows they are known without reading."""
        if isinstance(self.findings, LazyRows):
            return self.findings.wrong
        return tuple(finding for finding in self.findings if finding.verdict is not Verdict.PASS)

    def may_have(self, metric: str) -> bool:
        """Whether it measured this metric."""
        if isinstance(self.measurements, LazyRows):
            return metric in self.measurements.metrics
        return any(row.metric == metric for row in self.measurements)


@dataclass(frozen=True, slots=True)
class NodeHealth:
    """One node. `verdict`: worst of its checks; `error` when it could not be reached (`error` says why) or a
    check that was asked for is missing. `facts`: os, kernel, driver version, sku, for the header.
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
    """The whole report. `started`/`finished` are ISO 8601 UTC; `asked` the checks that should have run;
    `not_compared` what too few nodes have measured to judge it against the fleet, one line for each SKU.
    `fabric`: findings on what lies between the nodes, links, leaves and uplinks; `between`: lines on what is
    to be known of those measurements besides, and what they could not tell.
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
        """How many nodes have each verdict."""
        return {v: sum(node.verdict is v for node in self.nodes) for v in Verdict}


def to_json(fleet: FleetHealth) -> dict[str, Any]:
    """The document of data/schemas/report.schema.json: the fields of these classes by name, verdicts as their
    words.
    """
    plain: dict[str, Any] = json.loads(json.dumps(fleet, default=plain_fields))
    return {**plain, "format": FORMAT}


def plain_fields(value: Any) -> Any:
    """What JSON's encoder does not know: our classes as their fields, anything foreign (in a node's facts) as
    text.
    """
    if is_dataclass(value):
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    if isinstance(value, LazyRows):
        return value.all()
    return dict(value) if isinstance(value, Mapping) else str(value)


def from_json(document: Mapping[str, Any]) -> FleetHealth:
    """The inverse of `to_json`. Raises RunFolderError on a document that does not fit the schema."""
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
    """A node of a report. Raises KeyError, TypeError or ValueError when it is none."""
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
    """A check of a report. Raises KeyError, TypeError or ValueError when it is none."""
    return CheckResult(
        **_fields(document, "check", "seconds", "raw"),
        verdict=Verdict(document["verdict"]),
        findings=tuple(finding_from(finding) for finding in document["findings"]),
        measurements=tuple(measurement_from(row) for row in document["measurements"]),
    )


def compressed(node: NodeHealth) -> NodeHealth:
    """The same node in a tenth of the memory."""
    return replace(node, checks=tuple(map(compressed_check, node.checks)))


def compressed_check(check: CheckResult) -> CheckResult:
    """The same result; what is no pass stays as it is."""
    findings, measurements = check.findings, check.measurements
    if not isinstance(findings, LazyRows):
        findings = compressed_rows(findings, wrong=check.wrong)
    if not isinstance(measurements, LazyRows):
        metrics = frozenset(row.metric for row in measurements)
        measurements = compressed_rows(measurements, metrics=metrics)
    return replace(check, findings=findings, measurements=measurements)


def finding_lines(fleet: FleetHealth) -> Iterator[str]:
    """Each finding with its node as a line of JSON: findings.jsonl."""
    for node in fleet.nodes:
        for finding in (finding for check in node.checks for finding in check.findings):
            yield json.dumps({"node": node.node, **plain_fields(finding)}, default=str) + "\n"


def measurement_from(document: Mapping[str, Any]) -> Measurement:
    """A row of a report. Raises KeyError or TypeError when it is none."""
    return Measurement(document["metric"], document["value"], document["unit"], document["device"])


def finding_from(document: Mapping[str, Any]) -> Finding:
    """A finding of a report. Raises KeyError, TypeError or ValueError when it is none."""
    names = ("check", "device", "message", "metric", "value", "unit", "limit", "source", "action")
    return Finding(
        **_fields(document, *names),
        verdict=Verdict(document["verdict"]),
        evidence=tuple(str(line) for line in document["evidence"]),
    )


def roll_up(checks: Sequence[CheckResult]) -> Verdict:
    """The worst verdict; `error` when there is none at all."""
    return worst(check.verdict for check in checks)


# --- lazily read findings and measurements: a large fleet's do not fit in memory as objects, and a report
# shows few of them


T = TypeVar("T")

_METRICS: dict[frozenset[str], frozenset[str]] = {}  # nodes measure the same: each set is kept once


class LazyRows(Sequence[T]):
    """The rows of one check on one node, equal to the tuple of them: `read(key)` makes them.

    Known without reading: `wrong`, the findings that are no pass, which every report shows; and `metrics`, of
    the measurements.
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
        """What `unpacked` makes the rows of; None when they are kept elsewhere."""
        return self._key if isinstance(self._key, bytes) else None

    def all(self) -> tuple[T, ...]:
        """The rows."""
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
    """These rows in about a tenth of the memory."""
    return LazyRows(unpacked, zlib.compress(pickle.dumps(tuple(rows), 5), 3), wrong, metrics)


@lru_cache(maxsize=64)  # the checks of a few nodes: reports take a node's rows several times
def unpacked(data: bytes) -> tuple[Any, ...]:
    """Rows that were packed."""
    found: tuple[Any, ...] = pickle.loads(zlib.decompress(data))  # noqa: S301 - made above, never stored
    return found
