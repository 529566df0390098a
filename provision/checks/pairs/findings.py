"""Findings from the measurements of pairs: about each node, and about the network between the nodes (pure).

A node's own fault fails that node, if something was measured with it: a program that is missing, or a node
that does not answer, is an error. A link, a leaf or an uplink is no node: it is a finding of the fabric, and
the nodes behind it get a warning that names it, for they may be fine and yet cannot be used together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from provision.checks.check import Measurement
from provision.checks.health import CheckResult
from provision.checks.judge import Finding, Verdict, unmeasured, worst
from provision.checks.pairs.blame import Kind
from provision.checks.pairs.metric import Metric
from provision.checks.pairs.pairing import Topology
from provision.checks.pairs.results import Outcome, Result
from provision.checks.pairs.suspects import Culprit, Diagnosis, Suspects, diagnose
from provision.node_names import fold
from provision.text import many, one_line

_IS = {Outcome.HANG: "hangs", Outcome.ERROR: "fails"}
_MOST = 12  # lines of evidence; the raw output has all


def judged(
    fleet: Topology, results: Sequence[Result], metric: Metric
) -> tuple[Mapping[str, CheckResult], tuple[Finding, ...], tuple[str, ...]]:
    """The check's result on each node of `fleet`, the findings of the fabric, and lines on what no
    measurement could tell."""
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
        said = [f"{one.name}: {one.said}" for one in mute]
        message = f"no pair with this node gave a usable result: {why}"
        message += f" ({one_line(mute[-1].said, 160)})" if mute else ""
        own[node].append(unmeasured(metric.check, message, action="run again", evidence=said[:_MOST]))
    measured = _measurements(metric, results)
    for node in found.passed:
        own[node].append(_passed(metric, measured.get(node, [])))
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


_Ends = Set[tuple[str, str]]  # (node, rail) where the node's own side failed before anything was measured


def _bad(
    metric: Metric, node: str, rail: str, outcome: Outcome, why: str, evidence: Sequence[str], failed: _Ends
) -> Finding:
    """The finding of a node that is to blame, on one rail or, "", as a whole."""
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
        # Of the node as a whole: a device `link gpu1-gpu2` would be read as two of its GPUs.
        own[node].append(Finding(metric.check, Verdict.WARN, "node", behind, "fabric", action=action))


def _rail_of(node: str, device: str) -> str | None:
    """The rail in the name of a node's part, "" of the whole node; None when it is no part of this node."""
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
    if alone:  # the whole node, or each of its rails: it is this node
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
        said = f"it is one of the suspects ({named}), of which at least one {wrong}: {one.why}"
        own[node].append(Finding(metric.check, Verdict.WARN, "node", said, "suspects", action=action))


def _passed(metric: Metric, measured: Sequence[Measurement]) -> Finding:
    values = [m.value for m in measured if isinstance(m.value, float)]
    partners = {m.device.rpartition(" round ")[0].partition("->")[2] for m in measured}
    worst_value = (min if metric.direction == "at_least" else max)(values, default=None)
    message = f"passes with {many(len(partners), 'other node')}"
    return Finding(metric.check, Verdict.PASS, "node", message, "pairs", worst_value, metric.unit)


def _measurements(metric: Metric, results: Iterable[Result]) -> dict[str, list[Measurement]]:
    """What was measured with each node: device `mlx5_0->gpu-07 round 2`, its value or how it ended."""
    found: dict[str, list[Measurement]] = {}
    for result in results:
        value = result.value if result.value is not None else result.outcome.value
        for node in result.nodes:
            others = fold([other for other in result.nodes if other != node], 200)
            device = f"{result.rail or 'node'}->{others} round {result.round}"
            found.setdefault(node, []).append(Measurement(metric.name, value, result.unit, device))
    return found


def _lines(metric: Metric, found: Diagnosis) -> tuple[str, ...]:
    said = [f"bad once, then good: {line}" for line in found.unsteady]
    return tuple(f"{metric.check}: {line}" for line in (*said, *found.notes, *found.limits))
