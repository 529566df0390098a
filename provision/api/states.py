"""State of each node in service, from the latest result of the node's health program."""

from __future__ import annotations

import dataclasses

from provision.api.fleets import LoadedFleet
from provision.api.source import Limits
from provision.errors import RunFolderError
from provision.events import NodeAnswered, Note, OnEvent, ignore
from provision.up.watch import incidents
from provision.up.watch.policy import SPARES
from provision.validate.status.rounds import Rounds
from provision.validate.status.status import FleetStatus


def status(loaded: LoadedFleet, *, limits: Limits | None = None, on_event: OnEvent = ignore) -> FleetStatus:
    """Return each node's state by its health program's newest result, with the watch's actions.
    Never raises for a node."""
    limits = limits or Limits(timeout=20.0)

    def say(line: str) -> None:
        on_event(Note(line))

    with Rounds(loaded.fleet, timeout=limits.timeout, connections=limits.connections, say=say) as rounds:
        observed = rounds.ask(lambda one: on_event(NodeAnswered(one.node)))
    return with_watched(observed, on_event)


def with_watched(found: FleetStatus, on_event: OnEvent) -> FleetStatus:
    """Add the actions of this inventory's watch to the status of its nodes."""
    try:
        stored = incidents.Store(incidents.place_of(found.fleet)).incidents()
    except (RunFolderError, OSError) as error:
        on_event(Note(f"the state of gpuprov watch cannot be read: {error}"))
        return found
    if not stored and SPARES not in found.fleet.groups:
        return found
    from provision.up.watch import standing  # imported here, as only a fleet with a watch needs it

    return dataclasses.replace(found, watched=standing.of(found.fleet, stored))
