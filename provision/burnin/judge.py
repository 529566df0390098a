"""Judge of one node's burn-in (pure): each step by validate's rules, and faults seen only over hours.

A fault is reported once, with its first time and its count. Anything not measured is `error`: a node without
results is never healthy.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from provision.burnin import own_findings
from provision.burnin.own_findings import ID, Reported
from provision.burnin.timeline import Clock, Step, Timeline, planned_steps
from provision.burnin.watch import SIGNS, Watch
from provision.checks.check import KERNEL_LOG_DELTA, Measurement, Raw
from provision.checks.health import CheckResult, NodeHealth
from provision.checks.judge import Finding, Verdict, unmeasured, worst
from provision.checks.judging import node_judge
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.judging.registry import CHECKS
from provision.checks.kernel import kernel_incidents
from provision.checks.kernel.vendors import driver_log
from provision.text import many

_LATE = 2  # samples: without notifications, the kernel log is only read once per sample
_XIDS = {"lost": "79"}  # metric of a finding → Xid in the kernel log


@dataclass(frozen=True)
class Burned:
    """Result of one node."""

    health: NodeHealth
    reported: tuple[Reported, ...]  # every finding with its first time
    missing: tuple[str, ...]  # steps that were not measured, a line each
    load: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # seconds, by segment and check
    done: int = 0  # of `planned` steps
    planned: int = 0
    over: bool = False


@dataclass
class _Judged:
    step: Step
    result: CheckResult


def judge(
    node: NodeFacts,
    order: Mapping[str, Any],
    timeline: Timeline,
    watch: Watch | None,
    clock: Clock,
    raw_of: Callable[[str], Mapping[str, Any] | None],
    *,
    over: bool,
    silence: str = "",
    damaged: Sequence[str] = (),
    override: Path | None = None,
) -> Burned:
    """Judge everything known of one node.

    `raw_of`: returns the answer of a step by its file; `over`: nothing more will come; `silence`: why the
    node no longer answers."""
    limits = node.limits(override)
    judged = [_judged(node, step, raw_of, limits) for step in timeline.steps if step.end or step.why]
    planned = planned_steps(order)
    checks = list(dict.fromkeys(check for found in planned.values() for check in found))
    reported: list[Reported] = []
    results: dict[str, CheckResult] = {}
    for check in checks:
        mine = [one for one in judged if one.step.check == check]
        findings = _merged(mine, timeline, watch)
        reported += findings
        results[check] = _result(check, mine, findings)
    # Without facts of the node it is unknown which checks do not apply to it.
    left_out = _without_steps(order, checks) if node.gpuprov_node else []
    results |= {check: node_judge.judge_check(node, Raw(node.node, check), limits) for check in left_out}
    missing = _missing(planned, judged, timeline)
    own = own_findings.of(
        node, timeline, watch, clock, reported, missing, over=over, silence=silence, damaged=damaged
    )
    reported += own
    results[ID] = _own_result(own, timeline)
    requested = [*checks, *left_out, ID]
    health = node_judge.judge_node(node, results, requested)
    return Burned(
        health=_with_times(health, reported),
        reported=tuple(reported),
        missing=tuple(missing),
        load=_load(judged),
        done=sum(1 for one in judged if one.step.end is not None and one.step.raw),
        planned=sum(sum(found.values()) for found in planned.values()),
        over=over,
    )


def _without_steps(order: Mapping[str, Any], planned: Collection[str]) -> list[str]:
    """Return the profile's checks without steps on this node (unsupported or partitioned GPUs)."""
    # The order may have been read back from the node, so its types are not relied on.
    about = order.get("about")
    profile = about.get("profile") if isinstance(about, Mapping) else None
    segments = profile.get("segments") if isinstance(profile, Mapping) else None
    named: list[Any] = []
    for segment in segments if isinstance(segments, list | tuple) else ():
        checks = segment.get("checks") if isinstance(segment, Mapping) else None
        named += checks if isinstance(checks, list | tuple) else ()
    unique = dict.fromkeys(one for one in named if isinstance(one, str))
    return [check for check in unique if check in CHECKS and check not in planned]


