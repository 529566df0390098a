"""The rule files of the role monitoring, and which findings an alert is about."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import yaml

from provision import paths

FILES = paths.ROLES / "monitoring" / "files"
ALERTS = FILES / "gpuprov-alerts.yml"
RECORDING = FILES / "gpuprov-recording.yml"
CASES = sorted((Path(__file__).parent / "rules").glob("*.yml"))
REST = "OtherFinding"  # the alert on every finding that no other one names

_SELECTOR = re.compile(r"gpuprov_finding\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


@functools.cache
def groups(file: Path) -> list[dict[str, Any]]:
    """The rule groups of a file."""
    found: list[dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return found


def alerts() -> list[dict[str, Any]]:
    """Every alerting rule, in order; an alert may have several."""
    return [rule for group in groups(ALERTS) for rule in group["rules"]]


def selectors(expression: str) -> list[str]:
    """The selectors of findings that an expression is made of, without spaces, less those it takes away."""
    kept = re.split(r"\bunless\b", expression)[0]
    return [re.sub(r"\s+", "", inside) for inside in _SELECTOR.findall(kept)]


def fits(selector: str, labels: dict[str, str]) -> bool:
    """Whether a finding with these labels is meant by a selector, as Prometheus matches (whole values)."""
    for name, operator, value in _MATCHER.findall(selector):
        found = labels.get(name, "")
        same = re.fullmatch(value, found) is not None if "~" in operator else found == value
        if same == operator.startswith("!"):
            return False
    return True


def told_by(**labels: str) -> set[str]:
    """The alerts that a finding with these labels gives rise to, but for REST."""
    return {
        rule["alert"]
        for rule in alerts()
        if rule["alert"] != REST
        for selector in selectors(rule["expr"])
        if fits(selector, labels)
    }


@functools.cache
def cases() -> list[dict[str, Any]]:
    """Every test of promtool, of all files."""
    return [case for file in CASES for case in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]]
