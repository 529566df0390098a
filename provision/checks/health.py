"""Roll-up of findings: device, check, node, fleet (pure). Every report renders this."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from provision.checks import lazy_rows
from provision.checks.check import GpuIdentity as GpuIdentity  # named here too: it is part of the report
from provision.checks.check import Measurement
from provision.checks.judge import Finding, Verdict, worst
from provision.checks.lazy_rows import LazyRows
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
    plain: dict[str, Any] = _plain(fleet)
    plain["format"] = FORMAT
    return plain


def _plain(value: Any) -> Any:
    """Only what JSON has: our classes as their fields, enums as their values, tuples as lists, anything
    foreign (from a node's facts) as text.
    """
    if isinstance(value, Verdict):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, list | tuple | LazyRows):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


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
        findings = lazy_rows.compressed(findings, wrong=check.wrong)
    if not isinstance(measurements, LazyRows):
        metrics = frozenset(row.metric for row in measurements)
        measurements = lazy_rows.compressed(measurements, metrics=metrics)
    return replace(check, findings=findings, measurements=measurements)


def _fields_of(value: Any) -> Any:
    return (
        {name: getattr(value, name) for name in value.__dataclass_fields__}
        if is_dataclass(value)
        else str(value)
    )


def finding_lines(fleet: FleetHealth) -> Iterator[str]:
    """Each finding with its node as a line of JSON: findings.jsonl."""
    for node in fleet.nodes:
        for finding in (finding for check in node.checks for finding in check.findings):
            yield json.dumps({"node": node.node, **_fields_of(finding)}, default=str) + "\n"


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
