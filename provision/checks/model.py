"""The types of what a check gives and is judged by: Measurement, Threshold, Finding and Verdict."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from provision.text import many


@dataclass(frozen=True, slots=True)
class Measurement:
    """One value with unit and device. `device`: `node`, `gpu3`, or a directed pair `gpu0->gpu5`.

    `metric` is the check's own word for it (`h2d`); with the check's id before it, it is the threshold's
    name.
    """

    metric: str
    value: float | int | str | bool
    unit: str
    device: str = "node"


class Verdict(enum.StrEnum):
    """Ordered from best to worst by `badness`. Neither `error` nor `skip` ever counts as healthy."""

    PASS = "pass"  # noqa: S105
    SKIP = "skip"
    WARN = "warn"
    ERROR = "error"
    FAIL = "fail"

    @property
    def badness(self) -> int:
        return list(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """A judged measurement, with the action to take.

    `device`: node, gpu3, gpu0->gpu5, gpu0-gpu5 (both directions). `value`/`unit` what was measured (None when
    nothing was), `limit` the human text of the limit ("≥ 238 GB/s"), `source` where that limit comes from.
    `message` one sentence for a person; `action` one of ACTIONS; `evidence` lines of raw output that show it.
    """

    check: str
    verdict: Verdict
    device: str
    message: str
    metric: str = ""
    value: float | int | str | bool | None = None
    unit: str = ""
    limit: str = ""
    source: str = ""
    action: str = "none"
    evidence: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"{self.check}: {self.action!r} is not an action: {', '.join(ACTIONS)}")


ACTIONS = (
    "none",
    "watch",
    "restart job",
    "reset GPU",
    "reboot",
    "power-cycle",
    "reseat or check cable",
    "replace part",
    "fix configuration",
    "investigate",
    "run again",
)


@dataclass(frozen=True)
class Typical:
    """What a healthy part reaches, in the limit's unit; `machines`: measured on how many, None: not said."""

    value: float
    machines: int | None
    source: str


@dataclass(frozen=True)
class Spread:
    """How far healthy parts differ: their standard deviation, in percent of the typical value.

    `machines`: how many it was estimated from; None: of so many that its own error does not count.
    """

    percent: float
    machines: int | None
    source: str


@dataclass(frozen=True)
class Threshold:
    """The limit for one metric of one SKU. `direction`: at_least, at_most or equal.

    `kind`: measured (drawn from measurements on such machines), vendor (the maker's own figure) or derived
    (reckoned from other figures; the arithmetic is in `source`). `date`: YYYY-MM of the source, empty when a
    user did not say. `machines`: how many were measured for it; 0 for a vendor's figure or mere arithmetic,
    None when the source does not say. `typical` and `spread`: for `provision.checks.threshold_evidence`.
    """

    metric: str  # "<check>.<metric>"
    limit: float
    unit: str
    direction: str
    source: str
    kind: str
    date: str = ""
    machines: int | None = None
    typical: Typical | None = None
    spread: Spread | None = None

    @property
    def cited(self) -> str:
        """The source as a finding cites it, with the number of machines behind the limit and its date."""
        rests = [self.date] if self.date else []
        if self.machines is not None:
            rests.insert(0, many(self.machines, "machine") if self.machines else "no machine measured")
        elif self.date:
            rests.insert(0, "number of machines unknown")
        return f"{self.source}; {', '.join(rests)}" if rests else self.source
