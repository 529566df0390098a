"""Burn-ins: observe, plan, start, attend and judge. docs/python.md does not promise this API yet."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from provision.api.fleets import LoadedFleet
from provision.api.source import Limits
from provision.burnin import actions, campaign, orders
from provision.burnin import plan as planning
from provision.burnin.actions import Alone, BurninOptions, Outcome
from provision.burnin.campaign import Looked
from provision.burnin.plan import Plan
from provision.burnin.profile import Profile
from provision.desired import variables
from provision.errors import IncompleteError
from provision.events import Note, OnEvent
from provision.remote.reach import fleet_lock
from provision.remote.schedulers import chosen as schedulers
from provision.runs.store import RunFolder


@dataclass(frozen=True)
class Planned:
    """Observations of the nodes, the turn of each, and why a node cannot be burned in."""

    looked: Looked
    plan: Plan
    unable: dict[str, str]


def plan(
    loaded: LoadedFleet, profile: Profile, limits: Limits, on_event: OnEvent, *, with_jobs: bool = False
) -> Planned:
    """Observe the nodes and plan when this profile loads each of them.

    `with_jobs`: also load nodes on which scheduler jobs run. Raises IncompleteError if no node can burn."""
    fleet, overrides = loaded.fleet, loaded.overrides
    variables.check(fleet, overrides, lambda line: on_event(Note(line)))
    declared = schedulers.load(fleet, overrides)  # loaded even if unused, to reject contradictory settings
    looked = campaign.look(
        fleet,
        overrides,
        profile,
        timeout=limits.timeout,
        connections=limits.connections,
        schedulers=None if with_jobs else declared,
        on_event=on_event,
    )
    unable = {name: node.trouble for name, node in looked.seen.items() if node.error}
    if not looked.able:
        name, why = next(iter(unable.items()))
        raise IncompleteError(
            f"no node can be burned in; {name}: {why}", "widen --nodes, or repair the nodes first"
        )
    caps = planning.caps(looked.variables)
    loads = [planning.load_of(node, looked.variables[name]) for name, node in looked.able.items()]
    seconds = {name: orders.seconds(profile, node) for name, node in looked.able.items()}
    ramp: dict[str, Any] = {"ramp_steps": profile.ramp_steps, "ramp_seconds": profile.ramp_seconds}
    return Planned(looked, planning.plan(loads, caps, seconds, **ramp), unable)


def start(
    loaded: LoadedFleet,
    profile: Profile,
    planned: Planned,
    options: BurninOptions,
    limits: Limits,
    on_event: OnEvent,
    *,
    broken: bool = False,
) -> Outcome:
    """Start a planned burn-in and, unless detached, attend it to its end. `broken`: ignore locks."""
    alone = _alone(loaded, limits, on_event, broken)
    parts = planned.looked, planned.plan, planned.unable
    return actions.start(loaded.fleet, loaded.overrides, profile, *parts, alone, options, on_event)


def act(
    action: str,
    named: str,
    folder: RunFolder | None,
    loaded: LoadedFleet,
    options: BurninOptions,
    limits: Limits,
    on_event: OnEvent,
    *,
    broken: bool = False,
) -> Outcome:
    """Perform status, attach, stop, collect or resume on the burn-in in `folder`, or `named` on the nodes."""
    alone = _alone(loaded, limits, on_event, broken)
    return actions.run(action, named, folder, loaded.fleet, loaded.overrides, alone, options, on_event)


def _alone(loaded: LoadedFleet, limits: Limits, on_event: OnEvent, broken: bool) -> Alone:
    def alone(nodes: Collection[str], burnin: str = "") -> AbstractContextManager[None]:
        return fleet_lock.alone(
            "start",
            fleet_lock.fresh_name(),
            replace(loaded.fleet, nodes={name: loaded.fleet.nodes[name] for name in nodes}),
            before=[burnin],
            timeout=limits.timeout,
            connections=limits.connections,
            say=lambda line: on_event(Note(line)),
            broken=broken,
        )

    return alone
