"""What the measurements of pairs say, as findings: of each node, and of what lies between the nodes (pure).

A node's own fault fails that node, if something was measured with it: a program that is missing, or a node
that does not answer, is an error. A link, a leaf or an uplink is no node: it is a finding of the fabric, and
the nodes behind it get a warning that names it, for they may be fine and yet cannot be used together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from provision.checks.check import Measurement
from provision.health import CheckResult
from provision.judge import Finding, Verdict, unmeasured, worst
from provision.node_names import fold
from provision.pairs.blame import Kind
from provision.pairs.pairing import Topology
from provision.pairs.results import Outcome, Result
from provision.pairs.suspects import Culprit, Diagnosis, Suspects, diagnose
from provision.pairs.write_bw import ID
from provision.wording import many, one_line

_CABLE = "reseat or check cable"
_ACTIONS = {Outcome.MEASURED: _CABLE, Outcome.HANG: "investigate", Outcome.ERROR: "investigate"}
_IS = {Outcome.MEASURED: "is slow", Outcome.HANG: "hangs", Outcome.ERROR: "fails"}
_MOST = 12  # lines of evidence; the raw output has all


def judged(
    fleet: Topology, results: Sequence[Result]
) -> tuple[Mapping[str, CheckResult], tuple[Finding, ...], tuple[str, ...]]:
    """The check's result on each node of `fleet`, the findings of the fabric, and lines on what no
    measurement could tell."""
    found = diagnose(fleet, results)
    own: dict[str, list[Finding]] = {node: [] for node in fleet.nodes}
    fabric: list[Finding] = []
    failed = {(result.end, result.rail) for result in results if result.end}
    for culprit in found.culprits:
        _blame(culprit, own, fabric, failed)
    for one in found.suspects:
        _suspect(one, own, fabric, failed)
    for node, why in found.unjudged.items():
        said = [f"{one.name}: {one.said}" for one in results if node in one.nodes and one.said]
        message = f"no pair with it says anything: {why}"
        own[node].append(unmeasured(ID, message, action="run again", evidence=said[:_MOST]))
    measured = _measurements(results)
    for node in found.passed:
        own[node].append(_passed(measured.get(node, [])))
    checks = {node: _result(findings, measured.get(node, ())) for node, findings in own.items()}
    return checks, tuple(fabric), _lines(found)


def _result(findings: Sequence[Finding], measured: Sequence[Measurement]) -> CheckResult:
    return CheckResult(ID, worst(f.verdict for f in findings), tuple(findings), tuple(measured), 0.0)


_Ends = Set[tuple[str, str]]  # (node, rail) where the node's own side failed before anything was measured


def _bad(node: str, rail: str, outcome: Outcome, why: str, evidence: Sequence[str], failed: _Ends) -> Finding:
    """The finding of a node that is to blame, on one rail or, "", as a whole."""
    what, device = (f"its rail {rail}", rail) if rail else ("it", "node")
    if outcome is Outcome.ERROR and any(end == node and rail in ("", on) for end, on in failed):
        message = f"{what} could not be measured between nodes: {why}"
        return unmeasured(ID, message, device=device, action=_ACTIONS[outcome], evidence=evidence)
    message = f"{what} {_IS[outcome]} between nodes: {why}"
    action = _ACTIONS[outcome]
    return Finding(ID, Verdict.FAIL, device, message, "pairs", action=action, evidence=tuple(evidence))


def _blame(culprit: Culprit, own: Mapping[str, list[Finding]], fabric: list[Finding], failed: _Ends) -> None:
    action, evidence = _ACTIONS[culprit.outcome], culprit.evidence[:_MOST]
    if culprit.kind is Kind.NODE:
        (node,) = culprit.nodes
        rail = _rail_of(node, culprit.device) or ""
        own[node].append(_bad(node, rail, culprit.outcome, culprit.why, evidence, failed))
        return
    message = f"{culprit.device} {_IS[culprit.outcome]}: {culprit.why}"
    fabric.append(
        Finding(ID, Verdict.FAIL, culprit.device, message, "fabric", action=action, evidence=evidence)
    )
    for node in culprit.nodes:
        behind = f"it is at {culprit.device}, which {_IS[culprit.outcome]}; the node itself is not to blame"
        if culprit.kind in (Kind.LINK, Kind.LEAF):
            behind = f"it is at {culprit.device}, which {_IS[culprit.outcome]}"
        # Of the node as a whole: a device `link gpu1-gpu2` would be read as two of its GPUs.
        own[node].append(Finding(ID, Verdict.WARN, "node", behind, "fabric", action=action))


def _rail_of(node: str, device: str) -> str | None:
    """The rail in the name of a node's part, "" of the whole node; None when it is no part of this node."""
    name = one_line(node, 80)
    if device == name:
        return ""
    prefix = f"{name}/rail "
    return device.removeprefix(prefix) if device.startswith(prefix) else None


def _suspect(one: Suspects, own: Mapping[str, list[Finding]], fabric: list[Finding], failed: _Ends) -> None:
    action, evidence = _ACTIONS[one.outcome], one.evidence[:_MOST]
    alone = len(one.nodes) == 1 and all(_rail_of(one.nodes[0], device) is not None for device in one.devices)
    if alone:  # the whole node, or each of its rails: it is this node
        why = "on every rail that was measured"
        own[one.nodes[0]].append(_bad(one.nodes[0], "", one.outcome, why, evidence, failed))
        return
    named = fold(one.devices, 200)
    message = f"of {named} one at least {_IS[one.outcome]}, and which is not known: {one.why}"
    fabric.append(
        Finding(ID, Verdict.FAIL, "suspects", message, "suspects", action=action, evidence=evidence)
    )
    for node in one.nodes:
        said = f"it may be what {_IS[one.outcome]}, one of {named}: {one.why}"
        own[node].append(Finding(ID, Verdict.WARN, "node", said, "suspects", action=action))


def _passed(measured: Sequence[Measurement]) -> Finding:
    values = [m.value for m in measured if isinstance(m.value, float)]
    partners = {m.device.rpartition(" round ")[0].partition("->")[2] for m in measured}
    least = min(values, default=None)
    message = f"passes with {many(len(partners), 'other node')}"
    return Finding(ID, Verdict.PASS, "node", message, "pairs", least, "Gb/s")


def _measurements(results: Iterable[Result]) -> dict[str, list[Measurement]]:
    """What was measured with each node: device `mlx5_0->gpu-07 round 2`, Gb/s or how it ended."""
    found: dict[str, list[Measurement]] = {}
    for result in results:
        value = result.value if result.value is not None else result.outcome.value
        for node in result.nodes:
            others = fold([other for other in result.nodes if other != node], 200)
            device = f"{result.rail or 'node'}->{others} round {result.round}"
            found.setdefault(node, []).append(Measurement("bandwidth", value, result.unit, device))
    return found


def _lines(found: Diagnosis) -> tuple[str, ...]:
    said = [f"bad once and not again: {line}" for line in found.unsteady]
    return tuple(f"{ID}: {line}" for line in (*said, *found.notes, *found.limits))
