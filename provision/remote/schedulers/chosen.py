"""Which scheduler each node has, by the inventory's `gpuprov_scheduler`."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

from provision.errors import InventoryError
from provision.fleet import Fleet, Kind, Node
from provision.node_names import fold
from provision.remote.schedulers import Scheduled, Scheduler
from provision.remote.schedulers.slurm import Slurm
from provision.text import spelled

SLURM, KUBERNETES, HOOKS, NONE = "slurm", "kubernetes", "hooks", "none"
JOB_WAIT = 600  # seconds that jobs get to end after a drain, unless gpuprov_job_wait says otherwise
_HOOKS = ("gpuprov_drain_hook", "gpuprov_undrain_hook")

Made = Callable[[Fleet, Mapping[str, str]], Scheduler]  # from the fleet, and node → the scheduler's name


@dataclass(frozen=True)
class Schedulers:
    """The schedulers of a fleet that gpuprov speaks to itself. `of`: node → its own; nodes with hooks, or
    without a scheduler, are not in it. `waits`: node → seconds that its jobs get to end."""

    of: Mapping[str, Scheduler]
    waits: Mapping[str, int]

    def grouped(self, nodes: Sequence[str]) -> list[tuple[Scheduler, list[str]]]:
        """The nodes of each scheduler, asked together."""
        groups: dict[int, tuple[Scheduler, list[str]]] = {}
        for node in nodes:
            if node in self.of:
                scheduler = self.of[node]
                groups.setdefault(id(scheduler), (scheduler, []))[1].append(node)
        return list(groups.values())

    def look(self, nodes: Sequence[str]) -> dict[str, Scheduled]:
        """What its scheduler says of each node that has one."""
        return {
            node: said
            for scheduler, some in self.grouped(nodes)
            for node, said in scheduler.look(some).items()
        }

    def drain(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Node → why it could not be drained, for those where that is so."""
        problems: dict[str, str] = {}
        for scheduler, some in self.grouped(list(reasons)):
            problems |= scheduler.drain({node: reasons[node] for node in some})
        return problems

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        """Node → why it could not be given back, for those where that is so."""
        return {
            node: why
            for scheduler, some in self.grouped(nodes)
            for node, why in scheduler.resume(some).items()
        }


def _slurm(fleet: Fleet, names: Mapping[str, str]) -> Scheduler:
    return Slurm(fleet, names)


def _kubernetes(fleet: Fleet, names: Mapping[str, str]) -> Scheduler:
    # Only a site with Kubernetes needs what it imports.
    for found in metadata.entry_points(group="gpuprov.schedulers", name=KUBERNETES):
        made: Scheduler = found.load()(fleet, names)
        return made
    raise InventoryError(f"gpuprov_scheduler: {KUBERNETES} is not installed", "install gpuprov again")


MAKERS: dict[str, Made] = {SLURM: _slurm, KUBERNETES: _kubernetes}


def load(fleet: Fleet, overrides: Mapping[str, Any], makers: Mapping[str, Made] | None = None) -> Schedulers:
    """The schedulers of the fleet's nodes. Raises InventoryError for a node with two masters, or none where
    one is named, and for two nodes of one name."""
    names: dict[str, dict[str, str]] = {}
    waits: dict[str, int] = {}
    if overrides:
        nodes = {
            name: replace(node, variables={**node.variables, **overrides})
            for name, node in fleet.nodes.items()
        }
        fleet = replace(fleet, nodes=nodes)
    for node in fleet.nodes.values():
        if not node.kind & Kind.GPU:
            continue  # variables for all reach it, too; no job does
        given = node.variables
        kind = _kind(node.name, given)
        if kind in (SLURM, KUBERNETES):
            names.setdefault(kind, {})[node.name] = _name(node, given, kind)
            wait = given.get("gpuprov_job_wait")
            waits[node.name] = wait if type(wait) is int else JOB_WAIT  # variables.check refuses the rest
    of: dict[str, Scheduler] = {}
    for kind, named in names.items():
        _refuse_twice(kind, named)
        scheduler = (makers or MAKERS)[kind](fleet, named)
        of |= dict.fromkeys(named, scheduler)
    return Schedulers(of, waits)


def only(fleet: Fleet, overrides: Mapping[str, Any]) -> tuple[Scheduler, frozenset[str]]:
    """The one scheduler of these nodes that gpuprov speaks to itself, and the nodes without one. Raises
    InventoryError if there is none, or there are two."""
    found = load(fleet, overrides)
    without = frozenset(name for name in fleet.nodes if name not in found.of)
    if without and not found.of:
        raise InventoryError(
            f"{fold(without)}: no scheduler that gpuprov can ask",
            f"set gpuprov_scheduler: {SLURM} or {KUBERNETES}",
        )
    schedulers = found.grouped(list(fleet.nodes))
    if len(schedulers) > 1:
        kinds = " and ".join(f"{scheduler.kind} ({fold(nodes)})" for scheduler, nodes in schedulers)
        raise InventoryError(f"two schedulers: {kinds}", "choose the nodes of one with --nodes")
    if not schedulers:
        raise InventoryError("there is no node", "widen --nodes, or add nodes to the inventory")
    return schedulers[0][0], without


def _kind(name: str, given: Mapping[str, Any]) -> str:
    hooks = [variable for variable in _HOOKS if given.get(variable)]
    kind = given.get("gpuprov_scheduler")
    if kind is None:
        return HOOKS if hooks else NONE
    if kind == HOOKS and not hooks:
        raise InventoryError(
            f"{name}: gpuprov_scheduler is hooks, and it has no hook", "name gpuprov_drain_hook as well"
        )
    if kind != HOOKS and hooks:
        raise InventoryError(
            f"{name}: gpuprov_scheduler is {kind}, and it has {hooks[0]}: two would drain it",
            f"remove the hooks, or say gpuprov_scheduler: {HOOKS}",
        )
    return str(kind)


def _name(node: Node, given: Mapping[str, Any], kind: str) -> str:
    """What the scheduler calls the node. Slurm's own rule is the host name up to its first dot."""
    chosen = given.get("gpuprov_scheduler_name")
    if chosen:
        return str(chosen)
    return node.name if kind == KUBERNETES or _is_address(node.name) else node.name.partition(".")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _refuse_twice(kind: str, named: Mapping[str, str]) -> None:
    nodes: dict[str, list[str]] = {}
    for node, name in named.items():
        nodes.setdefault(name, []).append(node)
    for name, some in nodes.items():
        if len(some) > 1:
            raise InventoryError(
                f"{fold(some)} would all be {name} in {kind}",
                "give each its gpuprov_scheduler_name",
            )


def jobs_on(said: Scheduled) -> str:
    """`job 123 of alice (4 min 2 s) runs on it`; empty when none does."""
    if not said.jobs:
        return ""
    first, more = said.jobs[0], len(said.jobs) - 1
    if first.id == "?":
        return f"jobs run on it that {said.name} does not show to us ({said.state})"
    whose = f" of {first.user}" if first.user else ""
    since = f" ({spelled(first.seconds)})" if first.seconds is not None else ""
    others = f" and {more} more run on it" if more else " runs on it"
    return f"job {first.id}{whose}{since}{others}"


def loaded(schedulers: Schedulers, nodes: Sequence[str]) -> dict[str, str]:
    """Node → why it must not be loaded now: somebody's job is on it, or its scheduler does not say."""
    found = {}
    for node, said in schedulers.look(nodes).items():
        if said.error:
            found[node] = f"its scheduler does not say whether a job runs on it: {said.error}"
        elif said.jobs:
            found[node] = jobs_on(said)
    return found
