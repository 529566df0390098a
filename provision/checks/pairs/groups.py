"""Findings from a measurement of all nodes at once and of the pairs measured because of it (pure).

A good group clears all its nodes. A bad group is never the answer: pairs of its nodes are measured to name
the culprits. Only if the pairs name none is the group itself the finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from provision.checks.check import Measurement
from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict, unmeasured, worst
from provision.checks.pairs.blame import Kind
from provision.checks.pairs.judge import Metric
from provision.checks.pairs.pairing import Outcome, Pair, Result, Topology
from provision.checks.pairs.suspects import Culprit, Diagnosis, Suspects, diagnose
from provision.node_names import fold
from provision.text import many, one_line, quantity

ROUND = 0  # round of the group; pairs are measured from round 1 on


def of_group(results: Sequence[Result]) -> Result | None:
    """Return the result of the group, if it was measured."""
    return next((result for result in results if result.round == ROUND), None)


def pairs_of(results: Sequence[Result]) -> list[Result]:
    """Return all results except the group's."""
    return [result for result in results if result.round != ROUND]


def neighbours(fleet: Topology, results: Sequence[Result], metric: Metric) -> tuple[Pair, ...]:
    """Return the pairs to measure next if the group is bad and no pair so far is.

    These are neighbours in the order of the nodes (as in NCCL's rings) that have not met, in two rounds of
    disjoint pairs. None if no pair is left or a part is suspected.
    """
    if len(fleet.nodes) < 2:
        return ()
    diagnosis = diagnose(fleet, results, tolerance=metric.tolerance, direction=metric.direction)
    if diagnosis.culprits or diagnosis.suspects:
        return ()
    met = {frozenset(result.nodes) for result in results}
    ring = list(zip(fleet.nodes, (*fleet.nodes[1:], fleet.nodes[0]), strict=True))
    if len(ring) % 2:  # the last pair shares a node with the first one of its round
        ring, last = ring[:-1], ring[-1:]
    else:
        last = []
    for some in (ring[::2], ring[1::2], last):
        if new := tuple(pair for pair in some if frozenset(pair) not in met):
            return new
    return ()


def as_expected(results: Sequence[Result]) -> bool:
    """Return whether the group reached its expected value; False if either value is unknown."""
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
    """Judge results like `judged_pairs`, with the group's result among them if there is one."""
    group = of_group(results)
    if group is None:
        return judged_pairs(fleet, results, metric)
    if as_expected(results):
        return {node: _passed(metric, group) for node in group.nodes if node in fleet.order}, (), ()
    checks, fabric, lines = judged_pairs(fleet, pairs_of(results), metric)
    blamed = fabric or any(check.verdict is not Verdict.PASS for check in checks.values())
    text = _said(group)
    if blamed:
        return checks, fabric, (f"{metric.check}: {text}", *lines)
    if group.outcome is Outcome.MEASURED and group.expected is None:
        return checks, fabric, (f"{metric.check}: {text}; there is no expected value to judge it by", *lines)
    if group.outcome is Outcome.ERROR and group.end in checks:  # as one end of a pair it may have passed
        return {**checks, group.end: _failed_at(metric, checks[group.end], text)}, (), lines
    return checks, (_itself(metric, group, text),), lines


def _failed_at(metric: Metric, check: CheckResult, said: str) -> CheckResult:
    """Add an error to the check of a node that kept the group from being measured."""
    error = unmeasured(
        metric.check, f"it could not be measured with the others: {said}", action="investigate"
    )
    return replace(check, verdict=worst([check.verdict, error.verdict]), findings=(*check.findings, error))


def _said(group: Result) -> str:
    what = f"all {many(len(group.nodes), 'node')} at once"
    if group.value is None:
        return f"{what}: {group.outcome.value}{f' ({one_line(group.said, 200)})' if group.said else ''}"
    expected = "" if group.expected is None else f", at least {quantity(group.expected, group.unit)} expected"
    return f"{what}: {quantity(group.value, group.unit)}{expected}"


