"""What the measurements of pairs say, as findings: of each node, and of what lies between the nodes (pure).

A node's own fault fails that node. A link, a leaf or an uplink is no node: it is a finding of the fabric, and
the nodes behind it get a warning that names it, for they may be fine and yet cannot be used together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from provision.checks.check import Measurement
from provision.health import CheckResult
from provision.judge import Finding, Verdict, unmeasured, worst
from provision.node_names import fold
from provision.pairs.blame import Kind
from provision.pairs.pairing import Topology
from provision.pairs.results import Outcome, Result
from provision.pairs.suspects import Culprit, Diagnosis, Suspects, diagnose
from provision.pairs.write_bw import ID
from provision.wording import many

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
    for culprit in found.culprits:
        _blame(culprit, own, fabric)
    for one in found.suspects:
        _suspect(one, own, fabric)
    for node, why in found.unjudged.items():
        own[node].append(unmeasured(ID, f"no pair with it says anything: {why}", action="run again"))
    measured = _measurements(results)
    for node in found.passed:
        own[node].append(_passed(measured.get(node, [])))
    checks = {
        node: CheckResult(
            ID, worst(f.verdict for f in findings), tuple(findings), tuple(measured.get(node, ())), 0.0
        )
        for node, findings in own.items()
    }
    return checks, tuple(fabric), _lines(found)


def _result(findings: Sequence[Finding], measured: Sequence[Measurement]) -> CheckResult:
    return CheckResult(ID, worst(f.verdict for f in findings), tuple(findings), tuple(measured), 0.0)


def _blame(culprit: Culprit, own: Mapping[str, list[Finding]], fabric: list[Finding]) -> None:
    action, evidence = _ACTIONS[culprit.outcome], culprit.evidence[:_MOST]
    if culprit.kind is Kind.NODE:
        (node,) = culprit.nodes
        _, _, rail = culprit.device.partition("/rail ")
        what = f"its rail {rail}" if rail else "it"
        message = f"{what} {_IS[culprit.outcome]} between nodes: {culprit.why}"
        own[node].append(
            Finding(ID, Verdict.FAIL, rail or "node", message, "pairs", action=action, evidence=evidence)
        )
        return
    message = f"{culprit.device} {_IS[culprit.outcome]}: {culprit.why}"
    fabric.append(
        Finding(ID, Verdict.FAIL, culprit.device, message, "fabric", action=action, evidence=evidence)
    )
    for node in culprit.nodes:
        behind = f"it is at {culprit.device}, which {_IS[culprit.outcome]}; the node itself is not to blame"
        if culprit.kind in (Kind.LINK, Kind.LEAF):
            behind = f"it is at {culprit.device}, which {_IS[culprit.outcome]}"
        own[node].append(Finding(ID, Verdict.WARN, culprit.device, behind, "fabric", action=action))


def _suspect(one: Suspects, own: Mapping[str, list[Finding]], fabric: list[Finding]) -> None:
    action, evidence = _ACTIONS[one.outcome], one.evidence[:_MOST]
    if len(one.nodes) == 1:  # the whole node, or each of its rails: it is this node
        message = f"it {_IS[one.outcome]} between nodes, on every rail that was measured"
        own[one.nodes[0]].append(
            Finding(ID, Verdict.FAIL, "node", message, "pairs", action=action, evidence=evidence)
        )
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
