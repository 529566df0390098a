"""Comparison of versions and firmware between nodes of one kind: what the fleet adds to `versions` (pure).

Which nodes differ is for majority.py to say, in `validate` as in `drift`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from provision.checks.check import CheckNode
from provision.checks.fleet import majority
from provision.checks.fleet.majority import Outlier, Voter
from provision.checks.fleet.outliers import outlier_text, tie_text
from provision.checks.health import CheckResult, NodeHealth
from provision.checks.host import versions
from provision.checks.judge import Finding, Verdict, worst
from provision.remote.observe import Pool

# Nodes for which the inventory declares another driver, a canary group, are compared among themselves.
_DECLARED = ("nvidia_driver_source", "nvidia_driver_version", "nvidia_driver_flavour")
_SOURCE = "most nodes of this run with the same GPUs, system and declared driver"


class Versions:
    """The versions of a fleet, added node by node, and the nodes that differ from most of their kind."""

    def __init__(self) -> None:
        self._voters: dict[str, Voter] = {}
        self._facts = Pool()  # most nodes have the same

    def add(self, node: str, voter: Voter | None) -> None:
        """The next node; None: it takes no part."""
        if voter is not None:
            self._voters[node] = replace(voter, facts=self._facts.of(voter.facts))

    def found(self) -> tuple[dict[str, list[Finding]], tuple[str, ...]]:
        """Node → how it differs; and a line for each fact in which no value has a majority."""
        comparison = majority.compare(self._voters)
        findings: dict[str, list[Finding]] = defaultdict(list)
        for outlier in comparison.outliers:
            if outlier.fact in versions.ALIKE and not outlier.unknown:
                findings[outlier.node].append(_finding(outlier))
        ties = (tie for tie in comparison.ties if tie.fact in versions.ALIKE)
        return dict(findings), tuple(f"{tie.fact}: {tie_text(tie)}" for tie in ties)


def judge(
    nodes: Iterable[NodeHealth], known: Mapping[str, CheckNode]
) -> tuple[tuple[NodeHealth, ...], tuple[str, ...]]:
    """Few nodes at once: in the order given, with what differs added to their check `versions`; and a line
    for each fact in which no value has a majority."""
    nodes, fleet = tuple(nodes), Versions()
    for node in nodes:
        fleet.add(node.node, voter_of(node, known.get(node.node)))
    findings, ambiguous = fleet.found()
    judged = tuple(extended(node, findings[node.node]) if node.node in findings else node for node in nodes)
    return judged, ambiguous


def voter_of(node: NodeHealth, one: CheckNode | None) -> Voter | None:
    """What is compared of a node: None unless its versions were checked."""
    if one is None or all(check.check != versions.ID for check in node.checks):
        return None
    wanted = {*versions.FACTS, "os.id", "os.version_id", "gpu.pci"}
    return Voter(
        one.sku,
        {name: value for name, value in one.facts.items() if name in wanted},
        ignored=one.variables.get("gpuprov_ignore_majority") or (),
        group=tuple(str(one.variables.get(name, "")) for name in _DECLARED),
    )


def _finding(outlier: Outlier) -> Finding:
    message = f"{outlier.fact} {outlier_text(outlier)}: {outlier.why}"
    found = outlier.found if isinstance(outlier.found, int | str) else None
    return Finding(
        versions.ID,
        Verdict.WARN,
        "node",
        message,
        outlier.fact,
        found,
        limit=f"= {outlier.majority}",
        source=_SOURCE,
        action="fix configuration",
    )


def extended(node: NodeHealth, added: Sequence[Finding]) -> NodeHealth:
    """The node with these findings on its versions."""
    checks = tuple(_extended(check, added) if check.check == versions.ID else check for check in node.checks)
    return replace(node, checks=checks, verdict=worst([node.verdict, *(check.verdict for check in checks)]))


def _extended(check: CheckResult, added: Sequence[Finding]) -> CheckResult:
    kept = list(check.wrong)
    findings = (*kept, *added)
    return replace(check, findings=findings, verdict=worst(finding.verdict for finding in findings))
