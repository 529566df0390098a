"""Findings that only hours of load show (pure).

Reboots, aborts, GPU errors between the tests, clock jumps, gaps in the samples, drift.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from provision.burnin.timeline import APART, Clock, Incident, Timeline
from provision.burnin.watch import SIGNS, Watch, drift, measured
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.kernel import host_lines, kernel_incidents, kernel_log
from provision.checks.vendors import offered
from provision.node_names import fold
from provision.text import spelled

ID = "burnin"  # check id of these findings
_DRIFT = 0.03  # of the clock under load, against the peers: warm-up and room temperature affect all alike
_AWAY = 60.0  # seconds without samples that count as a gap
_GONE = ("lost", "xid.79", "amdgpu.lost")  # metrics of findings about a GPU that no longer answers
_WATCHED = 0.9  # share of the time that must be covered by samples


@dataclass(frozen=True)
class Reported:
    """A finding with its first time, segment, and number of runs."""

    finding: Finding
    since: float | None = None  # seconds since the epoch by the controller's clock; None: no single moment
    during: str = ""
    runs: int = 1

    @property
    def words(self) -> str:
        if self.since is None:
            return self.finding.message
        where = f", during {self.during}" if self.during else ""
        return f"{self.finding.message}; since {stamp(self.since)}{where}"


def stamp(moment: float) -> str:
    """Format a moment as `2026-05-04 10:00:00 UTC`."""
    return f"{datetime.datetime.fromtimestamp(moment, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def of(
    node: NodeFacts,
    timeline: Timeline,
    watch: Watch | None,
    clock: Clock,
    known: Sequence[Reported],
    missing: Sequence[str],
    *,
    over: bool,
    silence: str,
    damaged: Sequence[str],
) -> list[Reported]:
    """Return the burn-in's own findings for a node, at least one; `known`: findings of its steps."""
    errors = _xids(node, timeline, known)
    result = [
        *_reboots(timeline),
        *errors,
        *_host_lines(node, timeline, known),
        *_incidents(timeline),
        *_end(timeline, missing, over=over, silence=silence),
        *_telemetry(timeline, watch),
        *(_drifted(timeline, watch) if watch else ()),
        *(_sampled(node, timeline, watch, [*known, *errors]) if watch else ()),
        *_clocks(clock),
        *(Reported(unmeasured(ID, line, action="investigate")) for line in damaged[:20]),
    ]
    if any(one.finding.verdict is not Verdict.PASS for one in result):
        return result
    seconds = (timeline.finished or 0.0) - (timeline.began or 0.0)
    message = f"burned in for {spelled(round(seconds))} without a reboot, a gap or an error of its own"
    return [Reported(Finding(ID, Verdict.PASS, "node", message))]


def _fail(
    message: str, metric: str, action: str, since: float, during: str, device: str = "node"
) -> Reported:
    return Reported(Finding(ID, Verdict.FAIL, device, message, metric, action=action), since, during)


def _reboots(timeline: Timeline) -> list[Reported]:
    result = []
    for reboot in timeline.reboots:
        away = spelled(round(reboot.away))
        message = f"the node rebooted by itself and was down for {away}; the burn-in continued"
        result.append(_fail(message, "reboot", "investigate", reboot.last, reboot.during))
    return result


def _xids(node: NodeFacts, timeline: Timeline, known: Sequence[Reported]) -> list[Reported]:
    """Report GPU errors that the kernel logged between the tests; tests report the errors within them."""
    gpus = kernel_incidents.devices(node.check_node)
    logged = [(one, str(one.fields.get("line", ""))[:300]) for one in timeline.incidents]
    lines = [
        f"[{one.at:.6f}] {line}"
        for one, line in logged
        if one.kind == "xid" or (one.kind == "kernel" and kernel_incidents.is_of_driver(line))
    ]
    events = kernel_incidents.of_its_gpus(node.check_node, kernel_log.events(lines))
    events = kernel_incidents.named(events, gpus)
    reported = {(one.finding.metric, one.finding.device) for one in known}
    result = []
    others = [one.finding for one in known]
    domain = kernel_incidents.spans_nodes(node.check_node)
    for finding in kernel_incidents.judge(ID, events, own_test=True, others=others, domain=domain):
        if (finding.metric, finding.device) in reported:
            continue
        first = next((e.first for e in events if finding.metric == f"{e.kind}.{e.code}"), None)
        result.append(Reported(finding, first, timeline.during(first) if first is not None else ""))
    return result


def _host_lines(node: NodeFacts, timeline: Timeline, known: Sequence[Reported]) -> list[Reported]:
    """Report kernel messages about the host, except the ones that a test has reported."""
    first: dict[tuple[str, str], float] = {}
    lines = []
    for one in timeline.incidents:
        line = str(one.fields.get("line", ""))
        if one.kind == "kernel" and (kind := host_lines.kind_of(line)):
            lines.append(line)
            first.setdefault((f"{host_lines.METRIC}{kind[0]}", kind[1]), one.at)
    events = host_lines.events(lines)
    reported = {(one.finding.metric, one.finding.device) for one in known}
    result = []
    for finding in host_lines.judge(ID, node.check_node, events, during=True):
        if (finding.metric, finding.device) not in reported:
            at = first[finding.metric, finding.device]
            result.append(Reported(finding, at, timeline.during(at)))
    return result


