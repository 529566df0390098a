"""What the dashboards ask, and what a Prometheus answers: their panels, variables and queries.

`answers` takes the address of any Prometheus and the values of a dashboard's variables, so that the same
questions can be put to a fleet.
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
    """The series of one query at `now` (seconds since 1970), over some steps where the panel shows a range."""
    query = filled_in(target.expr, values)
    if target.instant:
        found = api(address, "query", query=query, time=f"{now:.3f}")["result"]
        return [Series(one["metric"], float(one["value"][1])) for one in found]
    span = {"start": f"{now - 5:.3f}", "end": f"{now:.3f}", "step": "1"}
    found = api(address, "query_range", query=query, **span)["result"]
    return [Series(one["metric"], float(one["values"][-1][1])) for one in found]


def legend_labels(legend: str) -> set[str]:
    return set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))
