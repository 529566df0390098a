"""Measurements → findings (pure)."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


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


@dataclass(frozen=True)
class Finding:
    """A judged measurement, with the action to take.

    `device`: node, gpu3, gpu0->gpu5. `value`/`unit` what was measured (None when nothing was), `limit` the human text
    of the limit ("≥ 238 GB/s"), `source` where that limit comes from. `message` one sentence for a person; `action` one
    of ACTIONS; `evidence` lines of raw output that show it.
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
