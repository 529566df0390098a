"""Findings rolled up: device, check, node, fleet (pure). This is what every report renders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.checks.check import Measurement
from provision.judge import Finding, Verdict


@dataclass(frozen=True)
class CheckResult:
    """One check on one node. `verdict` is the worst of its findings; `raw` the raw output's path in the run folder."""

    check: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    measurements: tuple[Measurement, ...]
    seconds: float
    raw: str = ""


@dataclass(frozen=True)
class GpuIdentity:
    """Which physical GPU `gpu<index>` was, for the person who must pull it."""

    index: int
    name: str
    serial: str
    uuid: str
    pci_address: str


@dataclass(frozen=True)
class NodeHealth:
    """One node. `verdict`: worst of its checks; `error` when it could not be reached (`error` says why) or a check
    that was asked for is missing. `facts`: os, kernel, driver version, sku, for the header."""

    node: str
    verdict: Verdict
    checks: tuple[CheckResult, ...]
    gpus: tuple[GpuIdentity, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    unreachable: bool = False


@dataclass(frozen=True)
class FleetHealth:
    """The whole report. `started`/`finished` are ISO 8601 UTC; `asked` the checks that should have run."""

    run_id: str
    gpuprov_version: str
    inventory: str
    started: str
    finished: str
    asked: tuple[str, ...]
    nodes: tuple[NodeHealth, ...]
    interrupted: bool = False

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many nodes have each verdict."""
        return {v: sum(node.verdict is v for node in self.nodes) for v in Verdict}


def to_json(fleet: FleetHealth) -> dict[str, Any]:
    """The document of data/schemas/report.schema.json."""
    raise NotImplementedError


def from_json(document: Mapping[str, Any]) -> FleetHealth:
    """The inverse of `to_json`. Raises RunFolderError on a document that does not fit the schema."""
    raise NotImplementedError


def roll_up(checks: Sequence[CheckResult]) -> Verdict:
    """The worst verdict; `error` when there is none at all."""
    raise NotImplementedError
