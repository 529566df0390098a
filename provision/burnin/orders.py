"""Builder of node orders from profile and observed hardware, and the plan as text and JSON (pure).

The order has every program with its arguments and deadlines, so that the node depends on nothing else. The
data that another controller needs to judge the results (`about`) travels with it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from provision import yamlfile
from provision.burnin.plan import Part, Plan, cost, peak
from provision.burnin.profile import LOADS, Profile, Segment, about, steps_of_soak
from provision.checks.check import Command
from provision.checks.judging import node_judge, registry
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.kernel import kernel_incidents
from provision.checks.kernel.kernel_meaning import NEEDS_RESET
from provision.checks.vendors import offered
from provision.desired import vendors
from provision.node_names import fold
from provision.paths import DATA
from provision.runs.fingerprint import Fingerprint
from provision.text import many, spelled
from provision.validate.plays import node_commands

FORMAT = 1
# Seconds in which a node checks which processes hold its GPUs, before each round. Without them, its last step
# would not fit before the end of its turn, and would not start.
_LOOK = 40.0


@dataclass(frozen=True)
class Step:
    """One check of a segment."""

    check: str
    commands: tuple[Command, ...]
    about: float  # expected seconds
    longest: float  # upper limit in seconds


def steps(segment: Segment, node: NodeFacts, options: Mapping[str, Any]) -> list[Step]:
    """Return the steps of one round of a segment; a check with nothing to run on this node has none."""
    result = []
    if segment.kind == "soak":
        options = {**options, "burn_seconds": steps_of_soak(segment)[1]}
    for check in segment.checks if segment.kind in LOADS else ():
        commands = node_judge.commands_for(check, node.check_node, options)
        if commands:
            load = sum(command.load for command in commands if not command.beside)
            longest = node_commands.longest(commands)
            seconds = load + 30 if load else min(cost(check), longest)
            result.append(Step(check, tuple(commands), seconds, longest))
    return result


def seconds(profile: Profile, node: NodeFacts) -> tuple[float, float]:
    """Return the expected and the largest number of seconds that the profile takes on this node."""
    nearly = most = 0.0
    for segment in profile.segments:
        mine = steps(segment, node, {})
        rounds = rounds_of(segment)
        if rounds is None:
            minutes = (segment.minutes or 0.0) * 60
            nearly += minutes
            # A step that starts in the last second runs to its end.
            most += minutes + max((step.longest for step in mine), default=0.0) + _LOOK
        else:
            nearly += rounds * sum(step.about for step in mine)
            most += rounds * (sum(step.longest for step in mine) + _LOOK)
    return nearly, most


def rounds_of(segment: Segment) -> int | None:
    """Return how often a segment's checks run; None if its minutes set its length."""
    if segment.kind == "soak":
        return steps_of_soak(segment)[0]
    return segment.repeat


def order(
    campaign_id: str,
    profile: Profile,
    node: NodeFacts,
    part: Part,
    known: Fingerprint | None,
    about_run: Mapping[str, Any],
    *,
    alone: bool = False,
) -> dict[str, Any]:
    """Return the node's order, as in order.json. `alone`: no other node burns in its turn."""
    vendor = str(node.gpuprov_node["gpu"].get("vendor") or vendors.CHECKED[0])
    segments: list[dict[str, Any]] = []
    for segment in profile.segments:
        mine = steps(segment, node, {})
        if segment.kind in LOADS and not mine:
            continue  # nothing in it applies to this node
        if segment.kind == "fleet" and alone:
            continue
        rounds = rounds_of(segment)
        segments.append(
            {
                "name": segment.name,
                "kind": segment.kind,
                "repeat": rounds,
                "minutes": segment.minutes if rounds is None else None,
                "start_after_s": None if segments else part.start,
                "steps": [_plain(step) for step in mine],
            }
        )
    domain = kernel_incidents.spans_nodes(node.check_node)
    return {
        "format": FORMAT,
        "campaign": campaign_id,
        "node": node.node,
        "vendor": vendor,
        "gpus": list(kernel_incidents.devices(node.check_node)),
        "sample_seconds": profile.sample_seconds,
        "sampler": {},
        "abort": {
            "gpu_celsius": profile.abort.celsius(vendor),
            "xids": _xids(profile.abort.xids),
            "kernel": offered(vendor).fatal_lines(domain) if profile.abort.xids == "fatal" else (),
            "failed_steps": profile.abort.failed_steps,
        },
        "kernel_lines": offered(vendor).kept_lines(),
        "space_mib": profile.space_mib,
        "end_by_s": part.end_by,
        "segments": segments,
        "about": {
            **about_run,
            "profile": described(profile),
            "seen": _slim(node),
            "fingerprint": known.record() if known else None,
            "part": asdict(part),
        },
    }


def _plain(step: Step) -> dict[str, Any]:
    return {
        "check": step.check,
        "commands": [node_commands.plain(command) for command in step.commands],
        "load_seconds": sum(command.load for command in step.commands if not command.beside),
        "deadline": step.longest,
    }


def _xids(rule: Sequence[int] | str | None) -> list[int] | None:
    """Return the codes that end a node's burn-in; `fatal`: codes after which a GPU needs a reset."""
    if rule == "fatal":
        return list(fatal_xids())
    return None if rule is None else [int(code) for code in rule]


@functools.cache
def fatal_xids() -> tuple[int, ...]:
    """Return the Xids of provision/data/xid.yml after which a GPU needs a reset, a reboot, or worse.

    The code alone decides here; a vendor's fatal_lines cover the codes for which the line decides.
    """
    rows = yamlfile.load(DATA / "xid.yml")
    return tuple(
        sorted(code for code, row in rows.items() if row["level"] == "fail" and row["action"] in NEEDS_RESET)
    )


