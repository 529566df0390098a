"""The watch's state of each node, for the state of the fleet (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from provision.fleet import Fleet
from provision.up.watch.incidents import Incident, Step
from provision.up.watch.roles import Role, roles, serving
from provision.up.watch.state import next_command
from provision.validate.status.status import Watched


def of(fleet: Fleet, incidents: Sequence[Incident]) -> dict[str, Watched]:
    """Return each node with an incident, each replacement and each spare, unfinished incidents first."""
    held = sorted((one for one in incidents if one.holds_node), key=lambda one: not one.is_open)
    found = {
        one.node: Watched(
            "repair" if one.step is Step.REPAIR else "failed",
            *(one.id, one.step.value, one.spare, one.cause, next_command(one, incidents, fleet)),
        )
        for one in held
    }
    for spare, one in serving(incidents).items():
        if one.holds_node:
            found.setdefault(spare, Watched("replaces", one.id, one.step.value, one.node, one.cause))
    for name, role in roles(fleet, incidents).items():
        if role is Role.SPARE:
            found.setdefault(name, Watched("spare"))
    return {name: one for name, one in found.items() if name in fleet.nodes}
