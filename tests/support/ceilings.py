"""Readers of tests/ceilings.yml: ceilings for line counts and for seconds of CI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).resolve().parents[1] / "ceilings.yml"
_READ: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SECONDS: dict[str, dict[str, Any]] = _READ["seconds"]
LINES: dict[str, dict[str, Any]] = _READ["lines"]


def ceiling(part: Mapping[str, Any]) -> int:
    """Return a part's ceiling: its initial count plus each justified change."""
    return int(part["begun_at"]) + sum(int(change["by"]) for change in part["changes"])


def seconds_of_ci(reports: Iterable[Any], ceilings: Mapping[str, Mapping[str, Any]] = SECONDS) -> str:
    """Return one line with the seconds and the ceiling of each part of the tests; `!`: above it.

    `reports` are pytest's, of every phase; a warning has no duration and is left out. The seconds of all
    workers are added up. Nothing fails, because they depend on the machine and on its load."""
    taken: Counter[str] = Counter()
    for report in reports:
        folders = getattr(report, "nodeid", "").split("::")[0].split("/")[1:-1]
        taken[folders[0] if folders else "tests"] += getattr(report, "duration", 0)
    parts = []
    for name in sorted({*ceilings, *(name for name, seconds in taken.items() if seconds >= 1)}):
        limit = ceiling(ceilings[name]) if name in ceilings else 0
        parts.append(f"{name} {taken[name]:.0f}{'!' if taken[name] > limit else ''} ({limit})")
    return "seconds of CI by part (ceiling in tests/ceilings.yml): " + ", ".join(parts)
