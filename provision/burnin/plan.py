"""Scheduler of a burn-in: starts nodes in batches below the power limits of racks and fleet (pure).

Nodes contact no controller while they burn: each has the seconds after which it may start and by which it
must have ended. A turn follows once the longest part of the turn before may have ended, plus MARGIN for nodes
that received their order late.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision import paths, yamlfile
from provision.checks.judging.node_facts import NodeFacts
from provision.desired import skus
from provision.errors import InventoryError
from provision.node_names import fold

MARGIN = 300.0  # seconds within which all nodes must receive their order; late nodes are stopped
_SLACK = 1e-9  # for sums of fractions of kilowatts


@dataclass(frozen=True)
class Part:
    """One node's place in the plan, in seconds after it received its order."""

    node: str
    turn: int
    start: float
    about: float
    longest: float
    end_by: float | None  # no load may run later; None if no turn follows


@dataclass(frozen=True)
class Plan:
    """All parts, in the order of their start, with the `loads` and `caps` they are based on."""

    parts: tuple[Part, ...]
    loads: Mapping[str, Load]
    caps: Caps
    turns: int = 1
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def about(self) -> float:
        """Expected seconds until the last node is done."""
        return max((part.start + part.about for part in self.parts), default=0.0)


def plan(
    loads: Sequence[Load],
    caps: Caps,
    seconds: Mapping[str, tuple[float, float]],
    *,
    ramp_steps: int = 1,
    ramp_seconds: float = 0.0,
) -> Plan:
    """Plan every node's part. `seconds`: node → expected and largest duration of its burn-in.

    Raises InventoryError if a limit does not allow even one node, or cannot be kept since a node's power draw
    is unknown.
    """
    if caps.in_kw and (unknown := [load.node for load in loads if load.kw is None]):
        raise InventoryError(
            f"the power of {fold(unknown)} is not known, so a power limit cannot be kept",
            "set gpuprov_node_kw on them, or remove gpuprov_rack_kw and gpuprov_fleet_kw",
        )
    turns = _turns(loads, caps)
    parts: list[Part] = []
    begin = 0.0
    for number, turn in enumerate(turns, 1):
        last = number == len(turns)
        mine = []
        for position, load in enumerate(_spread(turn)):
            step = position * min(ramp_steps, len(turn)) // len(turn)
            about, longest = seconds[load.node]
            start = begin + step * ramp_seconds
            mine.append(Part(load.node, number, start, about, longest, None if last else start + longest))
        parts += mine
        begin = max(part.start + part.longest for part in mine) + MARGIN
    return Plan(tuple(parts), {load.node: load for load in loads}, caps, len(turns))


def _spread(turn: Sequence[Load]) -> list[Load]:
    """Order nodes so that the ones that start together are spread over the racks."""
    racks: dict[str, list[Load]] = {}
    for load in turn:
        racks.setdefault(load.rack, []).append(load)
    return [
        members[number]
        for number in range(max(map(len, racks.values()), default=0))
        for members in racks.values()
        if number < len(members)
    ]


@dataclass
class _Turn:
    """Nodes that burn together, and the power they add to the draw of waiting nodes."""

    members: list[Load] = field(default_factory=list)
    fleet: float = 0.0
    racks: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)


def _turns(loads: Sequence[Load], caps: Caps) -> list[list[Load]]:
    """Assign nodes to turns, by decreasing power, each to the first turn with room."""
    waiting: dict[str, float] = {}
    for load in loads:
        waiting[load.rack] = waiting.get(load.rack, 0.0) + (load.idle_kw or 0.0)
    room_fleet = _room(caps.fleet, math.fsum(waiting.values()))
    rooms = {rack: _room(cap, waiting.get(rack, 0.0)) for rack, cap in caps.racks.items()}
    turns: list[_Turn] = []
    for load in sorted(loads, key=lambda load: -(load.kw or 0.0)):
        more = (load.kw or 0.0) - (load.idle_kw or 0.0)
        chosen = next((turn for turn in turns if _fits(turn, load, more, room_fleet, rooms)), None)
        if chosen is None:
            chosen = _Turn()
            if not _fits(chosen, load, more, room_fleet, rooms):
                raise _too_small(load, caps, waiting, room_fleet)
            turns.append(chosen)
        chosen.members.append(load)
        chosen.fleet += more
        chosen.racks[load.rack] = chosen.racks.get(load.rack, 0.0) + more
        chosen.counts[load.rack] = chosen.counts.get(load.rack, 0) + 1
    order = {load.node: number for number, load in enumerate(loads)}
    return [sorted(turn.members, key=lambda load: order[load.node]) for turn in turns]


def _room(cap: Cap, waiting: float) -> Cap:
    """Return the power left for load while all nodes wait."""
    return (None if cap[0] is None else cap[0] - waiting, cap[1])


def _fits(turn: _Turn, load: Load, more: float, fleet: Cap, racks: Mapping[str, Cap]) -> bool:
    rack = racks.get(load.rack, (None, None))
    return (
        (fleet[0] is None or turn.fleet + more <= fleet[0] + _SLACK)
        and (fleet[1] is None or len(turn.members) < fleet[1])
        and (rack[0] is None or turn.racks.get(load.rack, 0.0) + more <= rack[0] + _SLACK)
        and (rack[1] is None or turn.counts.get(load.rack, 0) < rack[1])
    )


