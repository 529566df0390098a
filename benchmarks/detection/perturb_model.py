"""Types of perturbations and their labelled table, perturb_table.yml, based on vendors' documents.

Neither this module nor another one of the generator knows how gpuprov judges: provision is not imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import yaml

TABLE = Path(__file__).with_name("perturb_table.yml")

NAMED = "must be named"  # a warning or a failure names the part
ERROR = "must be an error"  # the answer is unreliable: any verdict except a pass
HARMLESS = "must not matter"  # the verdict of the healthy output
LABELS = {"named": NAMED, "error": ERROR, "harmless": HARMLESS}


@dataclass(frozen=True)
class Answer:
    """The output and exit status of one program. `gpus`: the PCI addresses in the order of the indices."""

    text: str
    rc: int | None
    gpus: tuple[str, ...] = ()

    def with_text(self, text: str) -> Answer:
        return replace(self, text=text)


@dataclass(frozen=True)
class Change:
    """A changed answer. `devices`: the parts that may be named for it.
    `spot`: the changed field or block, which no other change of this answer may touch."""

    answer: Answer
    devices: tuple[str, ...] = ()
    spot: str = ""


@dataclass(frozen=True)
class Row:
    """A row of the table. `op`: the name of its function, `more`: that function's parameters."""

    name: str
    surface: str
    label: str
    op: str
    source: str
    last: bool
    alone: bool
    more: Mapping[str, Any]

    def choice(self, rng: Random, what: str) -> Any:
        """Choose one of the values that the table lists."""
        return rng.choice(self.more[what])


Op = Callable[[Random, Answer, Row], Change | None]  # None: nothing in this answer can be changed


@functools.cache
def table() -> Mapping[str, tuple[Row, ...]]:
    """Return surface → its rows."""
    document = yaml.safe_load(TABLE.read_text("utf-8"))
    found = {}
    for surface, rows in document.items():
        found[surface] = tuple(_row(surface, name, dict(row)) for name, row in rows.items())
    return found


def _row(surface: str, name: str, row: dict[str, Any]) -> Row:
    label, op, source = LABELS[row.pop("label")], str(row.pop("op")), str(row.pop("source"))
    last, alone = bool(row.pop("last", False)), bool(row.pop("alone", False))
    return Row(name, surface, label, op, source, last, alone, row)


def gpu(index: int) -> str:
    return f"gpu{index}"
