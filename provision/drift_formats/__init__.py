"""The forms a drift report has for people and for CI: one file per format, each with `render(report)`."""

from __future__ import annotations

from collections.abc import Callable

from provision.drift_formats import github, json, junit, markdown, sarif, text
from provision.drift_report import DriftReport

FORMATS: dict[str, Callable[[DriftReport], str]] = {
    "text": text.render,
    "json": json.render,
    "junit": junit.render,
    "sarif": sarif.render,
    "github": github.render,
    "markdown": markdown.render,
}
