"""Text and JSON of a burn-in's plan, before any node is loaded (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from provision.burnin import orders
from provision.burnin.plan import Part, Plan, peak
from provision.burnin.profile import Profile
from provision.node_names import fold
from provision.text import many, spelled


def lines(profile: Profile, plan: Plan, unable: Mapping[str, str]) -> Iterator[str]:
    """The plan, line by line."""
    yield f"profile {profile.name}: {profile.summary}" if profile.summary else f"profile {profile.name}"
    yield ""
    width = max(len(segment.name) for segment in profile.segments)
    for segment in profile.segments:
        how = ", ".join(segment.checks) or "nothing runs"
        rounds = orders.rounds_of(segment)
        times = f", {rounds} times" if rounds and rounds > 1 else ""
        long = spelled(round(orders.plan_seconds(segment)))
        if segment.attended:
            times = ", with an attached controller"
        yield f"  {segment.name:<{width}}  about {long:<12} {segment.kind:<9} {how}{times}"
    yield ""
    for number in range(1, plan.turns + 1):
        mine = [part for part in plan.parts if part.turn == number]
        begin = min(part.start for part in mine)
        who = fold([part.node for part in mine])
        said = f"batch {number} of {plan.turns}: " if plan.turns > 1 else ""
        after = f", begins after {spelled(round(begin))}" if begin else ""
        yield f"{said}{many(len(mine), 'node')} ({who}){after}{_ramp(mine)}"
    between = [segment.name for segment in profile.segments if segment.kind == "fleet"]
    turns = Counter(part.turn for part in plan.parts)
    alone = [part.node for part in plan.parts if turns[part.turn] == 1]
    if between and alone:
        yield f"not measured: {', '.join(between)} of {fold(alone)}, because no other node is in its batch"
    for name, why in unable.items():
        yield f"not burned in: {name}: {why}"
    yield f"takes about {spelled(round(plan.about))} in all"
    yield from _power(plan)


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


def document(profile: Profile, plan: Plan, unable: Mapping[str, str]) -> dict[str, Any]:
    """The plan as JSON: seconds, kilowatts."""
    return {
        "format": 1,
        "profile": orders.described(profile),
        "segments": [
            {
                "name": segment.name,
                "kind": segment.kind,
                "checks": list(segment.checks),
                "rounds": orders.rounds_of(segment),
                "about_seconds": round(orders.plan_seconds(segment), 1),
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
        "not_burned_in": dict(unable),
    }
