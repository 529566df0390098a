"""The role of each node, from the inventory and later changes by incidents (pure)."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from provision.fleet import Fleet
from provision.up.watch.incidents import Incident, Step
from provision.up.watch.policy import SPARES

DAYS = 30  # days for which a failure counts against a node
_MOST_HOURS = 7 * 24


class Role(enum.StrEnum):
    """The current role of a node."""

    SERVICE = "service"
    SPARE = "spare"
    REPAIR = "repair"


def roles(fleet: Fleet, incidents: Sequence[Incident]) -> dict[str, Role]:
    """Return the role of each node: the inventory's, changed by its incidents in their order."""
    spares = fleet.groups.get(SPARES, ())
    found = {name: Role.SPARE if name in spares else Role.SERVICE for name in fleet.nodes}
    for node, role, _ in changes(incidents):
        if node in found:
            found[node] = role
    return found


def changes(incidents: Sequence[Incident]) -> list[tuple[str, Role, Incident]]:
    """Return each change of a node's role, in order, with its incident."""
    found: list[tuple[int, float, int, str, Role, Incident]] = []
    for one in incidents:
        if one.step is Step.CLOSED and one.placed is None:
            continue
        found.append((one.number, one.opened, 0, one.node, Role.REPAIR, one))
        if one.spare and one.placed is not None:
            found.append((one.placed_number or one.number, one.placed, 1, one.spare, Role.SERVICE, one))
        if one.returned is not None:
            last = one.returned_number or one.placed_number or one.number
            found.append((last, one.returned, 2, one.node, Role.SPARE, one))
    return [change[3:] for change in sorted(found, key=lambda change: change[:4])]


def serving(incidents: Sequence[Incident]) -> dict[str, Incident]:
    """Return each spare in service, with the incident of the node it replaces."""
    found: dict[str, Incident] = {}
    for node, role, one in changes(incidents):
        if role is Role.SERVICE:
            found[node] = one
        elif role is Role.REPAIR:
            found.pop(node, None)
    return found


def may_return(node: str, incidents: Sequence[Incident], hours: float, now: float) -> float:
    """Return the earliest time at which a node may return; each failure within 30 days doubles the wait.

    Failures in the future, stamped by a wrong clock, do not count."""
    mine = sorted(
        one.opened
        for one in incidents
        if one.node == node and one.step is not Step.CLOSED and one.opened <= now
    )
    if not mine:
        return 0.0
    counted = sum(opened > mine[-1] - DAYS * 86400 for opened in mine)
    return mine[-1] + min(hours * 2.0 ** (counted - 1), _MOST_HOURS) * 3600
