"""The description of what one check of pairs measures (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from provision.checks.pairs.judge import TOLERANCE


@dataclass(frozen=True)
class Metric:
    """`check`: its id; `name`: the measurement's own word (`bandwidth`), in `unit`; `direction`: whether more
    is better (`at_least`) or less (`at_most`). `tolerance`: by which part of what is usual a rate (more is
    better) may fall short. `program`: what runs on the nodes; `installs`: the role that brings it; `no_part`:
    why a node with nothing to measure takes no part. `group`: all nodes are measured at once first, and
    pairs only when that is not as it should be. `bad`: what is said of who falls short, and `action`, one of
    `judge.ACTIONS`, what to do then.
    """

    check: str
    name: str
    unit: str
    program: str
    installs: str
    no_part: str
    direction: str = "at_least"
    tolerance: float = TOLERANCE
    group: bool = False
    bad: str = "is slow"
    action: str = "reseat or check cable"
