"""The causes of a fleet's bad verdicts, worst first; the same cause on many nodes is grouped (pure).

Missing measurements are causes too: an unreachable node and a check that never ran get their own findings
here, so that every report shows them as prominently as a failure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from provision.checks.health import FleetHealth, GpuIdentity, NodeHealth
from provision.checks.judge import Finding, Verdict, without_limit
from provision.node_names import natural
from provision.text import many, one_line

# Words and symbols, since colour alone must not carry a verdict.
SYMBOLS = {Verdict.PASS: "✓", Verdict.SKIP: "-", Verdict.WARN: "!", Verdict.ERROR: "?", Verdict.FAIL: "✗"}
HEADINGS = {
    Verdict.FAIL: "Failed",
    Verdict.ERROR: "Not measured",
    Verdict.WARN: "Warnings",
    Verdict.SKIP: "Skipped: not applicable",
}
FABRIC = "the fabric"  # replaces a node's name for faults between the nodes; no host has this name
_VARYING = re.compile(
    r"GPU-[0-9a-fA-F-]{36}|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d|\d+(?:\.\d+)*"
)
_GPU = re.compile(r"\bgpu(\d{1,4})\b")


@dataclass(frozen=True)
class Culprit:
    """One finding on one node, with the GPUs its device names."""

    node: NodeHealth
    finding: Finding

    @property
    def gpus(self) -> tuple[GpuIdentity, ...]:
        indexes = {int(index) for index in _GPU.findall(self.finding.device)}
        return tuple(gpu for gpu in self.node.gpus if gpu.index in indexes) if indexes else ()


@dataclass(frozen=True)
class Cause:
    """Findings of the same problem: same verdict, check, metric and action."""

    verdict: Verdict
    check: str
    metric: str
    action: str
    culprits: tuple[Culprit, ...]

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The affected nodes, in natural order."""
        return tuple(dict.fromkeys(culprit.node.node for culprit in self.culprits))

    @property
    def between_nodes(self) -> bool:
        """Whether the fault is in the network between nodes."""
        return self.nodes == (FABRIC,)

    @cached_property
    def same_words(self) -> bool:
        """Whether every culprit has the same message, so that printing it once is enough."""
        return len({culprit.finding.message for culprit in self.culprits}) == 1

    @cached_property
    def uniform(self) -> bool:
        """Whether culprits differ only in the node, so that a list of nodes is enough."""
        first = self.culprits[0].finding
        return not first.evidence and all(culprit.finding == first for culprit in self.culprits)

    @cached_property
    def title(self) -> str:
        """`gpu_burn: gpu5 computed 128 wrong results`, or the metric and its limit if messages differ."""
        first = self.culprits[0].finding
        if self.same_words:
            return f"{self.check}: {one_line(first.message)}" if self.check else one_line(first.message)
        what = one_line(self.metric, 80) or one_line(_VARYING.sub("…", first.message), 160)
        limits = {culprit.finding.limit for culprit in self.culprits}
        limit = f" (limit {one_line(first.limit)})" if len(limits) == 1 and first.limit else ""
        return f"{self.check}: {what}{limit}" if self.check else what


def causes(fleet: FleetHealth) -> list[Cause]:
    """Return the causes of everything that is not a pass, worst verdict first, then most nodes first."""
    groups: dict[tuple[Verdict, str, str, str, str], list[Culprit]] = {}
    for culprit in _culprits(fleet):
        finding = culprit.finding
        words = finding.metric or _VARYING.sub("#", finding.message.replace(culprit.node.node, "#"))
        key = (finding.verdict, finding.check, finding.metric, finding.action, words)
        groups.setdefault(key, []).append(culprit)
    grouped = [
        Cause(
            verdict,
            check,
            metric,
            action,
            tuple(sorted(culprits, key=lambda c: (natural(c.node.node), natural(c.finding.device)))),
        )
        for (verdict, check, metric, action, _), culprits in groups.items()
    ]
    return sorted(
        grouped, key=lambda cause: (-cause.verdict.badness, -len(cause.nodes), cause.check, cause.metric)
    )


def worst_first(fleet: FleetHealth) -> list[NodeHealth]:
    """Return the nodes in the order in which a person should examine them."""
    return sorted(fleet.nodes, key=lambda node: (-node.verdict.badness, natural(node.node)))