def _too_small(load: Load, caps: Caps, waiting: Mapping[str, float], fleet: Cap) -> InventoryError:
    more = (load.kw or 0.0) - (load.idle_kw or 0.0)
    whole = fleet[0] is not None and more > fleet[0] + _SLACK
    name, cap = ("the fleet", caps.fleet) if whole else (f"rack {load.rack}", caps.racks[load.rack])
    idle = math.fsum(waiting.values()) if whole else waiting[load.rack]
    return InventoryError(
        f"{name} may draw {cap[0]:g} kW: too little even for {load.node}, which draws {load.kw:g} kW while "
        f"the others wait with {idle - (load.idle_kw or 0.0):.3g} kW",
        "burn fewer nodes at a time (--nodes), or state their real power (gpuprov_node_kw)",
    )


def drawn(
    plan: Plan, rack: str | None = None, late: Mapping[str, float] | None = None
) -> list[tuple[float, float]]:
    """Return (second, kilowatts from then on) for all nodes or a rack, with every part at its longest.

    `late`: node → delay in seconds after the first node's order. Nodes of unknown power count as 0."""
    late = late or {}
    mine = [part for part in plan.parts if rack is None or plan.loads[part.node].rack == rack]
    base = math.fsum(plan.loads[part.node].idle_kw or 0.0 for part in mine)
    changes: list[tuple[float, float]] = []
    for part in mine:
        load, after = plan.loads[part.node], late.get(part.node, 0.0)
        more = (load.kw or 0.0) - (load.idle_kw or 0.0)
        changes += [(part.start + after, more), (part.start + part.longest + after, -more)]
    steps, now = [(0.0, base)], base
    for moment, change in sorted(changes):
        now += change
        if steps[-1][0] == moment:
            steps[-1] = (moment, now)
        else:
            steps.append((moment, now))
    return steps


def peak(plan: Plan, rack: str | None = None) -> float:
    """Return the highest power in kilowatts that is drawn at once."""
    return max(kw for _, kw in drawn(plan, rack))


# --- the power model: what nodes draw, and the limits of racks and the fleet


FILE = paths.DATA / "burnin_estimates.yml"
Cap = tuple[float | None, int | None]  # kilowatts, and number of nodes under load; None: no limit


@dataclass(frozen=True)
class Load:
    """One node for the plan: `kw` under load and `idle_kw` otherwise, None if unknown."""

    node: str
    rack: str = ""
    kw: float | None = None
    idle_kw: float | None = None


@dataclass(frozen=True)
class Caps:
    """Limits of the common power draw: of all nodes, and of each rack that has a limit."""

    fleet: Cap = (None, None)
    racks: Mapping[str, Cap] = field(default_factory=dict)

    @property
    def in_kw(self) -> bool:
        """Whether any limit is in kilowatts."""
        return any(kw is not None for kw, _ in (self.fleet, *self.racks.values()))


@functools.cache
def estimates() -> Mapping[str, Any]:
    """Load provision/data/burnin_estimates.yml."""
    return yamlfile.load_mapping(FILE)


def cost(check: str) -> float:
    """Return about how many seconds a check takes on a node."""
    table = estimates()["seconds"]
    return float(table["checks"].get(check, table["other"]))


def load_of(node: NodeFacts, variables: Mapping[str, Any]) -> Load:
    """Return a node's power draw: the inventory's figure, or else its GPUs' limits times a factor."""
    rack = variables.get("gpuprov_rack")
    name = "" if rack is None else str(rack)
    kw = variables.get("gpuprov_node_kw")
    gpu = node.gpuprov_node.get("gpu", {})
    sku = skus.all_skus().get(str(gpu.get("sku")))
    if kw is None and sku is not None:
        kw = int(gpu["count"]) * sku.power_w / 1000 * float(estimates()["power"]["node_over_gpus"])
    if kw is None:
        return Load(node.node, name)
    idle = float(kw) * float(estimates()["idle"]["share"])
    return Load(node.node, name, round(float(kw), 3), round(idle, 3))


def caps(variables: Mapping[str, Mapping[str, Any]]) -> Caps:
    """Return the limits in the inventory. Raises InventoryError if they contradict each other."""
    fleet = [_one(variables, f"gpuprov_fleet_{of}", "all nodes") for of in ("kw", "loads")]
    members: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, found in variables.items():
        rack = found.get("gpuprov_rack")
        if rack is not None:
            members.setdefault(str(rack), {})[name] = found
        elif found.get("gpuprov_rack_kw") is not None or found.get("gpuprov_rack_loads") is not None:
            raise InventoryError(
                f"{name}: it has a limit for its rack, and no rack", "give it gpuprov_rack, the rack's name"
            )
    racks = {
        rack: [_one(found, f"gpuprov_rack_{of}", f"rack {rack}") for of in ("kw", "loads")]
        for rack, found in members.items()
    }
    return Caps(
        (fleet[0], None if fleet[1] is None else int(fleet[1])),
        {
            rack: (kw, None if loads is None else int(loads))
            for rack, (kw, loads) in racks.items()
            if kw is not None or loads is not None
        },
    )


def _one(variables: Mapping[str, Mapping[str, Any]], key: str, whose: str) -> float | None:
    stated = {name: found[key] for name, found in variables.items() if found.get(key) is not None}
    if len({float(value) for value in stated.values()}) > 1:
        low, high = min(stated, key=lambda n: float(stated[n])), max(stated, key=lambda n: float(stated[n]))
        raise InventoryError(
            f"{key} of {whose} is {stated[low]} on {low} and {stated[high]} on {high}", "state one of them"
        )
    return float(next(iter(stated.values()))) if stated else None
