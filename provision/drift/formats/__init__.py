"""The formats of a drift report for people and for CI: one file per format, each with `render(report)`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.drift.drift_report import DriftReport

NAMES = ("text", "json", "junit", "sarif", "github", "markdown")


def render(name: str, report: DriftReport) -> str:
    """The report in the format of that name: the others are not even imported."""
    text: str = importlib.import_module(f"provision.drift.formats.{name}").render(report)
    return text
