"""The data of a report beyond the health of one run: earlier runs, GPUs under load over time, and
measurements between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.checks.gpu.telemetry_series import Series
from provision.checks.pairs.judge import TOLERANCE
from provision.checks.pairs.pairing import Topology
from provision.checks.pairs.results import Result
from provision.runs.node_history import Earlier


@dataclass(frozen=True)
class Load:
    """One check's samples on one node: device → series. `raw`: the file in the run folder they are from."""

    check: str
    raw: str
    series: Mapping[str, Series]


@dataclass(frozen=True)
class Pairs:
    """What one check measured between the nodes of `fleet`, in `unit`; `direction`: `at_least` (more is
    better) or `at_most`, and `tolerance` as in pairs/metric.py. `left_out`: node → why it took no part."""

    check: str
    unit: str
    fleet: Topology
    results: tuple[Result, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    direction: str = "at_least"
    tolerance: float = TOLERANCE


@dataclass(frozen=True)
class Context:
    """`earlier`: what the runs before said, None when there is none. `loads`: node → the load of each check
    that kept samples, for the nodes that are worst; `not_read`: the nodes whose samples were left alone.
    `pairs`: the checks between nodes. `folder`: where the lists of nodes are that proposed commands name.
    """

    earlier: Earlier | None = None
    loads: Mapping[str, tuple[Load, ...]] = field(default_factory=dict)
    not_read: tuple[str, ...] = ()
    pairs: tuple[Pairs, ...] = ()
    folder: str = ""


NOTHING = Context()
