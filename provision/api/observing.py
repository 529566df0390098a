"""One look at the chosen nodes, which plan and drift start with."""

from __future__ import annotations

from typing import Unpack

from provision.api.fleets import LoadedFleet
from provision.api.source import Limits
from provision.drift import assess
from provision.drift.assess import Assessment, LookOptions
from provision.events import NodeAnswered, Note, OnEvent


def look(
    loaded: LoadedFleet, limits: Limits | None, on_event: OnEvent, **more: Unpack[LookOptions]
) -> Assessment:
    """Observe the nodes and compare them with what is declared. The report names nodes in trouble."""
    limits = limits or Limits()
    more["timeout"], more["connections"] = limits.timeout, limits.connections
    more["say"] = lambda line: on_event(Note(line))
    more["on_done"] = lambda said: on_event(NodeAnswered(said.node, said.trouble))
    return assess.assess(loaded.fleet, loaded.overrides, **more)