def _judged(
    node: NodeFacts,
    step: Step,
    raw_of: Callable[[str], Mapping[str, Any] | None],
    limits: Mapping[str, Any],
) -> _Judged:
    """Judge one step like a check of validate."""
    answer = raw_of(step.raw) if step.raw else None
    if step.check not in CHECKS:
        finding = unmeasured(step.check, "a check that this gpuprov does not have", action="investigate")
        return _Judged(step, CheckResult(step.check, Verdict.ERROR, (finding,), (), step.seconds))
    if answer is None:
        why = step.why or ("its output is missing" if step.raw else "it has no output")
        raw = Raw(node.node, step.check, error=why)
    else:
        before = str(answer.get("boot_id_before") or "")
        raw = node_judge.raw_from_answer(node.node, step.check, answer, before, [KERNEL_LOG_DELTA])
    return _Judged(step, replace(node_judge.judge_check(node, raw, limits), raw=step.raw))


def _merged(judged: Sequence[_Judged], timeline: Timeline, watch: Watch | None) -> list[Reported]:
    """Merge the findings of all runs of one check; each fault is reported once, with its first time."""
    groups: dict[tuple[str, str, str], list[tuple[_Judged, Finding]]] = {}
    for one in judged:
        for finding in one.result.findings:
            # Unmeasured results have no metric, so their message identifies the fault.
            what = finding.metric or finding.message if finding.verdict is not Verdict.PASS else ""
            groups.setdefault((finding.verdict.value, finding.device, what), []).append((one, finding))
    bad = any(verdict not in (Verdict.PASS.value, Verdict.SKIP.value) for verdict, _, _ in groups)
    reported = []
    for (verdict, _, _), group in groups.items():
        if verdict == Verdict.PASS.value:
            if not bad:
                # One pass stands for all runs: the one that loaded the node longest.
                longest = max(group, key=lambda each: real_seconds(each[0]))
                reported.append(_passed(judged, longest[1]))
            continue
        first, finding = min(group, key=lambda each: each[0].step.begin)
        runs = {one.step.number for one, _ in group}
        since = _since(finding, first, judged, timeline, watch)
        times = f"; in {len(runs)} of {many(len(judged), 'run')}" if len(judged) > 1 else ""
        during = timeline.during(since) or first.step.segment
        reported.append(
            Reported(replace(finding, message=f"{finding.message}{times}"), since, during, len(runs))
        )
    return reported


def _passed(judged: Sequence[_Judged], finding: Finding) -> Reported:
    runs = f"; {many(len(judged), 'run')}" if len(judged) > 1 else ""
    return Reported(replace(finding, message=f"{finding.message}{runs}"), None, "", len(judged))


def _since(
    finding: Finding, first: _Judged, judged: Sequence[_Judged], timeline: Timeline, watch: Watch | None
) -> float:
    """Return when a fault began: at its first sign in kernel log or telemetry, or else with its run.

    A sign counts if it lies in the run that found the fault, or between that run and the one before. Signs
    are read a sample or two late, so one just after the run's end belongs to the run."""
    before = [one.step.begin for one in judged if one.step.begin < first.step.begin]
    low = max(before, default=timeline.began or first.step.begin)
    high = first.step.end or first.step.begin
    signs: list[float] = []
    code = _XIDS.get(finding.metric) or finding.metric.removeprefix("xid.")  # `xid.79` → 79
    if code.isdecimal():
        signs += [i.at for i in timeline.incidents if i.kind == "xid" and str(i.fields.get("code")) == code]
    kind, _, word = finding.metric.partition(".")  # `amdgpu.lost`
    if kind == driver_log.KIND:
        signs += [
            i.at
            for i in timeline.incidents
            if i.kind == "kernel" and kernel_incidents.is_of_driver(str(i.fields.get("line")), word)
        ]
    if watch is not None and (sign := SIGNS.get(finding.metric)) is not None:
        device = watch.gpus.get(finding.device)
        if device is not None and sign in device.onset:
            signs.append(device.onset[sign])
    late = _LATE * watch.interval if watch is not None else 0.0
    seen = (min(moment, high) for moment in signs if low <= moment <= high + late)
    return min(seen, default=first.step.begin)


