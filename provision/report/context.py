"""What a report tells beyond the health of one run: earlier runs, and the GPUs under load over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.checks.telemetry_series import Series
from provision.verdict_history import Earlier


@dataclass(frozen=True)
class Load:
    """One check's samples on one node: device → series. `raw`: the file in the run folder they are from."""

    check: str
    raw: str
    series: Mapping[str, Series]


@dataclass(frozen=True)
class Context:
    """`earlier`: what the runs before said, None when there is none. `loads`: node → the load of each check
    that kept samples, for the nodes that are worst; `not_read`: the nodes whose samples were left alone.
    """

    earlier: Earlier | None = None
    loads: Mapping[str, tuple[Load, ...]] = field(default_factory=dict)
    not_read: tuple[str, ...] = ()


NOTHING = Context()
