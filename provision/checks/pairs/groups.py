"""Findings from a measurement of all nodes at once, with the pairs that were measured because of it (pure).

A group that is as it should be clears everybody in it. One that is not is never the answer: pairs of its
nodes are measured, and it is they that name somebody. Only where they name nobody is the group itself the
finding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from provision.checks.check import Measurement
from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict, unmeasured, worst
from provision.checks.pairs import findings
from provision.checks.pairs.metric import Metric
from provision.checks.pairs.pairing import Pair, Topology
from provision.checks.pairs.results import Outcome, Result
from provision.checks.pairs.suspects import diagnose
from provision.text import many, one_line, quantity

ROUND = 0  # of the group; pairs are measured from round 1 on


def of_group(results: Sequence[Result]) -> Result | None:
    """The result of the group, if it was measured."""
    return next((result for result in results if result.round == ROUND), None)


def pairs_of(results: Sequence[Result]) -> list[Result]:
    """All but the group's."""
    return [result for result in results if result.round != ROUND]


def neighbours(fleet: Topology, results: Sequence[Result], metric: Metric) -> tuple[Pair, ...]:
    """The pairs to measure next when a group is bad and no pair so far is: those next to one another in the
    order of the nodes, as NCCL's rings go, that have not met; in two rounds, for they must be disjoint. None
    when there are none left, or somebody is suspected.
    """
    found = diagnose(fleet, results, tolerance=metric.tolerance, direction=metric.direction)
    if found.culprits or found.suspects:
        return ()
    met = {frozenset(result.nodes) for result in results}
    ring = list(zip(fleet.nodes, (*fleet.nodes[1:], fleet.nodes[0]), strict=True))
    if len(ring) % 2:  # of an odd number the last meets nobody new in its round
        ring, last = ring[:-1], ring[-1:]
    else:
        last = []
    for some in (ring[::2], ring[1::2], last):
        if new := tuple(pair for pair in some if frozenset(pair) not in met):
            return new
    return ()


def as_expected(results: Sequence[Result]) -> bool:
    """Whether the group reached what is expected of it: what is not known to be right is not."""
    group = of_group(results)
    return (
        group is not None
        and group.outcome is Outcome.MEASURED
        and None not in (group.value, group.expected)
        and float(group.value or 0) >= float(group.expected or 0)
    )


def judged(
    fleet: Topology, results: Sequence[Result], metric: Metric
) -> tuple[Mapping[str, CheckResult], tuple[Finding, ...], tuple[str, ...]]:
    """As `findings.judged`, of results that may have a group's among them."""
    group = of_group(results)
    if group is None:
        return findings.judged(fleet, results, metric)
    if as_expected(results):
        return {node: _passed(metric, group) for node in group.nodes if node in fleet.order}, (), ()
    checks, fabric, lines = findings.judged(fleet, pairs_of(results), metric)
    somebody = fabric or any(check.verdict is not Verdict.PASS for check in checks.values())
    said = _said(group)
    if somebody:
        return checks, fabric, (f"{metric.check}: {said}", *lines)
    if group.outcome is Outcome.MEASURED and group.expected is None:
        return checks, fabric, (f"{metric.check}: {said}; there is no expected value to judge it by", *lines)
    if group.outcome is Outcome.ERROR and group.end in checks:  # as the head of a pair it may have passed
        return {**checks, group.end: _failed_at(metric, checks[group.end], said)}, (), lines
    return checks, (_itself(metric, group, said),), lines


def _failed_at(metric: Metric, check: CheckResult, said: str) -> CheckResult:
    """The check of the node whose own end kept the group from being measured."""
    found = unmeasured(
        metric.check, f"it could not be measured with the others: {said}", action="investigate"
    )
    return replace(check, verdict=worst([check.verdict, found.verdict]), findings=(*check.findings, found))


def _said(group: Result) -> str:
    what = f"all {many(len(group.nodes), 'node')} at once"
    if group.value is None:
        return f"{what}: {group.outcome.value}{f' ({one_line(group.said, 200)})' if group.said else ''}"
    expected = "" if group.expected is None else f", at least {quantity(group.expected, group.unit)} expected"
    return f"{what}: {quantity(group.value, group.unit)}{expected}"


def _itself(metric: Metric, group: Result, said: str) -> Finding:
    """The finding of a group that is bad while every pair in it passes."""
    if group.outcome in (Outcome.NOT_RUN, Outcome.ERROR):
        return unmeasured(metric.check, said, device="group", action="investigate")
    why = "the cause is a part that only many nodes together load, or a path that no pair used"
    message = f"{said}, while every pair that was measured passes: {why}"
    return Finding(metric.check, Verdict.FAIL, "group", message, "fabric", action="investigate")


def _passed(metric: Metric, group: Result) -> CheckResult:
    others = many(len(group.nodes) - 1, "other node")
    value = float(group.value or 0)
    limit = f">= {quantity(group.expected, group.unit)}"
    message = f"passes with {others} at once"
    found = Finding(metric.check, Verdict.PASS, "node", message, metric.name, value, group.unit, limit)
    measured = Measurement(metric.name, value, group.unit, f"node->{others} at once")
    return CheckResult(metric.check, Verdict.PASS, (found,), (measured,), 0.0)
