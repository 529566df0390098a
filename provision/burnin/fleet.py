"""Segments of a burn-in between nodes: nodes wait while an attached controller measures pairs.

Each segment stores its measurements in a separate folder, `<run>/fleet/<segment>/`, like a validate run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from provision.burnin.campaign import Campaign
from provision.burnin.node_talk import Status
from provision.checks.health import CheckResult, NodeHealth
from provision.checks.judge import Finding, Verdict, unmeasured, worst
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.registry import PAIRS
from provision.errors import RunFolderError
from provision.events import Note, OnEvent, work
from provision.node_names import fold
from provision.runs import fleet_pairs
from provision.runs.store import RunFolder
from provision.validate.pairs import pair_campaign
from provision.validate.plays.node_commands import Settings

UNATTENDED = "unattended"  # metric of findings about measurements that were not made

_NOBODY = (
    "not measured, because no controller was attached: gpuprov burnin attach measures it while the nodes wait"
)
_ALONE = "not measured, because no other node was in its batch"


@dataclass(frozen=True)
class Between:
    """Checks of a segment between nodes. `optional`: skipped without an attached controller."""

    checks: tuple[str, ...]
    optional: bool = False


Segments = Mapping[str, Between]


def segments(profile: Any) -> dict[str, Between]:
    """Return the segments between nodes from a profile in JSON form, which a node may have sent."""
    by_name = {}
    rows = profile.get("segments") if isinstance(profile, Mapping) else None
    for row in rows if isinstance(rows, list | tuple) else ():
        if isinstance(row, Mapping) and row.get("kind") == "fleet":
            named = row.get("checks")
            checks = tuple(str(check) for check in named) if isinstance(named, list | tuple) else ()
            by_name[str(row.get("name"))[:60]] = Between(checks, row.get("attended") == "only")
    return by_name


def ready(found: Iterable[Status], turns: Mapping[str, int], wanted: Segments) -> dict[str, list[str]]:
    """Return segment → waiting nodes, for turns in which all remaining nodes wait."""
    # Nodes of a turn reach a segment at different times, and a neighbour still under load would spoil the
    # measurement. A node that has ended or is silent is left out, because it would hold up the others.
    groups: dict[int, list[Status]] = {}
    for one in found:
        if not one.over and not one.error:
            groups.setdefault(turns.get(one.node, 1), []).append(one)
    waiting: dict[str, list[str]] = {}
    for members in groups.values():
        names = {one.holding for one in members}
        if len(names) == 1 and (name := names.pop()) in wanted:
            waiting.setdefault(name, []).extend(one.node for one in members)
    return waiting


def measure(
    run: Campaign,
    segment: str,
    checks: Sequence[str],
    able: Mapping[str, NodeFacts],
    on_event: OnEvent,
    forks: int,
) -> None:
    """Measure the waiting nodes of a segment, then release them; mark a check as late if some had left."""
    folder = _folder(run, segment)
    folder.note(asked=list(checks), nodes=list(able), inventory=str(run.folder.meta().get("inventory") or ""))
    settings = Settings(forks=forks, vault_password_files=tuple(run.vault_password_files))
    try:
        with work("burnin", len(able) * len(checks), on_event):
            for check in checks:
                pair_campaign.measure(check, folder, able, run.variables, settings, on_event)
                if late := _gone_on(run, segment, able):
                    folder.note(late={"check": check, "nodes": late})
                    on_event(Note(f"{segment}: {fold(late)} continued before {check} was measured"))
                    break  # the load disturbs the remaining checks, too
    finally:  # nodes must not keep waiting for a controller that failed
        answers = run.ask("release", list(able), shared={"segment": segment})
        for name, answer in answers.items():
            if answer.error:
                on_event(Note(f"{name}: could not be released: {answer.error}; it continues by itself"))


def _gone_on(run: Campaign, segment: str, able: Iterable[str]) -> list[str]:
    """Return the nodes that burn on without waiting in the segment."""
    answers = run.ask("status", list(able)).values()
    return [
        answer.node
        for answer in answers
        if answer.true("alive") and not answer.true("finished") and answer.said.get("holding") != segment
    ]


def _folder(run: Campaign, segment: str) -> RunFolder:
    return RunFolder.adopt(segment, "burnin", {}, run.folder.path / "fleet")  # exists when attached again


def judge(
    run: Campaign,
    nodes: Sequence[NodeHealth],
    seen: Mapping[str, NodeFacts],
    wanted: Segments,
    passed: Mapping[str, Collection[str]],
    alone: Mapping[str, Collection[str]],
) -> tuple[list[NodeHealth], list[Finding], list[str]]:
    """Return nodes with their results between nodes, fabric findings, and notes on missing results.

    `passed`: node → completed segments: an unmeasured one is an error, or skipped if optional. `alone`: node
    → segments in which it had no other node to be measured with."""
    judged = list(nodes)
    fabric: list[Finding] = []
    reported: list[str] = []
    for segment, between in wanted.items():
        folder = RunFolder(run.folder.path / "fleet" / segment)
        try:
            meta = folder.meta()
            members = [str(name) for name in meta.get("nodes", ())]
            # Without their own checks, so that `paired` has the results of this segment only.
            bare = [replace(node, checks=()) for node in judged if node.node in members]
            paired, more, lines = fleet_pairs.judge(folder, bare, seen)
        except RunFolderError:  # such as for a segment that was never measured
            meta, paired, more, lines = {}, (), (), ()
        of = {node.node: node.checks for node in paired}
        if late := _late(meta, between):
            more, lines = (), (f"{late}: none of its results is judged", *lines)
            of = {node: tuple(_untold(check, late) for check in between.checks) for node in of}
        fabric += more
        # Skip an optional check if no node has its program; if only some nodes lack it, they are in error.
        if between.optional:
            for check in between.checks:
                if why := _lacked(check, of.values()):
                    lines = (*lines, f"{check} was not measured: {why}")
                    of = {node: _without(check, why, checks) for node, checks in of.items()}
        reported += [f"{segment}: {line}" for line in lines]
        missed: dict[str, list[str]] = {}
        for index, node in enumerate(judged):
            why = _ALONE if segment in alone.get(node.node, ()) else ""
            why = why or (_NOBODY if segment in passed.get(node.node, ()) else "")
            if node.node in of:
                judged[index] = _with(node, segment, of[node.node])
            elif why:  # else the node has not completed the segment
                missed.setdefault(why, []).append(node.node)
                skipped = between.optional or why == _ALONE
                judged[index] = _with(
                    node, segment, [_untold(check, why, skipped=skipped) for check in between.checks]
                )
        reported += [f"{segment} of {fold(names)}: {why}" for why, names in missed.items()]
    return judged, fabric, reported


def _late(meta: Mapping[str, Any], between: Between) -> str:
    """Return why a segment is not judged: nodes loaded their GPUs again while others were measured."""
    late = meta.get("late")
    if not isinstance(late, Mapping) or late.get("check") not in between.checks:
        return ""
    names = [str(name) for name in late.get("nodes") or ()]
    return f"{fold(names)} continued before {late['check']} was measured: give the segment more minutes"


def _lacked(check: str, found: Iterable[Sequence[CheckResult]]) -> str:
    """Return how to install a check's program that no node has; empty if any node has it."""
    findings = [f for checks in found for one in checks if one.check == check for f in one.findings]
    errors = [finding for finding in findings if finding.verdict is not Verdict.SKIP]
    # Messages look like `ib_write_bw is not installed: the role … installs it` (validate/pairs).
    installs = [f"the role {one.METRIC.installs} installs it" for one in PAIRS.of_any(check)]
    hints = [
        next((line for line in installs if line in one.message), "")
        for one in errors
        if one.verdict is Verdict.ERROR
    ]
    uninstalled = bool(errors) and len(hints) == len(errors) and all(hints)
    return f"no node has its program: {' and '.join(dict.fromkeys(hints))}" if uninstalled else ""


def _without(check: str, why: str, found: Sequence[CheckResult]) -> tuple[CheckResult, ...]:
    return tuple(
        _untold(check, f"not measured, {why}", skipped=True) if one.check == check else one for one in found
    )


def _untold(check: str, why: str, *, skipped: bool = False) -> CheckResult:
    finding = replace(unmeasured(check, why), metric=UNATTENDED)
    if skipped:
        finding = Finding(check, Verdict.SKIP, "node", why, UNATTENDED)
    return CheckResult(check, finding.verdict, (finding,), (), 0.0)


def _with(node: NodeHealth, segment: str, more: Iterable[CheckResult]) -> NodeHealth:
    """Return the node with the findings of a segment, merged by check with earlier segments."""
    checks = {check.check: check for check in node.checks}
    for check in more:
        findings = tuple(replace(f, message=f"{segment}: {f.message}") for f in check.findings)
        before = checks.get(check.check)
        if before is not None:
            findings = (*before.findings, *findings)
        verdict = worst(finding.verdict for finding in findings)
        checks[check.check] = replace(check, findings=findings, verdict=verdict)
    verdict = worst([node.verdict, *(check.verdict for check in checks.values())])
    return replace(node, checks=tuple(checks.values()), verdict=verdict)