def _culprits(fleet: FleetHealth) -> Iterator[Culprit]:
    for finding in fleet.fabric:
        yield Culprit(NodeHealth(FABRIC, finding.verdict, ()), finding)
    for node in fleet.nodes:
        if node.unreachable or node.error:
            has_remedy = " → " in node.error  # the error already names the remedy
            action = "none" if has_remedy else "investigate" if node.unreachable else "run again"
            yield Culprit(node, Finding("", Verdict.ERROR, "node", silence(node), action=action))
        elif absent := missing(fleet, node):
            message = f"did not run: {', '.join(absent)}"
            yield Culprit(node, Finding("", Verdict.ERROR, "node", message, action="run again"))
        unlimited = [one for check in node.checks for one in check.wrong if without_limit(one)]
        if len(unlimited) > 1:
            yield Culprit(node, _without_limits(unlimited))
        for check in node.checks:
            for finding in check.wrong:
                if len(unlimited) < 2 or not without_limit(finding):
                    yield Culprit(node, finding)
            if check.verdict is not Verdict.PASS and not check.wrong and not check.findings:
                finding = Finding(
                    check.check, check.verdict, "node", "no reason was given", action="run again"
                )
                yield Culprit(node, finding)


def _without_limits(findings: Sequence[Finding]) -> Finding:
    """Merge the findings of a node about metrics without a limit into one."""
    by_check: dict[str, dict[str, None]] = {}
    for one in findings:
        by_check.setdefault(one.check, {})[one.metric] = None
    metrics = ", ".join(f"{check} {' '.join(names)}" for check, names in by_check.items())
    count = sum(map(len, by_check.values()))
    reason = "no limits are known for this GPU, give them with --thresholds FILE"
    message = f"{reason}: {many(count, 'metric')}, {metrics}"
    return Finding("", Verdict.WARN, "node", message, action="fix configuration")


def silence(node: NodeHealth) -> str:
    """Return the reason why a node has no results, in one sentence."""
    why = one_line(node.error) or "no reason was given"
    return f"unreachable: {why}" if node.unreachable else why


def missing(fleet: FleetHealth, node: NodeHealth) -> tuple[str, ...]:
    """Return the requested checks without a result on this node."""
    have = {check.check for check in node.checks}
    return tuple(name for name in fleet.asked if name not in have)


@dataclass(frozen=True)
class Coverage:
    """Coverage of the requested checks, counted per node; `asked` excludes `skipped` ones."""

    asked: int
    measured: int
    skipped: int
    nodes_silent: int

    @property
    def unmeasured(self) -> int:
        return self.asked - self.measured

    @property
    def words(self) -> str:
        """`30 of 36 checks measured`, with the number of skipped ones if there are any."""
        skipped = f", {self.skipped:,} skipped (not applicable)" if self.skipped else ""
        return f"{self.measured:,} of {many(self.asked, 'check')} measured{skipped}"


def coverage(fleet: FleetHealth) -> Coverage:
    """Count measured checks: those with a result on a node that is neither `error` nor `skip`."""
    asked = silent = 0
    verdicts: Counter[Verdict] = Counter()
    for node in fleet.nodes:
        asked += len(dict.fromkeys((*fleet.asked, *(check.check for check in node.checks))))
        verdicts.update(check.verdict for check in node.checks)
        silent += node.unreachable
    skipped = verdicts[Verdict.SKIP]
    return Coverage(asked - skipped, verdicts.total() - skipped - verdicts[Verdict.ERROR], skipped, silent)


_HEADLINE: tuple[tuple[Verdict, Callable[[int], str]], ...] = (
    (Verdict.FAIL, lambda count: f"{count:,} unhealthy"),
    (Verdict.ERROR, lambda count: f"{count:,} not proven (could not be measured)"),
    (Verdict.WARN, lambda count: f"{count:,} with warnings"),
    (Verdict.SKIP, lambda count: f"{count:,} skipped (no check applies)"),
    (Verdict.PASS, lambda count: f"{count:,} healthy"),
)


def headline(fleet: FleetHealth) -> str:
    """Summarise the fleet in one line: `1 of 3 nodes unhealthy, 2 healthy; 1 failure between nodes`."""
    total, counts = len(fleet.nodes), fleet.counts
    if not total:
        return "nothing was measured: the run has no nodes"
    if counts[Verdict.PASS] == total:
        summary = f"all {total:,} nodes healthy" if total > 1 else "the node is healthy"
    else:
        first, *rest = [(counts[verdict], words) for verdict, words in _HEADLINE if counts[verdict]]
        summary = f"{first[0]:,} of {many(total, 'node')} {first[1](first[0]).partition(' ')[2]}"
        summary += "".join(f", {words(count)}" for count, words in rest)
    if between := sum(finding.verdict is Verdict.FAIL for finding in fleet.fabric):
        summary += f"; {many(between, 'failure')} between nodes"
    return f"{summary}; the run was interrupted" if fleet.interrupted else summary


def overall(fleet: FleetHealth) -> Verdict:
    """Return the worst verdict of all nodes and the fabric.

    It is at least `error` for an empty or interrupted run."""
    verdicts = [node.verdict for node in fleet.nodes] + [finding.verdict for finding in fleet.fabric]
    if fleet.interrupted or not verdicts:
        verdicts.append(Verdict.ERROR)
    return max(verdicts, key=lambda verdict: verdict.badness)
