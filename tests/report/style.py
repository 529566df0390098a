"""Colours of the report's style sheet: its variables, and their contrast."""

from __future__ import annotations

import re
from pathlib import Path

import provision

SHEET = (Path(provision.__file__).parent / "report" / "templates" / "style.css").read_text(encoding="utf-8")


def colours(dark: bool) -> dict[str, str]:
    """Return variable → colour (`#rrggbb`) on a light or dark screen."""
    light_part, dark_part = SHEET.split("@media screen and (prefers-color-scheme: dark) {")
    parts = [light_part, dark_part.partition("\n}")[0]] if dark else [light_part]
    variables = {}
    for part in parts:
        for name, value in re.findall(r"(--[\w-]+): (#\w+);", part):
            variables[name] = value if len(value) == 7 else "#" + "".join(2 * digit for digit in value[1:])
    return variables


def light(colour: str) -> float:
    """Return the relative luminance as defined by WCAG 2: 0 black, 1 white."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.03928 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio as defined by WCAG 2, from 1 to 21; text needs 4.5."""
    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)