def _incidents(timeline: Timeline) -> list[Reported]:
    """Report events that are findings by themselves, once per kind and message."""
    groups: dict[tuple[str, str], list[Incident]] = {}
    for one in timeline.incidents:
        what = one.said if one.kind != "clock_jump" else ""
        groups.setdefault((one.kind, what), []).append(one)
    result = []
    for (kind, _), group in groups.items():
        first = group[0]
        times = f", {len(group)} times" if len(group) > 1 else ""
        message = f"{first.said}{times}"
        if kind == "abort":
            result.append(_fail(message, "abort", "investigate", first.at, first.during))
        elif kind == "left":
            result.append(_fail(message, "left", "reboot", first.at, first.during))
        elif kind in ("foreign", "killed", "error", "refused") or (
            kind == "space" and first.fields.get("stopped") is not False
        ):
            action = {"foreign": "restart job", "space": "fix configuration"}.get(kind, "investigate")
            result.append(Reported(unmeasured(ID, message, action=action), first.at, first.during))
        elif kind == "clock_jump":
            warning = Finding(ID, Verdict.WARN, "node", message, "clock_jump", action="fix configuration")
            result.append(Reported(warning, first.at, first.during))
    return result


def _end(timeline: Timeline, missing: Sequence[str], *, over: bool, silence: str) -> list[Reported]:
    """Report whether the burn-in reached its end, and which results are missing."""
    result: list[Reported] = []
    if timeline.began is None:
        why = silence or "the node has no record of it"
        return [Reported(unmeasured(ID, f"it never started: {why}", action="investigate"))]
    if timeline.finished is None:
        doing = timeline.segments[-1].name if timeline.segments else "its beginning"
        if silence:
            message = f"the node no longer answers: {silence}"
        else:
            message = (
                f"it stopped before its end, in {doing}"
                if over
                else f"it is not done: it is still running, in {doing}"
            )
        result.append(Reported(unmeasured(ID, message, action="investigate"), timeline.last, doing))
    elif timeline.ended == "stopped":
        result.append(Reported(unmeasured(ID, "it was stopped before its end"), timeline.finished))
    if missing and (over or timeline.finished is not None or silence):
        more = f"; and {len(missing) - 3} more" if len(missing) > 3 else ""
        message = f"not measured: {'; '.join(missing[:3])}{more}"
        result.append(Reported(unmeasured(ID, message), None))
    return result


def _telemetry(timeline: Timeline, watch: Watch | None) -> list[Reported]:
    if timeline.began is None:
        return []
    if watch is None or not watch.gpus:
        message = "no telemetry of its GPUs: their state under load is unknown"
        return [Reported(unmeasured(ID, message, action="investigate"))]
    result = []
    gaps: dict[tuple[int, int], list[str]] = {}
    for name, one in watch.gpus.items():
        for begin, end in one.gaps:
            if end - begin > _AWAY:
                gaps.setdefault((round(begin / 10), round(end / 10)), []).append(name)
    for (begin, end), names in gaps.items():
        message = f"no samples of {fold(names)} for {spelled((end - begin) * 10)}"
        gap = Finding(ID, Verdict.WARN, "node", message, "telemetry_gap", action="investigate")
        result.append(Reported(gap, begin * 10.0, timeline.during(begin * 10.0)))
    away = sum(reboot.away for reboot in timeline.reboots)
    whole = max(1.0, (timeline.finished or timeline.last or watch.ended) - timeline.began - away)
    for name, one in watch.gpus.items():
        seen = sum(last - first for first, last in watch.boots.values()) - sum(e - b for b, e in one.gaps)
        seen += 2 * watch.interval  # before the first sample and after the last
        lost = watch.ended - one.last if "gone" in one.onset else 0.0
        if (seen - lost) / whole < _WATCHED:
            message = f"sampled for {max(0.0, seen - lost) / whole:.0%} of the time only"
            result.append(Reported(unmeasured(ID, message, device=name, action="investigate")))
    return result


def _drifted(timeline: Timeline, watch: Watch) -> list[Reported]:
    result = []
    for name, moved in drift(watch).items():
        if moved < -_DRIFT:
            message = (
                f"its clock under load fell by {-moved:.1%} from the first quarter of the time to the last, "
                "more than that of its peers: check heat sink, fans and power"
            )
            limit = f"≥ -{_DRIFT:.0%} against the peers"
            warning = Finding(
                ID, Verdict.WARN, name, message, "clock_drift", round(moved, 4), "", limit,
                "median of the other GPUs of the node", "investigate",
            )  # fmt: skip
            since = watch.gpus[name].onset.get("clock")
            result.append(Reported(warning, since, timeline.during(since) if since else ""))
    return result


def _sampled(node: NodeFacts, timeline: Timeline, watch: Watch, known: Sequence[Reported]) -> list[Reported]:
    """Judge all samples together by the checks' own rules, without repeating earlier findings."""
    reported = {(one.finding.metric, one.finding.device) for one in known}
    reported |= {("silent", device) for metric, device in reported if metric in _GONE}
    result = []
    rules = offered(node.gpuprov_node.get("gpu", {}).get("vendor")).hours()
    for finding in rules(ID, measured(watch), {"counted": watch.ended - watch.began}, {}):
        if (finding.metric, finding.device) in reported:
            continue
        device = watch.gpus.get(finding.device)
        sign = SIGNS.get(finding.metric, "")
        since = device.onset.get(sign) if device else None
        result.append(Reported(finding, since, timeline.during(since) if since else ""))
    return result


def _clocks(clock: Clock) -> list[Reported]:
    if abs(clock.skew) <= APART:
        return []
    ahead = "ahead of" if clock.skew > 0 else "behind"
    apart = spelled(round(abs(clock.skew)))
    message = f"its clock is {apart} {ahead} the controller's; this report shows the controller's time"
    warning = Finding(
        ID, Verdict.WARN, "node", message, "clock_skew", round(clock.skew, 1), "s", f"≤ {APART:g} s",
        action="fix configuration",
    )  # fmt: skip
    return [Reported(warning)]