def _itself(metric: Metric, group: Result, said: str) -> Finding:
    """Return the finding of a bad group in which every pair passes."""
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
    finding = Finding(metric.check, Verdict.PASS, "node", message, metric.name, value, group.unit, limit)
    measured = Measurement(metric.name, value, group.unit, f"node->{others} at once")
    return CheckResult(metric.check, Verdict.PASS, (finding,), (measured,), 0.0)


# --- Findings from pairs, about each node and about the network between the nodes. A node's own fault fails
# the node if anything was measured with it; a missing program or a silent node is an error. A link, a leaf or
# an uplink is not a node: it is a finding of the fabric, and the nodes behind it get a warning that names it,
# since they may be healthy and yet cannot be used together.


_IS = {Outcome.HANG: "hangs", Outcome.ERROR: "fails"}
_MOST = 12  # lines of evidence kept; the raw output has all


def judged_pairs(
    fleet: Topology, results: Sequence[Result], metric: Metric
) -> tuple[Mapping[str, CheckResult], tuple[Finding, ...], tuple[str, ...]]:
    """Return each node's result, the fabric's findings, and notes on the limits of the measurements."""
    found = diagnose(fleet, results, tolerance=metric.tolerance, direction=metric.direction)
    own: dict[str, list[Finding]] = {node: [] for node in fleet.nodes}
    fabric: list[Finding] = []
    failed = {(result.end, result.rail) for result in results if result.end}
    for culprit in found.culprits:
        _blame(metric, culprit, own, fabric, failed)
    for one in found.suspects:
        _suspect(metric, one, own, fabric, failed)
    for node, why in found.unjudged.items():
        mute = [one for one in results if node in one.nodes and one.said]
        lines = [f"{one.name}: {one.said}" for one in mute]
        message = f"no pair with this node gave a usable result: {why}"
        message += f" ({one_line(mute[-1].said, 160)})" if mute else ""
        own[node].append(unmeasured(metric.check, message, action="run again", evidence=lines[:_MOST]))
    measured = _measurements(metric, results)
    for node in found.passed:
        own[node].append(_passed_pairs(metric, measured.get(node, [])))
    checks = {node: _result(metric, findings, measured.get(node, ())) for node, findings in own.items()}
    return checks, tuple(fabric), _lines(metric, found)


def _result(metric: Metric, findings: Sequence[Finding], measured: Sequence[Measurement]) -> CheckResult:
    return CheckResult(
        metric.check, worst(f.verdict for f in findings), tuple(findings), tuple(measured), 0.0
    )


def _is(metric: Metric, outcome: Outcome) -> str:
    return _IS.get(outcome, metric.bad)


def _action(metric: Metric, outcome: Outcome) -> str:
    return metric.action if outcome is Outcome.MEASURED else "investigate"


_Ends = Set[tuple[str, str]]  # (node, rail) in which the node's own side failed before any measurement


def _bad(
    metric: Metric, node: str, rail: str, outcome: Outcome, why: str, evidence: Sequence[str], failed: _Ends
) -> Finding:
    """Return the finding of a culprit node, on one rail or, with "", as a whole."""
    what, device = (f"its rail {rail}", rail) if rail else ("it", "node")
    if outcome is Outcome.ERROR and any(end == node and rail in ("", on) for end, on in failed):
        message = f"{what} could not be measured between nodes: {why}"
        message += f" ({evidence[0]})" if evidence else ""
        return unmeasured(metric.check, message, device=device, action="investigate", evidence=evidence)
    message = f"{what} {_is(metric, outcome)} between nodes: {why}"
    action = _action(metric, outcome)
    return Finding(
        metric.check, Verdict.FAIL, device, message, "pairs", action=action, evidence=tuple(evidence)
    )


