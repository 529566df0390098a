"""Selection of each node's scheduler by the inventory's `gpuprov_scheduler`."""

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
JOB_WAIT = 600  # seconds that jobs may take to end after a drain, unless gpuprov_job_wait is set
_HOOKS = ("gpuprov_drain_hook", "gpuprov_undrain_hook")

Made = Callable[[Fleet, Mapping[str, str]], Scheduler]  # arguments: fleet, node → scheduler's name


@dataclass(frozen=True)
class Schedulers:
    """The schedulers of a fleet that gpuprov controls directly.
    `of`: node → scheduler, hooks excluded. `waits`: node → seconds for its jobs to end."""

    of: Mapping[str, Scheduler]
    waits: Mapping[str, int]

    def grouped(self, nodes: Sequence[str]) -> list[tuple[Scheduler, list[str]]]:
        """Group the nodes by scheduler."""
        groups: dict[int, tuple[Scheduler, list[str]]] = {}
        for node in nodes:
            if node in self.of:
                scheduler = self.of[node]
                groups.setdefault(id(scheduler), (scheduler, []))[1].append(node)
        return list(groups.values())

    def look(self, nodes: Sequence[str]) -> dict[str, Scheduled]:
        """Return the scheduler's view of each node that has a scheduler."""
        return {
            node: state
            for scheduler, group in self.grouped(nodes)
            for node, state in scheduler.look(group).items()
        }

    def drain(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Drain nodes (node → reason); return node → error for failures."""
        problems: dict[str, str] = {}
        for scheduler, group in self.grouped(list(reasons)):
            problems |= scheduler.drain({node: reasons[node] for node in group})
        return problems

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return nodes to their schedulers; return node → error for failures."""
        return {
            node: why
            for scheduler, group in self.grouped(nodes)
            for node, why in scheduler.resume(group).items()
        }


def _slurm(fleet: Fleet, names: Mapping[str, str]) -> Scheduler:
    return Slurm(fleet, names)


def _kubernetes(fleet: Fleet, names: Mapping[str, str]) -> Scheduler:
    # Loaded by entry point, so that only sites with Kubernetes import its dependencies.
    for entry in metadata.entry_points(group="gpuprov.schedulers", name=KUBERNETES):
        made: Scheduler = entry.load()(fleet, names)
        return made
    raise InventoryError(f"gpuprov_scheduler: {KUBERNETES} is not installed", "install gpuprov again")


MAKERS: dict[str, Made] = {SLURM: _slurm, KUBERNETES: _kubernetes}


def load(fleet: Fleet, overrides: Mapping[str, Any], makers: Mapping[str, Made] | None = None) -> Schedulers:
    """Create the schedulers of the fleet's nodes.
    Raises InventoryError for a node with both scheduler and hooks, for missing hooks and duplicate names."""
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
            continue  # variables of the group `all` reach this node too, but it runs no jobs
        given = node.variables
        kind = _kind(node.name, given)
        if kind in (SLURM, KUBERNETES):
            names.setdefault(kind, {})[node.name] = _name(node, given, kind)
            wait = given.get("gpuprov_job_wait")
            waits[node.name] = wait if type(wait) is int else JOB_WAIT  # variables.check rejects other types
    of: dict[str, Scheduler] = {}
    for kind, named in names.items():
        _refuse_twice(kind, named)
        scheduler = (makers or MAKERS)[kind](fleet, named)
        of |= dict.fromkeys(named, scheduler)
    return Schedulers(of, waits)


def only(fleet: Fleet, overrides: Mapping[str, Any]) -> tuple[Scheduler, frozenset[str]]:
    """Return the only scheduler that gpuprov controls for these nodes, and the nodes without one.
    Raises InventoryError if there is no scheduler, or more than one."""
    configured = load(fleet, overrides)
    without = frozenset(name for name in fleet.nodes if name not in configured.of)
    if without and not configured.of:
        raise InventoryError(
            f"{fold(without)}: no scheduler that gpuprov can ask",
            f"set gpuprov_scheduler: {SLURM} or {KUBERNETES}",
        )
    schedulers = configured.grouped(list(fleet.nodes))
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
    """Return the scheduler's name for the node; Slurm's default is the host name up to its first dot."""
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
    for name, duplicates in nodes.items():
        if len(duplicates) > 1:
            raise InventoryError(
                f"{fold(duplicates)} would all be {name} in {kind}",
                "give each its gpuprov_scheduler_name",
            )


def jobs_on(said: Scheduled) -> str:
    """Describe the jobs on a node (`job 123 of alice (4 min 2 s) runs on it`); empty if there are none."""
    if not said.jobs:
        return ""
    first, rest = said.jobs[0], len(said.jobs) - 1
    if first.id == "?":
        return f"jobs run on it that {said.name} does not show to us ({said.state})"
    owner = f" of {first.user}" if first.user else ""
    since = f" ({spelled(first.seconds)})" if first.seconds is not None else ""
    others = f" and {rest} more run on it" if rest else " runs on it"
    return f"job {first.id}{owner}{since}{others}"


def loaded(schedulers: Schedulers, nodes: Sequence[str]) -> dict[str, str]:
    """Return node → why it must not be put under load now: a job runs on it, or its state is unknown."""
    reasons = {}
    for node, state in schedulers.look(nodes).items():
        if state.error:
            reasons[node] = f"its scheduler does not say whether a job runs on it: {state.error}"
        elif state.jobs:
            reasons[node] = jobs_on(state)
    return reasons
