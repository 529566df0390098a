"""Grading of results between nodes: slow or broken, good, or unknown (pure).

A pair is compared with its expected value, if there is one, and with the run's other pairs. A fault makes a
pair slow and never fast, so the value on which the fastest quarter agree is the capability of the fabric; if
they disagree, the typical value of most pairs is. Pairs across racks are compared with pairs within racks
only if some of them come close, since an oversubscribed fabric is slower across racks by design. If all pairs
miss the reference alike, that is reported, no node is named, and none passes, since a smaller fault may hide.
"""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from provision.checks.judge import spread, typical
from provision.checks.pairs import pairing as pair_results
from provision.checks.pairs.pairing import Outcome, Result, Topology
from provision.text import many, one_line, quantity

# SuperBench (ATC'24): IB loopback repeats within 0.04 %, collectives over it within 0.1 %; the noisiest pairs
# seen differ by 2 %. Losing one of eight cards, or half the width of a link, costs more than 10 %.
TOLERANCE = 0.10
_SMALLEST = 4  # results needed to compare; of three, two that are equally slow outvote the good one
_QUARTER = 0.25
_SURE = 3.5  # standard deviations; of normal noise one value in four thousand is further below
_SURER = 5  # if less than half of the results agree
_SOME = 0.1  # of a class; if fewer reach the reference, the class as a whole misses it


class Grade(enum.StrEnum):
    """Grade of a result; `unknown` means no evidence either way."""

    OK = "ok"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Judged:
    """A result with its grade."""

    result: Result
    grade: Grade
    usual: float | None = None  # reached by such pairs, in the result's unit
    limit: float | None = None  # bound it was held to, in the result's unit

    @property
    def line(self) -> str:
        """Evidence, such as `gpu-01 and gpu-07 in round 1: 24.1 GB/s, limit 43.2 GB/s, usual 48 GB/s`."""
        unit = self.result.unit
        shown = quantity(self.result.value, unit) if self.result.value is not None else self.result.outcome
        shown += f" ({one_line(self.result.said, 160)})" if self.result.said else ""
        parts = [f"{self.result.name}: {shown}"]
        parts += [f"limit {quantity(self.limit, unit)}"] if self.limit is not None else []
        parts += [f"usual {quantity(self.usual, unit)}"] if self.usual is not None else []
        return ", ".join(parts)