def _blame(
    metric: Metric,
    culprit: Culprit,
    own: Mapping[str, list[Finding]],
    fabric: list[Finding],
    failed: _Ends,
) -> None:
    action, evidence = _action(metric, culprit.outcome), culprit.evidence[:_MOST]
    if culprit.kind is Kind.NODE:
        (node,) = culprit.nodes
        rail = _rail_of(node, culprit.device) or ""
        own[node].append(_bad(metric, node, rail, culprit.outcome, culprit.why, evidence, failed))
        return
    wrong = _is(metric, culprit.outcome)
    message = f"{culprit.device} {wrong}: {culprit.why}"
    fabric.append(
        Finding(
            metric.check, Verdict.FAIL, culprit.device, message, "fabric", action=action, evidence=evidence
        )
    )
    for node in culprit.nodes:
        behind = f"it is connected to {culprit.device}, which {wrong}"
        if culprit.kind not in (Kind.LINK, Kind.LEAF):
            behind += "; the node itself is not to blame"
        # On the node as a whole: a device `link gpu1-gpu2` would be read as two of its GPUs.
        own[node].append(Finding(metric.check, Verdict.WARN, "node", behind, "fabric", action=action))


def _rail_of(node: str, device: str) -> str | None:
    """Return the rail in the name of a node's part, "" for the whole node, None for other devices."""
    name = one_line(node, 80)
    if device == name:
        return ""
    prefix = f"{name}/rail "
    return device.removeprefix(prefix) if device.startswith(prefix) else None


def _suspect(
    metric: Metric,
    one: Suspects,
    own: Mapping[str, list[Finding]],
    fabric: list[Finding],
    failed: _Ends,
) -> None:
    action, evidence = _action(metric, one.outcome), one.evidence[:_MOST]
    alone = len(one.nodes) == 1 and all(_rail_of(one.nodes[0], device) is not None for device in one.devices)
    if alone:  # all suspects are this node or its rails
        why = "on every rail that was measured"
        own[one.nodes[0]].append(_bad(metric, one.nodes[0], "", one.outcome, why, evidence, failed))
        return
    named = fold(one.devices, 200)
    message = f"of {named} at least one {_is(metric, one.outcome)}, but it is unknown which: {one.why}"
    fabric.append(
        Finding(metric.check, Verdict.FAIL, "suspects", message, "suspects", action=action, evidence=evidence)
    )
    for node in one.nodes:
        wrong = _is(metric, one.outcome)
        warning = f"it is one of the suspects ({named}), of which at least one {wrong}: {one.why}"
        own[node].append(Finding(metric.check, Verdict.WARN, "node", warning, "suspects", action=action))


def _passed_pairs(metric: Metric, measured: Sequence[Measurement]) -> Finding:
    values = [m.value for m in measured if isinstance(m.value, float)]
    partners = {m.device.rpartition(" round ")[0].partition("->")[2] for m in measured}
    worst_value = (min if metric.direction == "at_least" else max)(values, default=None)
    message = f"passes with {many(len(partners), 'other node')}"
    return Finding(metric.check, Verdict.PASS, "node", message, "pairs", worst_value, metric.unit)


def _measurements(metric: Metric, results: Iterable[Result]) -> dict[str, list[Measurement]]:
    """Return each node's measurements: device `mlx5_0->gpu-07 round 2`, with its value or outcome."""
    by_node: dict[str, list[Measurement]] = {}
    for result in results:
        value = result.value if result.value is not None else result.outcome.value
        for node in result.nodes:
            others = fold([other for other in result.nodes if other != node], 200)
            device = f"{result.rail or 'node'}->{others} round {result.round}"
            by_node.setdefault(node, []).append(Measurement(metric.name, value, result.unit, device))
    return by_node


def _lines(metric: Metric, found: Diagnosis) -> tuple[str, ...]:
    unsteady = [f"bad once, then good: {line}" for line in found.unsteady]
    return tuple(f"{metric.check}: {line}" for line in (*unsteady, *found.notes, *found.limits))
