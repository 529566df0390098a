"""Rule files of the role monitoring, and the findings that each alert covers."""

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
REST = "OtherFinding"  # the alert for findings that no other alert names

_SELECTOR = re.compile(r"gpuprov_finding\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')


@functools.cache
def groups(file: Path) -> list[dict[str, Any]]:
    """Return the rule groups of a file."""
    found: list[dict[str, Any]] = yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]
    return found


def alerts() -> list[dict[str, Any]]:
    """Return every alerting rule in order; an alert may have several."""
    return [rule for group in groups(ALERTS) for rule in group["rules"]]


def selectors(expression: str) -> list[str]:
    """Return an expression's selectors of findings without spaces, except the excluded ones."""
    kept = re.split(r"\bunless\b", expression)[0]
    return [re.sub(r"\s+", "", inside) for inside in _SELECTOR.findall(kept)]


def fits(selector: str, labels: dict[str, str]) -> bool:
    """Check whether a selector matches a finding with these labels, as Prometheus does (whole values)."""
    for name, operator, value in _MATCHER.findall(selector):
        label = labels.get(name, "")
        same = re.fullmatch(value, label) is not None if "~" in operator else label == value
        if same == operator.startswith("!"):
            return False
    return True


def told_by(**labels: str) -> set[str]:
    """Return the alerts raised by a finding with these labels, except REST."""
    return {
        rule["alert"]
        for rule in alerts()
        if rule["alert"] != REST
        for selector in selectors(rule["expr"])
        if fits(selector, labels)
    }


@functools.cache
def cases() -> list[dict[str, Any]]:
    """Return every promtool test of all files."""
    return [case for file in CASES for case in yaml.safe_load(file.read_text(encoding="utf-8"))["tests"]]
