"""The limits that hold for a node: provision/data/thresholds/<sku>.yml, with unit, source and direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Threshold:
    """The limit for one metric of one SKU. `direction`: at_least, at_most or equal. `kind`: measured, vendor, derived."""

    metric: str  # "<check>.<metric>"
    limit: float
    unit: str
    direction: str
    source: str
    kind: str


def for_sku(sku: str | None, override: Path | None = None) -> Mapping[str, Threshold]:
    """Thresholds by metric name for a SKU; empty when there is none (a judge then says `warn`, never `pass`)."""
    raise NotImplementedError
