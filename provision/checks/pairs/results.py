"""Results of pairs and groups, and which of them are evidence (pure).

A result says what was measured, not whether it is good. What contradicts itself or was not measured alone is
no evidence: it is left out, and said.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from provision.checks.pairs.pairing import Topology
from provision.node_names import fold
from provision.text import many, one_line


class Outcome(enum.StrEnum):
    """How the measurement of a pair or group ended."""

    MEASURED = "measured"
    HANG = "hang"
    ERROR = "error"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Result:
    """One measurement: of a pair (two nodes) or a group, in a round (from 1), on one rail or, "", on all.

    `value` in `unit`, and `expected` the least (of a latency the most) it should be. `end`: the node whose
    own side failed, when the output proves it (no such device, wrong version); empty when either may have.
    `size`: how many nodes the tool said took part. `said`: why it failed, in the tool's words,
    or what it says beside the value.
    """

    nodes: tuple[str, ...]
    round: int
    outcome: Outcome = Outcome.MEASURED
    value: float | None = None
    rail: str = ""
    unit: str = "GB/s"
    expected: float | None = None
    end: str = ""
    size: int | None = None
    said: str = ""

    @property
    def name(self) -> str:
        """`gpu-01 and gpu-07 on rail 2 in round 1`."""
        nodes = " and ".join(one_line(node, 80) for node in self.nodes)
        members = nodes if len(self.nodes) < 3 else fold(self.nodes, 120)
        return f"{members}{f' on rail {one_line(self.rail, 40)}' if self.rail else ''} in round {self.round}"


def usable(fleet: Topology, results: Iterable[Result]) -> tuple[list[Result], list[str]]:
    """The results that are evidence, and a line for each that is not."""
    kept: list[Result] = []
    notes: list[str] = []
    for result in dict.fromkeys(results):  # the same line twice is one result
        if why := _unusable(fleet, result):
            notes.append(f"{result.name}: left out, {why}")
        else:
            kept.append(result)
    twice = {key for key, count in Counter(map(_place, kept)).items() if count > 1}
    places: dict[tuple[int, str], set[frozenset[str]]] = defaultdict(set)
    for result in kept:
        for node in result.nodes if result.outcome is not Outcome.NOT_RUN else ():
            places[result.round, node].add(frozenset(result.nodes))
    shared = {place for place, together in places.items() if len(together) > 1}
    alone = []
    for result in kept:
        busy = [node for node in result.nodes if (result.round, node) in shared]
        if _place(result) in twice:
            notes.append(f"{result.name}: left out, it was reported more than once and not alike")
        elif busy:
            notes.append(f"{result.name}: left out, {fold(busy, 120)} was in another one at the same time")
        else:
            alone.append(result)
    return alone, notes


def _place(result: Result) -> tuple[int, frozenset[str], str]:
    return result.round, frozenset(result.nodes), result.rail


def _unusable(fleet: Topology, result: Result) -> str:
    """Why a result is no evidence; "" when it is."""
    strangers = [node for node in result.nodes if node not in fleet.order]
    value = result.value
    if strangers:
        return f"{fold(strangers, 120)} is not of this run"
    if len(set(result.nodes)) != len(result.nodes) or len(result.nodes) < 2:
        return "it takes different nodes, two at least"
    if result.end and result.end not in result.nodes:
        return f"{one_line(result.end, 80)}, which is reported as failed, is not one of them"
    if result.outcome is not Outcome.MEASURED:
        return ""
    if result.size is not None and result.size != len(result.nodes):
        return f"the tool ran on {many(result.size, 'node')}, not on {len(result.nodes)}"
    if value is None or not math.isfinite(value) or value <= 0:
        return "its value is not a number above 0"
    if result.expected is not None and not (math.isfinite(result.expected) and result.expected > 0):
        return "its expected value is not a number above 0"
    return ""
