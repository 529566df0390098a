"""Panels, variables and queries of the dashboards, and their answers from a Prometheus.

The functions below take any Prometheus' address and the selected nodes, so that the same queries can be
sent for nodes that the roles set up.
"""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "roles" / "monitoring" / "files" / "dashboards"
NAMES = ("burnin", "fleet", "gpu", "node", "rack")

# DCGM fields that some GPUs or exporter settings lack: the board's own limit, and the counters of NVLink 5.
# A panel may miss a line because of them, but none depends on them alone.
OPTIONAL = {
    "DCGM_FI_DEV_GPU_MAX_OP_TEMP",
    "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
    "DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS",
}

# Labels that distinguish two nodes regardless of their state.
IDENTITY = {"instance", "rack", "serial", "uuid", "UUID", "pci_address"}

# Panels that look the same for a healthy and a broken node, with the reason.
_HOST = "the nodes of these tests are on one machine"
ALIKE = {
    "Up for": _HOST,
    "CPU time in use": _HOST,
    "Memory in use": _HOST,
    "File systems, share in use": _HOST,
    "Network: errors and drops per second": _HOST,
    "This GPU": "its identity",
}

# Variables filled in by Grafana; $__rate_interval is at least four scrape intervals.
BUILT_IN = {"__rate_interval": "10s", "__interval": "1s", "__range": "60s"}
# Matches $name, ${name} and ${name:format}; $1 is a group of label_replace, not a variable.
VARIABLE = re.compile(r"\$(?:\{(?P<long>\w+)(?::\w+)?\}|(?P<short>[a-zA-Z_]\w*))")


@dataclass(frozen=True)
class Target:
    """One query of a panel."""

    ref: str
    expr: str
    legend: str
    instant: bool


@dataclass(frozen=True)
class Panel:
    """A panel of a dashboard, as read from its JSON."""

    board: str
    title: str
    kind: str
    targets: tuple[Target, ...]
    json: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.board}: {self.title}"

    def headings(self) -> dict[str, str]:
        """Return the column headings of a table by label or `Value #A`."""
        organize = [one["options"] for one in self.json["transformations"] if one["id"] == "organize"]
        renamed: dict[str, str] = organize[0]["renameByName"]
        return renamed


@cache
def board(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def panels() -> Iterator[Panel]:
    """Yield every panel of every dashboard, except rows."""
    for name in NAMES:
        for one in board(name)["panels"]:
            if one["type"] != "row":
                yield _panel(name, one)


def _panel(name: str, one: dict[str, Any]) -> Panel:
    targets = [
        Target(each["refId"], each["expr"], each.get("legendFormat", ""), bool(each.get("instant")))
        for each in one["targets"]
    ]
    return Panel(name, one["title"], one["type"], tuple(targets), one)


def variables(name: str) -> list[dict[str, Any]]:
    """Return a dashboard's variables in the order in which Grafana fills them in."""
    found: list[dict[str, Any]] = board(name)["templating"]["list"]
    return found


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """Return the query as Grafana sends it; an unknown variable is a mistake of the dashboard."""

    def value(match: re.Match[str]) -> str:
        name = match["long"] or match["short"]
        if name not in values and name not in BUILT_IN:
            raise AssertionError(f"no such variable: ${name} in {text}")
        return values[name] if name in values else BUILT_IN[name]

    return VARIABLE.sub(value, text)


# --- Prometheus ---


@dataclass(frozen=True)
class Series:
    """A result series: its labels and latest value."""

    labels: dict[str, str]
    value: float


def api(address: str, path: str, **arguments: str) -> Any:
    """Return the data of Prometheus' HTTP API, or raise with its error message."""
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - http on the loopback
            return json.load(answer)["data"]
    except urllib.error.HTTPError as refused:
        raise AssertionError(f"{arguments}: {refused.read().decode()}") from None


def answers(address: str, target: Target, values: Mapping[str, str], now: float) -> list[Series]:
    """Return a query's series at `now` (seconds since 1970), over several steps if the panel has lines."""
    query = filled_in(target.expr, values)
    if target.instant:
        result = api(address, "query", query=query, time=f"{now:.3f}")["result"]
        return [Series(one["metric"], float(one["value"][1])) for one in result]
    span = {"start": f"{now - 5:.3f}", "end": f"{now:.3f}", "step": "1"}
    result = api(address, "query_range", query=query, **span)["result"]
    return [Series(one["metric"], float(one["values"][-1][1])) for one in result]


def choice(node: str, rack: str, gpu: int = 0) -> dict[str, str]:
    """Return the variables for a selected node, its rack and one GPU, valid for any dashboard."""
    return {"datasource": "p", "rack": rack, "sku": ".*", "instance": node, "gpu": str(gpu)}


def shown(address: str, panel: Panel, values: Mapping[str, str], now: float) -> dict[str, list[Series]]:
    """Return the series of each query of the panel with these variables."""
    return {target.ref: answers(address, target, values, now) for target in panel.targets}


def fields(target: Target) -> set[str]:
    """Return the DCGM fields that a query reads."""
    return set(re.findall(r"DCGM_FI_\w+", target.expr))


def unanswered(panel: Panel, *pictures: Mapping[str, list[Series]]) -> list[str]:
    """Return a panel's queries without series in any of these results, except optional ones."""
    return [
        target.expr
        for target in panel.targets
        if not any(series[target.ref] for series in pictures)
        and not (fields(target) and fields(target) <= OPTIONAL)
    ]


def picture(found: Mapping[str, list[Series]]) -> list[tuple[str, list[tuple[str, str]], float]]:
    """Return the visible result, without the labels that identify the node."""
    return sorted(
        (ref, sorted((k, v) for k, v in one.labels.items() if k not in IDENTITY), round(one.value, 6))
        for ref, several in found.items()
        for one in several
    )


def legend_labels(legend: str) -> set[str]:
    return set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))
