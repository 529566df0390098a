"""The table of a large fleet as data; the page's own script draws the visible rows (pure).

Ten thousand rows as markup are 15 MB, and a browser needs seconds for each keystroke over them. As data, what
nodes have in common, verdicts of all checks, facts, messages, is told once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from provision.checks.health import NodeHealth
from provision.checks.judge import Verdict
from provision.report.causes import SYMBOLS
from provision.text import clean, one_line

MANY = 1000  # nodes; up to here every row is in the page as markup
_WORST = sorted(Verdict, key=lambda verdict: -verdict.badness)
_MESSAGES = 8  # of a node, to be found by


class _Shared:
    """Texts that are told once: `of` gives the place of one in `all`."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def of(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    @property
    def all(self) -> list[str]:
        return list(self._places)


def data(nodes: Sequence[NodeHealth], checks: Sequence[str], facts: Callable[[NodeHealth], str]) -> Markup:
    """The rows for templates/fleet.js, in the order given. A row: name, verdict's place, place of its checks'
    verdicts (a digit each, `.` where a check did not run), GPUs, place of its facts, serial numbers, places
    of what is wrong. It ends no script and begins no markup, whatever a node is called."""
    cells, told, wrong = _Shared(), _Shared(), _Shared()
    place = {verdict: str(number) for number, verdict in enumerate(_WORST)}
    rows: list[list[Any]] = []
    for node in nodes:
        have = {check.check: place[check.verdict] for check in node.checks}
        found = [finding for check in node.checks for finding in check.wrong][:_MESSAGES]
        rows.append(
            [
                one_line(node.node, 200),
                int(place[node.verdict]),
                cells.of("".join(have.get(name, ".") for name in checks)),
                len(node.gpus),
                told.of(clean(facts(node))),
                " ".join(one_line(gpu.serial, 60) for gpu in node.gpus),
                [wrong.of(f"{one_line(f.device, 40)} {one_line(f.message, 120)}") for f in found],
            ]
        )
    document = {
        "verdicts": [[verdict.value, SYMBOLS[verdict], verdict.badness] for verdict in _WORST],
        "checks": [one_line(name, 60) for name in checks],
        "cells": cells.all,
        "facts": told.all,
        "wrong": wrong.all,
        "rows": rows,
    }
    text = json.dumps(document, separators=(",", ":"))  # pure ASCII
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)  # noqa: S704 - escaped for a script of data above
