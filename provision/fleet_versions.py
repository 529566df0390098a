"""Versions and firmware against the nodes of the same kind: a finding for each that differs from most (pure).

What is compared, and what a majority is, is drift's: data/majority.yml and provision/majority.py. Nodes for
which the inventory declares another driver, a canary group, are a kind of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from provision import majority, odd_ones
from provision.checks import versions
from provision.health import CheckResult, NodeHealth
from provision.judge import Finding, Verdict, worst
from provision.majority import Outlier, Voter
from provision.seen import Seen

_DECLARED = ("nvidia_driver_source", "nvidia_driver_version", "nvidia_driver_flavour")
_SOURCE = "most nodes of this run with the same GPUs, system and declared driver"


def judge(
    nodes: Iterable[NodeHealth], seen: Mapping[str, Seen]
) -> tuple[tuple[NodeHealth, ...], tuple[str, ...]]:
    """The nodes, in the order given, with what differs added to their check `versions`; and a line for each
    fact in which no value has a majority."""
    nodes = tuple(nodes)
    kinds: dict[tuple[str, ...], dict[str, Voter]] = defaultdict(dict)
    for node in nodes:
        if any(check.check == versions.ID for check in node.checks) and node.node in seen:
            one = seen[node.node]
            kinds[tuple(str(one.variables.get(name, "")) for name in _DECLARED)][node.node] = _voter(one)
    odd: dict[str, list[Finding]] = defaultdict(list)
    ambiguous = []
    for voters in kinds.values():
        found = majority.compare(voters)
        for outlier in found.outliers:
            if outlier.fact in versions.ALIKE and not outlier.unknown:
                odd[outlier.node].append(_finding(outlier))
        ambiguous += [f"{tie.fact}: {odd_ones.tie(tie)}" for tie in found.ties if tie.fact in versions.ALIKE]
    judged = tuple(_with(node, odd[node.node]) if node.node in odd else node for node in nodes)
    return judged, tuple(ambiguous)


def _voter(one: Seen) -> Voter:
    wanted: Collection[str] = {*versions.FACTS, "os.id", "os.version_id", "gpu.pci"}
    facts = {name: value for name, value in one.facts.items() if name in wanted}
    ignored = one.variables.get("gpuprov_ignore_majority") or ()
    return Voter(one.gpuprov_node["gpu"]["sku"], facts, ignored=ignored)


def _finding(outlier: Outlier) -> Finding:
    message = f"{outlier.fact} {odd_ones.odd_one(outlier)}: {outlier.why}"
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


def _with(node: NodeHealth, added: Sequence[Finding]) -> NodeHealth:
    checks = tuple(_extended(check, added) if check.check == versions.ID else check for check in node.checks)
    return replace(node, checks=checks, verdict=worst([node.verdict, *(check.verdict for check in checks)]))


def _extended(check: CheckResult, added: Sequence[Finding]) -> CheckResult:
    kept = list(check.wrong)
    findings = (*kept, *added)
    return replace(check, findings=findings, verdict=worst(finding.verdict for finding in findings))
