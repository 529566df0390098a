"""Record of acceptance as a document: what ran, for how long, on which parts, the results (pure).

One document for the fleet and one for each node, as JSON with a checksum. It applies to the hardware and
software it names: `gpuprov drift` reports when they have changed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from provision import __version__
from provision.burnin.fleet import UNATTENDED
from provision.burnin.own_findings import Reported, stamp
from provision.burnin.results import NodeResult, Results
from provision.burnin.timeline import Timeline
from provision.burnin.watch import Watch, drift, extremes
from provision.checks.health import NodeHealth
from provision.checks.judge import Verdict, worst
from provision.node_names import natural
from provision.text import spelled

FORMAT = 1
_HOURS = ((1.0, "first hour"), (6.0, "1 to 6 h"), (24.0, "6 to 24 h"), (math.inf, "after a day"))
_LINES = 400  # of a node's history


def document(found: Results, meta: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fleet's record. Times are `2026-05-04 10:00:00 UTC` by the controller's clock."""
    nodes = [_node(node, found) for node in sorted(found.nodes, key=natural)]
    began = [one.timeline.began for one in found.nodes.values() if one.timeline.began]
    ends = [one.timeline.finished for one in found.nodes.values() if one.timeline.finished]
    # A burn-in that another machine started may have no profile in run.json here, but its nodes have it.
    profile = _profile(meta.get("profile")) or next((n["profile"] for n in nodes if n["profile"]), None)
    return {
        "format": FORMAT,
        "kind": "gpuprov burn-in record",
        "burnin": name,
        "gpuprov": __version__,
        "inventory": str(meta.get("inventory") or ""),
        "profile": profile,
        "began": stamp(min(began)) if began else None,
        "ended": stamp(max(ends)) if ends else None,
        "over": found.over,
        "verdict": overall(found).value,
        "counts": {verdict.value: count for verdict, count in found.health.counts.items()},
        "not_burned_in": dict(meta.get("not_burned_in") or {}),
        "load_hours": round(sum(node["load_seconds"] for node in nodes) / 3600, 3),
        "onset": _onset(found),
        "thermal": _thermal(found),
        "fabric": [_plain(asdict(finding)) for finding in found.health.fabric],
        "not_compared": list(found.health.not_compared),
        "nodes": nodes,
    }


def _profile(given: Any) -> dict[str, Any] | None:
    """Return the requested profile, which may come from a node; None if it is not a profile."""
    if not isinstance(given, Mapping) or not isinstance(given.get("minutes"), int | float):
        return None
    return {**_plain(given), "name": str(given.get("name") or "")[:60]}


def overall(found: Results) -> Verdict:
    """Return the fleet's verdict: the worst of its nodes and fabric; `error` if there are none."""
    return worst(
        [node.verdict for node in found.health.nodes] + [finding.verdict for finding in found.health.fabric]
    )


