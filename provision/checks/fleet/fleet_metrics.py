"""The metrics that are compared over a fleet, with the smallest difference that counts:
data/fleet_metrics.yml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from provision import yamlfile
from provision.checks.judge import ACTIONS
from provision.errors import GpuprovError
from provision.paths import DATA

FILE = DATA / "fleet_metrics.yml"
COMPARE = ("devices", "position", "gpu_count", "rail")
_DIRECTIONS = ("at_least", "at_most")


@dataclass(frozen=True)
class FleetMetric:
    """How one metric is compared. `warn`, `fail`, `node`: fractions of the group's median; `node` is 0 where
    no node is judged as a whole. `compare`: one of COMPARE, what is alike enough to be one group."""

    name: str  # "<check>.<metric>"
    what: str
    direction: str
    compare: str
    warn: float
    fail: float
    action: str
    node: float = 0.0

    @property
    def check(self) -> str:
        return self.name.partition(".")[0]

    @property
    def metric(self) -> str:
        return self.name.partition(".")[2]


@dataclass(frozen=True)
class FleetMetrics:
    """`smallest`: nodes a group needs before anybody in it is judged."""

    smallest: int
    metrics: Mapping[str, FleetMetric]


@cache
def shipped() -> FleetMetrics:
    """The shipped table."""
    return read(yamlfile.load_mapping(FILE), str(FILE))


def read(document: Mapping[str, Any], where: str) -> FleetMetrics:
    """The table in a document. Raises GpuprovError with the place of what is wrong."""
    smallest = document.get("smallest_group", {}).get("nodes")
    if not isinstance(smallest, int) or smallest < 3:
        raise GpuprovError(
            f"{where}: smallest_group.nodes: must be a whole number of at least 3", "correct it"
        )
    rows = document.get("metrics", {})
    return FleetMetrics(smallest, {name: _metric(str(name), row, where) for name, row in rows.items()})


def _metric(name: str, row: Mapping[str, Any], where: str) -> FleetMetric:
    given = {key: value for key, value in row.items() if key not in ("source", "why")}
    unstated = [key for key in ("source", "why") if len(str(row.get(key) or "")) < 10]
    try:
        metric = FleetMetric(name, **given)
    except TypeError as error:
        raise GpuprovError(f"{where}: {name}: {error}", "imitate the other metrics") from None
    wrong = [
        f"{key} must be one of {', '.join(known)}"
        for key, known in (("direction", _DIRECTIONS), ("compare", COMPARE), ("action", ACTIONS))
        if row[key] not in known
    ]
    if not 0 < metric.warn < metric.fail < 1 or not 0 <= metric.node < 1:
        wrong.append("warn and fail must be fractions, warn the smaller one, and so must node")
    if unstated or wrong or not name.partition(".")[2]:
        said = "; ".join([*wrong, *(f"{key} is missing" for key in unstated)]) or "must be <check>.<metric>"
        raise GpuprovError(f"{where}: {name}: {said}", "correct it")
    return metric