def described(profile: Profile) -> dict[str, Any]:
    """Return the profile as JSON."""
    return {**asdict(profile), "source": str(profile.source)}


def _slim(node: NodeFacts) -> dict[str, Any]:
    """Return the facts that the node's checks read, since orders must not grow with installed packages."""
    facts = {
        name: value
        for name, value in node.facts.items()
        if name in registry.facts_for(registry.table()) or not name.startswith("package.")
    }
    return asdict(NodeFacts(node.node, facts, node.gpuprov_node, node.variables, problems=node.problems))


def plan_seconds(segment: Segment) -> float:
    """Return about how many seconds a segment takes on any node."""
    return about(segment, cost) * 60


# --- text and JSON of the plan, before any node is loaded


def lines(
    profile: Profile, plan: Plan, unable: Mapping[str, str], able: Mapping[str, NodeFacts]
) -> Iterator[str]:
    """Yield the lines of the plan. `able`: the nodes that burn in."""
    yield f"profile {profile.name}: {profile.summary}" if profile.summary else f"profile {profile.name}"
    yield ""
    width = max(len(segment.name) for segment in profile.segments)
    for segment in profile.segments:
        how = ", ".join(segment.checks) or "nothing runs"
        rounds = rounds_of(segment)
        times = f", {rounds} times" if rounds and rounds > 1 else ""
        long = spelled(round(plan_seconds(segment)))
        if segment.attended:
            times = ", with an attached controller"
        yield f"  {segment.name:<{width}}  about {long:<12} {segment.kind:<9} {how}{times}"
    yield ""
    for number in range(1, plan.turns + 1):
        mine = [part for part in plan.parts if part.turn == number]
        begin = min(part.start for part in mine)
        who = fold([part.node for part in mine])
        batch = f"batch {number} of {plan.turns}: " if plan.turns > 1 else ""
        after = f", begins after {spelled(round(begin))}" if begin else ""
        yield f"{batch}{many(len(mine), 'node')} ({who}){after}{_ramp(mine)}"
    between = [segment.name for segment in profile.segments if segment.kind == "fleet"]
    turns = Counter(part.turn for part in plan.parts)
    alone = [part.node for part in plan.parts if turns[part.turn] == 1]
    if between and alone:
        yield f"not measured: {', '.join(between)} of {fold(alone)}, because no other node is in its batch"
    for (checks, why), nodes in _left_out(profile, able).items():
        yield f"{', '.join(checks)}: {why}: {fold(nodes)}"
    for name, why in unable.items():
        yield f"not burned in: {name}: {why}"
    yield f"takes about {spelled(round(plan.about))} in all"
    yield from _power(plan)


def _left_out(
    profile: Profile, able: Mapping[str, NodeFacts]
) -> dict[tuple[tuple[str, ...], str], list[str]]:
    """Return (checks that do not support some GPUs, why) → the nodes that burn in without them."""
    by_reason: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for name, node in able.items():
        checks = registry.not_built(profile.checks, node.gpuprov_node["gpu"].get("vendor"))
        if checks:
            by_reason.setdefault((checks, vendors.not_measured(node.gpuprov_node)), []).append(name)
    return by_reason


def _ramp(parts: Sequence[Part]) -> str:
    begins = sorted({part.start for part in parts})
    if len(begins) < 2:
        return ""
    return f", started in {len(begins)} steps within {spelled(round(begins[-1] - begins[0]))}"


def _power(plan: Plan) -> Iterator[str]:
    unknown = [name for name, load in plan.loads.items() if load.kw is None]
    alone = sum(load.kw or 0.0 for load in plan.loads.values())
    at_once = "" if plan.turns == 1 else f", {alone:.1f} kW if all ran at once"
    limit = _limit(plan.caps.fleet)
    yield f"peak of the fleet {peak(plan):.1f} kW{f', limit {limit}' if limit else ''}{at_once}"
    for rack in sorted(plan.caps.racks):
        yield f"peak of rack {rack} {peak(plan, rack):.1f} kW, limit {_limit(plan.caps.racks[rack])}"
    if unknown:
        yield f"without {fold(unknown)}, whose power is not known: set gpuprov_node_kw"


def _limit(cap: tuple[float | None, int | None]) -> str:
    kw, loads = cap
    return " and ".join(
        [*([f"{kw:g} kW"] if kw is not None else []), *([many(loads, "node")] if loads is not None else [])]
    )


def document(
    profile: Profile, plan: Plan, unable: Mapping[str, str], able: Mapping[str, NodeFacts]
) -> dict[str, Any]:
    """Return the plan as JSON, in seconds and kilowatts. `able`: the nodes that burn in."""
    return {
        "format": 1,
        "profile": described(profile),
        "segments": [
            {
                "name": segment.name,
                "kind": segment.kind,
                "checks": list(segment.checks),
                "rounds": rounds_of(segment),
                "about_seconds": round(plan_seconds(segment), 1),
            }
            for segment in profile.segments
        ],
        "parts": [asdict(part) for part in plan.parts],
        "turns": plan.turns,
        "about_seconds": round(plan.about, 1),
        "peak_kw": round(peak(plan), 3),
        "limits": {
            "fleet": {"kw": plan.caps.fleet[0], "loads": plan.caps.fleet[1], "peak_kw": round(peak(plan), 3)},
            "racks": {
                rack: {"kw": kw, "loads": loads, "peak_kw": round(peak(plan, rack), 3)}
                for rack, (kw, loads) in plan.caps.racks.items()
            },
        },
        "loads": {name: asdict(load) for name, load in plan.loads.items()},
        "left_out": [
            {"checks": list(checks), "why": why, "nodes": nodes}
            for (checks, why), nodes in _left_out(profile, able).items()
        ],
        "not_burned_in": dict(unable),
    }