def of_node(fleet: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Extract one node's record from the fleet's."""
    node = next(one for one in fleet["nodes"] if one["node"] == name)
    mine = {key: fleet[key] for key in ("format", "kind", "burnin", "gpuprov", "inventory", "profile")}
    onset = [row for row in fleet["onset"] if row["node"] == name]
    return {
        **mine,
        "began": node["began"],
        "ended": node["ended"],
        "over": node["over"],
        "verdict": node["verdict"],
        "counts": {verdict.value: int(verdict.value == node["verdict"]) for verdict in Verdict},
        "not_burned_in": {},
        "load_hours": round(node["load_seconds"] / 3600, 3),
        "onset": onset,
        "thermal": [],  # this and the next two are about several nodes
        "fabric": [],
        "not_compared": [],
        "nodes": [node],
    }


def text(record: Mapping[str, Any]) -> str:
    """Serialise a record in its stored and checksummed form."""
    # Sorted keys give equal records equal checksums.
    return json.dumps(record, indent=1, ensure_ascii=False, sort_keys=True, default=str) + "\n"


def checksum(data: str | bytes) -> str:
    """Return the SHA-256 in hexadecimal."""
    return hashlib.sha256(data.encode("utf-8", "replace") if isinstance(data, str) else data).hexdigest()


def _node(name: str, found: Results) -> dict[str, Any]:
    one = found.nodes[name]
    health = next(node for node in found.health.nodes if node.node == name)
    about = one.order.get("about") or {}
    load = sum(sum(checks.values()) for checks in one.burned.load.values())
    # A node that has not finished counts up to its last event.
    wall = (one.timeline.finished or one.timeline.last or 0.0) - (one.timeline.began or 0.0)
    # Findings that the fleet adds (by comparison of nodes) are included.
    # `health` has the messages with their first time appended (judge.py), which is what `words` returns.
    own = {
        (reported.finding.check, reported.finding.device, reported.words): reported
        for reported in one.burned.reported
    }
    findings = []
    for check in health.checks:
        for finding in check.findings:
            reported = own.get((finding.check, finding.device, finding.message))
            findings.append(_finding(Reported(finding), reported))
    return {
        "node": name,
        "verdict": health.verdict.value,
        "error": health.error,
        "over": one.burned.over,
        "facts": _plain(dict(health.facts)),
        "gpus": [_plain(asdict(gpu)) for gpu in health.gpus],
        "fingerprint": {**one.known.record(), "digest": one.known.digest} if one.known else None,
        "profile": _profile(about.get("profile") if isinstance(about, Mapping) else None),
        "began": stamp(one.timeline.began) if one.timeline.began else None,
        "ended": stamp(one.timeline.finished) if one.timeline.finished else None,
        "how_it_ended": one.timeline.ended or None,
        "wall_seconds": round(max(0.0, wall), 1),
        "load_seconds": round(load, 1),
        "load_by_segment": _plain(one.burned.load),
        "steps": {"done": one.burned.done, "planned": one.burned.planned},
        "checks": {check.check: check.verdict.value for check in health.checks},
        "findings": sorted(findings, key=lambda row: -Verdict(row["verdict"]).badness),
        "not_measured": [*one.burned.missing, *_between(health)],
        "course": _course(one.timeline, one),
        "reboots": len(one.timeline.reboots),
        "telemetry": _telemetry(one.watch, one.timeline),
        "clock_skew_seconds": round(one.skew, 1),
    }


def _between(health: NodeHealth) -> list[str]:
    """Return the measurements between nodes that were not made, a line for each check."""
    findings = [finding for check in health.checks for finding in check.findings]
    return [f"{one.check}: {one.message}" for one in findings if one.metric == UNATTENDED]


def _finding(reported: Reported, known: Reported | None) -> dict[str, Any]:
    row = _plain(asdict(reported.finding))
    since = known.since if known else None
    if known is not None:
        row["message"] = known.finding.message  # without the first time, which is in `since`
    row |= {
        "verdict": reported.finding.verdict.value,
        "since": stamp(since) if since else None,
        "since_seconds": since,
        "during": known.during if known else "",
        "runs": known.runs if known else 1,
    }
    return dict(row)


def _course(timeline: Timeline, one: NodeResult) -> list[dict[str, Any]]:
    """Return the node's history in order: segments, reboots, incidents, faults."""
    rows: list[tuple[float, str, str]] = []
    for stretch in timeline.segments:
        took = f" for {spelled(round(stretch.end - stretch.begin))}" if stretch.end else ""
        outcome = f", {stretch.outcome}" if stretch.outcome not in ("", "done") else ""
        rows.append((stretch.begin, "segment", f"{stretch.name}{took}{outcome}"))
    for reboot in timeline.reboots:
        # At the node's last event before it, because the cause is near that moment.
        rows.append((reboot.last, "reboot", f"rebooted by itself, back after {spelled(round(reboot.away))}"))
    rows += [(incident.at, incident.kind, incident.said) for incident in timeline.incidents]
    for reported in one.burned.reported:
        if reported.since is not None and reported.finding.verdict in (Verdict.FAIL, Verdict.WARN):
            what = f"{reported.finding.device}: {reported.finding.message}"
            rows.append((reported.since, "fault", what))
    if timeline.finished is not None:
        rows.append((timeline.finished, "end", timeline.ended))
    rows.sort(key=lambda row: row[0])
    return [{"at": stamp(at), "kind": kind, "what": what[:400]} for at, kind, what in rows[:_LINES]]


def _telemetry(watch: Watch | None, timeline: Timeline) -> dict[str, Any]:
    if watch is None:
        return {"devices": {}, "gaps": [], "cpu_share": None, "drift": {}}
    wall = timeline.sampling.get("wall_seconds", 0.0)
    own = timeline.sampling.get("sampler_cpu_seconds")  # shares below are of one CPU
    tools = timeline.sampling.get("tools_cpu_seconds")
    gaps = [
        {"device": device, "source": source, "from": stamp(begin), "seconds": round(end - begin, 1)}
        for (source, device), one in watch.devices.items()
        for begin, end in one.gaps
    ]
    devices = sorted(watch.devices.items(), key=lambda item: (item[0][0], natural(item[0][1])))
    return {
        "devices": {f"{source}/{device}": _plain(extremes(one)) for (source, device), one in devices[:400]},
        "gaps": gaps[:200],  # bounded, like the devices, since nodes supply them
        "cpu_share": round(own / wall, 5) if own is not None and wall else None,
        "tools_cpu_share": round(tools / wall, 5) if tools is not None and wall else None,
        "drift": {name: round(moved, 4) for name, moved in drift(watch).items()},
    }


def _onset(found: Results) -> list[dict[str, Any]]:
    """Return the faults by the time since their node began, the earliest first."""
    rows = []
    for name, one in found.nodes.items():
        began = one.timeline.began
        for reported in one.burned.reported:
            bad = reported.finding.verdict in (Verdict.FAIL, Verdict.WARN)
            if reported.since is None or began is None or not bad:
                continue
            hours = max(0.0, reported.since - began) / 3600
            rows.append(
                {
                    "node": name,
                    "device": reported.finding.device,
                    "check": reported.finding.check,
                    "verdict": reported.finding.verdict.value,
                    "what": reported.finding.message,
                    "at": stamp(reported.since),
                    "hours": round(hours, 4),
                    "when": next(words for limit, words in _HOURS if hours < limit),
                    "during": reported.during,
                }
            )
    return sorted(rows, key=lambda row: float(str(row["hours"])))


def _thermal(found: Results) -> list[dict[str, Any]]:
    """Return mean temperatures under load by place over all nodes of a SKU, to show the airflow."""
    places: dict[tuple[str, str], dict[str, float]] = {}
    for name, one in found.nodes.items():
        sku = str(one.seen.gpuprov_node.get("gpu", {}).get("sku") or "unknown SKU")
        for device, watched in one.watch.gpus.items() if one.watch else ():
            if watched.heat[1]:  # heat: sum and count of °C under load
                places.setdefault((sku, device), {})[name] = round(watched.heat[0] / watched.heat[1], 1)
    return [
        {
            "sku": sku,
            "place": place,  # the GPU's name
            "celsius": dict(sorted(values.items(), key=lambda item: natural(item[0]))),
        }
        for (sku, place), values in sorted(places.items(), key=lambda item: (item[0][0], natural(item[0][1])))
    ]


def _plain(value: Any) -> Any:
    """Convert to JSON types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, Verdict):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no NaN or infinity
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
