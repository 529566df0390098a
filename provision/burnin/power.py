"""The power model of a burn-in: what nodes draw, and what racks and the fleet allow (pure)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provision import paths, yamlfile
from provision.desired import skus
from provision.errors import InventoryError
from provision.runs.node_facts import NodeFacts

FILE = paths.DATA / "burnin_estimates.yml"
Cap = tuple[float | None, int | None]  # kilowatts, and nodes under load; None: no limit


@dataclass(frozen=True)
class Load:
    """One node for the plan: `kw` under load and `idle_kw` beside it, None when nobody knows."""

    node: str
    rack: str = ""
    kw: float | None = None
    idle_kw: float | None = None


@dataclass(frozen=True)
class Caps:
    """What may be drawn together: by all nodes, and by those of each rack that has a limit."""

    fleet: Cap = (None, None)
    racks: Mapping[str, Cap] = field(default_factory=dict)

    @property
    def in_kw(self) -> bool:
        """Whether any limit is in kilowatts."""
        return any(kw is not None for kw, _ in (self.fleet, *self.racks.values()))


@functools.cache
def estimates() -> Mapping[str, Any]:
    """provision/data/burnin_estimates.yml."""
    return yamlfile.load_mapping(FILE)


def cost(check: str) -> float:
    """About how many seconds a check takes on a node."""
    table = estimates()["seconds"]
    return float(table["checks"].get(check, table["other"]))


def load_of(node: NodeFacts, variables: Mapping[str, Any]) -> Load:
    """What a node draws: as the inventory says, else its GPUs' limits times what the rest of it adds."""
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
    """The limits the inventory states. Raises InventoryError where it contradicts itself."""
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
