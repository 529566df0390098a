"""What each node is for, by the inventory and by what incidents have changed since (pure)."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from provision.fleet import Fleet
from provision.up.watch.incidents import Incident, Step
from provision.up.watch.policy import SPARES

DAYS = 30  # for so long a failure counts against a node
_MOST_HOURS = 7 * 24


class Role(enum.StrEnum):
    """What a node is for, now."""

    SERVICE = "service"
    SPARE = "spare"
    REPAIR = "repair"


def roles(fleet: Fleet, incidents: Sequence[Incident]) -> dict[str, Role]:
    """What each node is for: what the inventory says, and since then its incidents, in their order."""
    spares = fleet.groups.get(SPARES, ())
    found = {name: Role.SPARE if name in spares else Role.SERVICE for name in fleet.nodes}
    for node, role, _ in changes(incidents):
        if node in found:
            found[node] = role
    return found


def changes(incidents: Sequence[Incident]) -> list[tuple[str, Role, Incident]]:
    """Each change of a node's role, in order, with its incident."""
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
    """Each spare that is in service, with the incident whose node it replaces."""
    found: dict[str, Incident] = {}
    for node, role, one in changes(incidents):
        if role is Role.SERVICE:
            found[node] = one
        elif role is Role.REPAIR:
            found.pop(node, None)
    return found


def may_return(node: str, incidents: Sequence[Incident], hours: float, now: float) -> float:
    """From when on a node may come back: each failure in the last 30 days doubles the wait. A failure in the
    future, which a clock that went wrong has stamped, keeps it away no longer."""
    mine = sorted(
        one.opened
        for one in incidents
        if one.node == node and one.step is not Step.CLOSED and one.opened <= now
    )
    if not mine:
        return 0.0
    counted = sum(opened > mine[-1] - DAYS * 86400 for opened in mine)
    return mine[-1] + min(hours * 2.0 ** (counted - 1), _MOST_HOURS) * 3600