def _result(check: str, judged: Sequence[_Judged], reported: Sequence[Reported]) -> CheckResult:
    """Merge all runs of a check: findings reported once, and the median of each measurement."""
    if not judged:
        finding = unmeasured(check, "it never ran to its end", action="investigate")
        return CheckResult(check, Verdict.ERROR, (finding,), (), 0.0)
    findings = tuple(one.finding for one in reported)
    values: dict[tuple[str, str], list[Measurement]] = {}
    for one in judged:
        for row in one.result.measurements:
            values.setdefault((row.metric, row.device), []).append(row)
    measurements = tuple(_median(rows) for rows in values.values())
    seconds = sum(real_seconds(one) for one in judged)
    # One output stands for all runs: the first that was not good, else the last.
    bad = next((one for one in judged if one.result.verdict not in (Verdict.PASS, Verdict.SKIP)), judged[-1])
    return CheckResult(
        check, worst(f.verdict for f in findings), findings, measurements, seconds, bad.result.raw
    )


def _median(rows: Sequence[Measurement]) -> Measurement:
    numbers = [
        row.value for row in rows if isinstance(row.value, float | int) and not isinstance(row.value, bool)
    ]
    if len(numbers) != len(rows):
        return rows[-1]  # texts have no median
    return replace(rows[-1], value=statistics.median(numbers))


def real_seconds(one: _Judged) -> float:
    """Return the seconds that a step loaded the node, by its load's count or else its run time."""
    values = [m.value for m in one.result.measurements if (m.metric, m.device) == ("seconds", "node")]
    number = next((value for value in values if isinstance(value, int | float)), None)
    return float(number) if number is not None and one.step.check == "gpu_burn" else one.step.seconds


def _load(judged: Iterable[_Judged]) -> dict[str, dict[str, float]]:
    by_segment: dict[str, dict[str, float]] = {}
    for one in judged:
        # Passive checks put no load on the node.
        if one.step.raw and one.step.check in CHECKS and CHECKS.entries[one.step.check].stage != "quick":
            checks = by_segment.setdefault(one.step.segment, {})
            checks[one.step.check] = round(checks.get(one.step.check, 0.0) + real_seconds(one), 1)
    return by_segment


def _missing(
    planned: Mapping[str, Mapping[str, int]], judged: Sequence[_Judged], timeline: Timeline
) -> list[str]:
    """Return the ordered steps that were not measured, a line each."""
    lines = []
    for segment, checks in planned.items():
        outcome = next((s.outcome for s in reversed(timeline.segments) if s.name == segment), "")
        why = f" ({outcome})" if outcome not in ("", "done") else ""
        for check, count in checks.items():
            mine = [one for one in judged if (one.step.segment, one.step.check) == (segment, check)]
            ran = sum(1 for one in mine if one.step.raw)
            if ran < count:
                lines.append(f"{segment}: {check} ran {ran} of {count} times{why}")
    return lines


def _own_result(reported: Sequence[Reported], timeline: Timeline) -> CheckResult:
    findings = tuple(one.finding for one in reported)
    seconds = max(0.0, (timeline.last or 0.0) - (timeline.began or 0.0))
    return CheckResult(ID, worst(f.verdict for f in findings), findings, (), seconds)


def _with_times(health: NodeHealth, reported: Sequence[Reported]) -> NodeHealth:
    """Return the health with the start of each fault in its message, for all reports."""
    known = {(one.finding.check, one.finding.device, one.finding.message): one for one in reported}

    def dated(finding: Finding) -> Finding:
        one = known.get((finding.check, finding.device, finding.message))
        return finding if one is None or one.since is None else replace(finding, message=one.words)

    checks = [replace(check, findings=tuple(map(dated, check.findings))) for check in health.checks]
    return replace(health, checks=tuple(checks))
