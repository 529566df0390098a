"""What the dashboards ask, and what a Prometheus answers: their panels, variables and queries.

The functions below take the address of any Prometheus and the nodes to choose, so that the same questions
can be put to nodes that the roles made.
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

# Fields of DCGM that not every GPU has, or not every exporter is told to export: the board's own limit, and
# the counters of NVLink 5. A line of a panel may be missing for them, and no panel rests on them alone.
OPTIONAL = {
    "DCGM_FI_DEV_GPU_MAX_OP_TEMP",
    "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
    "DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS",
}

# What tells two nodes apart whatever their state.
IDENTITY = {"instance", "rack", "serial", "uuid", "UUID", "pci_address"}

# Panels that show a healthy and a broken node alike, with the reason.
_HOST = "the nodes of these tests are on one machine"
ALIKE = {
    "Up for": _HOST,
    "CPU time in use": _HOST,
    "Memory in use": _HOST,
    "File systems, share in use": _HOST,
    "Network: errors and drops per second": _HOST,
    "This GPU": "its identity",
}

# What Grafana fills in by itself. It takes four scrape intervals for the first, at least.
BUILT_IN = {"__rate_interval": "10s", "__interval": "1s", "__range": "60s"}
# $name, ${name} and ${name:format}; $1 is a group of label_replace and not Grafana's.
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
    """A panel of a dashboard, and all that its JSON says of it."""

    board: str
    title: str
    kind: str
    targets: tuple[Target, ...]
    json: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.board}: {self.title}"

    def headings(self) -> dict[str, str]:
        """Of a table: the label or `Value #A` of each column → its heading."""
        found = [one["options"] for one in self.json["transformations"] if one["id"] == "organize"]
        renamed: dict[str, str] = found[0]["renameByName"]
        return renamed


@cache
def board(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def panels() -> Iterator[Panel]:
    """Every panel of every dashboard, rows left out."""
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
    """A dashboard's variables, in the order in which Grafana fills them in."""
    found: list[dict[str, Any]] = board(name)["templating"]["list"]
    return found


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """The text as Grafana sends it; an unknown variable is a mistake of the dashboard."""

    def value(match: re.Match[str]) -> str:
        name = match["long"] or match["short"]
        if name not in values and name not in BUILT_IN:
            raise AssertionError(f"no such variable: ${name} in {text}")
        return values[name] if name in values else BUILT_IN[name]

    return VARIABLE.sub(value, text)


# --- Prometheus ---


@dataclass(frozen=True)
class Series:
    """One answer: its labels and the newest value."""

    labels: dict[str, str]
    value: float


def api(address: str, path: str, **arguments: str) -> Any:
    """What Prometheus' HTTP API answers; its own words where it refuses."""
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - http on the loopback
            return json.load(answer)["data"]
    except urllib.error.HTTPError as refused:
        raise AssertionError(f"{arguments}: {refused.read().decode()}") from None


def answers(address: str, target: Target, values: Mapping[str, str], now: float) -> list[Series]:
    """The series of one query at `now` (seconds since 1970), over some steps where the panel shows lines."""
    query = filled_in(target.expr, values)
    if target.instant:
        found = api(address, "query", query=query, time=f"{now:.3f}")["result"]
        return [Series(one["metric"], float(one["value"][1])) for one in found]
    span = {"start": f"{now - 5:.3f}", "end": f"{now:.3f}", "step": "1"}
    found = api(address, "query_range", query=query, **span)["result"]
    return [Series(one["metric"], float(one["values"][-1][1])) for one in found]


def choice(node: str, rack: str, gpu: int = 0) -> dict[str, str]:
    """The variables of a person who chose this node, its rack and one GPU of it, in any dashboard."""
    return {"datasource": "p", "rack": rack, "sku": ".*", "instance": node, "gpu": str(gpu)}


def shown(address: str, panel: Panel, values: Mapping[str, str], now: float) -> dict[str, list[Series]]:
    """What the panel shows to who chose these values: the series of each query."""
    return {target.ref: answers(address, target, values, now) for target in panel.targets}


def fields(target: Target) -> set[str]:
    """The fields of DCGM that a query reads."""
    return set(re.findall(r"DCGM_FI_\w+", target.expr))


def unanswered(panel: Panel, *pictures: Mapping[str, list[Series]]) -> list[str]:
    """The queries of a panel without series in any of these pictures, less those that may have none."""
    return [
        target.expr
        for target in panel.targets
        if not any(found[target.ref] for found in pictures)
        and not (fields(target) and fields(target) <= OPTIONAL)
    ]


def picture(found: Mapping[str, list[Series]]) -> list[tuple[str, list[tuple[str, str]], float]]:
    """What a person sees, without what names the node."""
    return sorted(
        (ref, sorted((k, v) for k, v in one.labels.items() if k not in IDENTITY), round(one.value, 6))
        for ref, several in found.items()
        for one in several
    )


def legend_labels(legend: str) -> set[str]:
    return set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))
