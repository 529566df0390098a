"""The causes of a fleet's bad verdicts, worst first, with the same cause on many nodes grouped (pure).

What could not be measured is a cause like any other: a node that was not reached and a check that never ran
get a finding of their own here, so that every report shows them as loudly as a failure.
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

# In words and in symbols: a verdict is never told by colour alone.
SYMBOLS = {Verdict.PASS: "✓", Verdict.SKIP: "-", Verdict.WARN: "!", Verdict.ERROR: "?", Verdict.FAIL: "✗"}
HEADINGS = {
    Verdict.FAIL: "Failed",
    Verdict.ERROR: "Not measured",
    Verdict.WARN: "Warnings",
    Verdict.SKIP: "Skipped: not applicable",
}
FABRIC = "the fabric"  # the name under which what lies between the nodes is told; no host is called so
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
        wanted = {int(index) for index in _GPU.findall(self.finding.device)}
        return tuple(gpu for gpu in self.node.gpus if gpu.index in wanted) if wanted else ()


@dataclass(frozen=True)
class Cause:
    """Findings that are the same trouble: same verdict, check, metric and action."""

    verdict: Verdict
    check: str
    metric: str
    action: str
    culprits: tuple[Culprit, ...]

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The nodes it is on, in natural order."""
        return tuple(dict.fromkeys(culprit.node.node for culprit in self.culprits))

    @property
    def between_nodes(self) -> bool:
        """Whether it is a fault of what lies between the nodes."""
        return self.nodes == (FABRIC,)

    @cached_property
    def same_words(self) -> bool:
        """Whether every culprit has the same message, so that saying it once says it all."""
        return len({culprit.finding.message for culprit in self.culprits}) == 1

    @cached_property
    def uniform(self) -> bool:
        """Whether only the node differs from culprit to culprit, so that a list of nodes says it all."""
        first = self.culprits[0].finding
        return not first.evidence and all(culprit.finding == first for culprit in self.culprits)

    @cached_property
    def title(self) -> str:
        """`gpu_burn: gpu5 computed 128 wrong results`, or the metric and its limit when the words differ."""
        first = self.culprits[0].finding
        if self.same_words:
            return f"{self.check}: {one_line(first.message)}" if self.check else one_line(first.message)
        what = one_line(self.metric, 80) or one_line(_VARYING.sub("…", first.message), 160)
        limits = {culprit.finding.limit for culprit in self.culprits}
        limit = f" (limit {one_line(first.limit)})" if len(limits) == 1 and first.limit else ""
        return f"{self.check}: {what}{limit}" if self.check else what


def causes(fleet: FleetHealth) -> list[Cause]:
    """Everything that is not a pass, worst verdict first, then the cause that most nodes share."""
    groups: dict[tuple[Verdict, str, str, str, str], list[Culprit]] = {}
    for culprit in _culprits(fleet):
        finding = culprit.finding
        words = finding.metric or _VARYING.sub("#", finding.message.replace(culprit.node.node, "#"))
        key = (finding.verdict, finding.check, finding.metric, finding.action, words)
        groups.setdefault(key, []).append(culprit)
    found = [
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
        found, key=lambda cause: (-cause.verdict.badness, -len(cause.nodes), cause.check, cause.metric)
    )


def worst_first(fleet: FleetHealth) -> list[NodeHealth]:
    """The nodes in the order in which a person should look at them."""
    return sorted(fleet.nodes, key=lambda node: (-node.verdict.badness, natural(node.node)))


def _culprits(fleet: FleetHealth) -> Iterator[Culprit]:
    for finding in fleet.fabric:
        yield Culprit(NodeHealth(FABRIC, finding.verdict, ()), finding)
    for node in fleet.nodes:
        if node.unreachable or node.error:
            told = " → " in node.error  # it says itself what to do
            action = "none" if told else "investigate" if node.unreachable else "run again"
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
    """Several metrics of a node for which nobody has stated a limit, as one."""
    by_check: dict[str, dict[str, None]] = {}
    for one in findings:
        by_check.setdefault(one.check, {})[one.metric] = None
    metrics = ", ".join(f"{check} {' '.join(names)}" for check, names in by_check.items())
    count = sum(map(len, by_check.values()))
    said = "no limits are known for this GPU, give them with --thresholds FILE"
    message = f"{said}: {many(count, 'metric')}, {metrics}"
    return Finding("", Verdict.WARN, "node", message, action="fix configuration")


def silence(node: NodeHealth) -> str:
    """Why a node has no answer: one sentence."""
    why = one_line(node.error) or "no reason was given"
    return f"unreachable: {why}" if node.unreachable else why


def missing(fleet: FleetHealth, node: NodeHealth) -> tuple[str, ...]:
    """The checks that were asked for and have no result on this node."""
    have = {check.check for check in node.checks}
    return tuple(name for name in fleet.asked if name not in have)


@dataclass(frozen=True)
class Coverage:
    """How much of what was asked was measured, counted in checks on nodes. `asked` is without `skipped`:
    those that do not apply to their node."""

    asked: int
    measured: int
    skipped: int
    nodes_silent: int

    @property
    def unmeasured(self) -> int:
        return self.asked - self.measured

    @property
    def words(self) -> str:
        """`30 of 36 checks measured`, and how many were skipped, where any were."""
        skipped = f", {self.skipped:,} skipped (not applicable)" if self.skipped else ""
        return f"{self.measured:,} of {many(self.asked, 'check')} measured{skipped}"


def coverage(fleet: FleetHealth) -> Coverage:
    """A check is measured on a node when it has a result there that is neither `error` nor `skip`."""
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
    """The fleet in one line: `1 of 3 nodes unhealthy, 2 healthy; 1 failure between nodes`."""
    total, counts = len(fleet.nodes), fleet.counts
    if not total:
        return "nothing was measured: the run has no nodes"
    if counts[Verdict.PASS] == total:
        said = f"all {total:,} nodes healthy" if total > 1 else "the node is healthy"
    else:
        first, *rest = [(counts[verdict], words) for verdict, words in _HEADLINE if counts[verdict]]
        said = f"{first[0]:,} of {many(total, 'node')} {first[1](first[0]).partition(' ')[2]}"
        said += "".join(f", {words(count)}" for count, words in rest)
    if between := sum(finding.verdict is Verdict.FAIL for finding in fleet.fabric):
        said += f"; {many(between, 'failure')} between nodes"
    return f"{said}; the run was interrupted" if fleet.interrupted else said


def overall(fleet: FleetHealth) -> Verdict:
    """The worst verdict of any node or of the fabric; `error` when there is none, or nothing worse and an
    interrupt."""
    verdicts = [node.verdict for node in fleet.nodes] + [finding.verdict for finding in fleet.fabric]
    if fleet.interrupted or not verdicts:
        verdicts.append(Verdict.ERROR)
    return max(verdicts, key=lambda verdict: verdict.badness)