@dataclass(frozen=True)
class Judgement:
    """All usable results, graded, in the given order. `notes`: results left out or impossible to judge."""

    judged: tuple[Judged, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Usual:
    """Rates that pairs reach (more is better): bad below `limit`, good from `clear` on."""

    middle: float
    limit: float
    clear: float


def judge(
    fleet: Topology, results: Iterable[Result], *, tolerance: float = TOLERANCE, direction: str = "at_least"
) -> Judgement:
    """Grade the results of one metric. `direction`: `at_least` (bandwidth) or `at_most` (latency)."""
    usable, notes = pair_results.usable(fleet, results)

    def rate(value: float) -> float:  # more is better; this function is its own inverse
        return value if direction == "at_least" else 1 / value

    graded: dict[Result, Judged] = {}
    classes: dict[tuple[int, bool], list[Result]] = defaultdict(list)
    for result in usable:
        if result.outcome is Outcome.MEASURED:
            classes[len(result.nodes), result.expected is not None].append(result)
        else:
            bad = result.outcome is not Outcome.NOT_RUN
            graded[result] = Judged(result, Grade.BAD if bad else Grade.UNKNOWN)
    for alike in classes.values():
        notes += _grade(fleet, alike, tolerance, rate, graded)
    return Judgement(tuple(graded[result] for result in usable), tuple(notes))


def _grade(
    fleet: Topology,
    results: Sequence[Result],
    tolerance: float,
    rate: Callable[[float], float],
    graded: dict[Result, Judged],
) -> Iterator[str]:
    """Grade results of one size, all with an expected value or all without; yield notes on shortfalls."""
    expected = results[0].expected is not None
    rates = {r: rate(r.value or 0) / (rate(r.expected) if r.expected else 1) for r in results}
    pools = _pools(fleet, results)
    usual = {
        where: reference([rates[r] for r in members], tolerance)
        for where, members in pools.items()
        if len({r.nodes for r in members}) >= _SMALLEST
    }
    fastest = max(usual.values(), key=lambda one: one.middle, default=None)
    top = Usual(1.0, 1.0, 1.0) if expected else fastest
    for where, members in pools.items():
        own = usual.get(where)
        missed = top is not None and _missed(where, members, rates, top.clear, len(fleet.members))
        if missed:
            yield _said(where, members, rates, expected)
        elif top is None:
            what = many(len(members), "result")
            yield f"{what} {where}: too few to compare, and there is no expected value"
        bounds = _held(own, top, missed, tolerance)
        graded_pool = [_graded(result, rates[result], bounds, rate) for result in members]
        graded.update(zip(members, graded_pool, strict=True))
        between = sum(one.grade is Grade.UNKNOWN for one in graded_pool)
        if between and not math.isinf(bounds.clear):
            what = many(between, "result")
            yield f"{what} {where}: worse than usual, but within the scatter of results; neither good nor bad"
    if fastest and not expected:
        yield "there is no expected value: a fault that slows all results alike does not show in a comparison"


def _held(own: Usual | None, top: Usual | None, missed: bool, tolerance: float) -> Usual:
    """Return a pool's bounds as rates: nothing is good at infinity, and nothing bad below 0."""
    bounds = [one for one in (own, None if missed else top) if one]
    hidden = missed and own and top and own.middle < top.middle * (1 - tolerance)
    clear = math.inf if hidden or not bounds else max(one.clear for one in bounds)
    return Usual(own.middle if own else 0.0, max((one.limit for one in bounds), default=0.0), clear)


def _graded(result: Result, value: float, held: Usual, rate: Callable[[float], float]) -> Judged:
    scale = rate(result.expected) if result.expected else 1.0
    grade = Grade.BAD if value < held.limit else Grade.OK if value >= held.clear else Grade.UNKNOWN
    shown = [rate(bound * scale) if bound else None for bound in (held.middle, held.limit)]
    return Judged(result, grade, *shown)


def _pools(fleet: Topology, results: Sequence[Result]) -> Mapping[str, list[Result]]:
    """Return the results that are compared with one another, by the pool's name.

    A pool with few results joins the others if the same is expected of all: oversubscribed uplinks are not
    always full, and then reach far more than expected."""
    kinds = {True: "across racks", False: "within racks", None: "of nodes whose racks are not all known"}
    pools: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        pools[kinds[fleet.spans(result.nodes)]].append(result)
    alike = len({result.expected for result in results}) == 1
    if alike and len(pools) > 1 and min(map(len, pools.values())) < _SMALLEST:
        return {"of all": list(results)}
    return pools


def reference(rates: Sequence[float], tolerance: float) -> Usual:
    """Return the rates that `rates` (more is better) show to be possible.

    These are the rates on which the fastest quarter agree within the tolerance, faster outliers left out; if
    they disagree, the typical rates of most, with their scatter. Raises ValueError without rates.

    >>> reference([48, 47.9, 48.1, 48, 24, 24.1, 23.9, 24, 24, 12], 0.1).middle
    48.0
    """
    ordered = sorted(rates, reverse=True)
    enough = max(2, _QUARTER * len(ordered))
    cuts = [i for i, (one, below) in enumerate(pairwise(ordered), 1) if below < one * (1 - tolerance)]
    end = next(cut for cut in (*cuts, len(ordered)) if cut >= min(enough, len(ordered)))
    start = max((cut for cut in cuts if end - cut >= enough), default=0)
    middle, deviation = spread(ordered[start:end])
    clear = middle * (1 - tolerance)
    if (_SURE if 2 * (end - start) >= len(ordered) else _SURER) * deviation <= tolerance * middle:
        return Usual(middle, clear, clear)
    usual = typical(ordered, tolerance)
    clear = usual.middle * (1 - tolerance)
    return Usual(usual.middle, min(clear, usual.middle - usual.scatter), clear)


def _missed(
    where: str, members: Sequence[Result], rates: Mapping[Result, float], top: float, racks: int
) -> bool:
    """Return whether a pool as a whole misses the reference, so that no single pair does.

    With two racks, the uplinks alone can be the reason; with less than three pairs, the pairs can.
    """
    if len({frozenset(result.nodes) for result in members}) < 3:
        return False
    if where == "across racks" and racks == 2 and members[0].expected is not None:
        return False
    reach = sum(rates[result] >= top for result in members)
    return reach < max(1, _SOME * len(members))


def _said(where: str, members: Sequence[Result], rates: Mapping[Result, float], expected: bool) -> str:
    ordered = sorted(members, key=lambda result: rates[result])
    usual, unit = ordered[len(ordered) // 2], members[0].unit
    seen = f"{many(len(members), 'result')} {where}: {quantity(usual.value, unit)} is usual"
    if not expected:
        return f"{seen}, worse than elsewhere; they are compared only with each other"
    return (
        f"{seen} and hardly any reaches the expected value ({quantity(usual.expected, unit)}): they share a "
        "cause, or the expectation is wrong; no node is named, and they are compared with each other"
    )


@dataclass(frozen=True)
class Metric:
    """A metric measured between nodes."""

    check: str  # id of the check
    name: str  # of the measurement (`bandwidth`)
    unit: str
    program: str  # runs on the nodes
    installs: str  # role that installs the program
    no_part: str  # why a node with nothing to measure takes no part
    direction: str = "at_least"  # more is better; `at_most`: less is
    tolerance: float = TOLERANCE  # accepted shortfall of a rate (more is better), as a fraction
    group: bool = False  # measure all nodes at once first, and pairs only if that result is bad
    bad: str = "is slow"  # message about a part that falls short
    action: str = "reseat or check cable"  # what to do then, one of `judge.ACTIONS`


class CheckBetween(Protocol):
    """Protocol of a check between nodes."""

    @property
    def SUMMARY(self) -> str: ...  # noqa: N802

    @property
    def FACTS(self) -> tuple[str, ...]: ...  # noqa: N802

    @property
    def METRIC(self) -> Metric: ...  # noqa: N802
