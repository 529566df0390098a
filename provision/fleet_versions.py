"""Comparison of versions and firmware within a kind of nodes: a finding for each node that differs from most
(pure).

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
from provision.shared_facts import Pool

_DECLARED = ("nvidia_driver_source", "nvidia_driver_version", "nvidia_driver_flavour")
Vote = tuple[tuple[str, ...], Voter]  # what the inventory declares, and what the node has
_SOURCE = "most nodes of this run with the same GPUs, system and declared driver"


class Kinds:
    """The votes of a fleet, added node by node, and who differs from most of its kind."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, ...], dict[str, Voter]] = defaultdict(dict)
        self._facts = Pool()  # most nodes say the same

    def add(self, node: str, vote: Vote | None) -> None:
        """The next node; None: it takes no part."""
        if vote is not None:
            kind, voter = vote
            self._kinds[kind][node] = replace(voter, facts=self._facts.of(voter.facts))

    def found(self) -> tuple[dict[str, list[Finding]], tuple[str, ...]]:
        """Node → how it differs; and a line for each fact in which no value has a majority."""
        odd: dict[str, list[Finding]] = defaultdict(list)
        ambiguous: list[str] = []
        for voters in self._kinds.values():
            found = majority.compare(voters)
            for outlier in found.outliers:
                if outlier.fact in versions.ALIKE and not outlier.unknown:
                    odd[outlier.node].append(_finding(outlier))
            ambiguous += [
                f"{tie.fact}: {odd_ones.tie(tie)}" for tie in found.ties if tie.fact in versions.ALIKE
            ]
        return dict(odd), tuple(ambiguous)


def judge(
    nodes: Iterable[NodeHealth], seen: Mapping[str, Seen]
) -> tuple[tuple[NodeHealth, ...], tuple[str, ...]]:
    """Few nodes at once: in the order given, with what differs added to their check `versions`; and a line
    for each fact in which no value has a majority."""
    nodes, kinds = tuple(nodes), Kinds()
    for node in nodes:
        kinds.add(node.node, vote(node, seen.get(node.node)))
    odd, ambiguous = kinds.found()
    judged = tuple(extended(node, odd[node.node]) if node.node in odd else node for node in nodes)
    return judged, ambiguous


def vote(node: NodeHealth, one: Seen | None) -> Vote | None:
    """What is compared of a node: None unless its versions were checked."""
    if one is None or all(check.check != versions.ID for check in node.checks):
        return None
    return tuple(str(one.variables.get(name, "")) for name in _DECLARED), _voter(one)


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


def extended(node: NodeHealth, added: Sequence[Finding]) -> NodeHealth:
    """The node with these findings on its versions."""
    checks = tuple(_extended(check, added) if check.check == versions.ID else check for check in node.checks)
    return replace(node, checks=checks, verdict=worst([node.verdict, *(check.verdict for check in checks)]))


def _extended(check: CheckResult, added: Sequence[Finding]) -> CheckResult:
    kept = list(check.wrong)
    findings = (*kept, *added)
    return replace(check, findings=findings, verdict=worst(finding.verdict for finding in findings))
