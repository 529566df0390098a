"""gpuprov from Python: what docs/python.md describes, and nothing else, is promised to stay."""

from provision import __version__
from provision.api.drifts import DriftResult, drift
from provision.api.events import Event, NodeAnswered, Note, RunBegan
from provision.api.fleets import LoadedFleet, load
from provision.api.plans import PlanResult, plan
from provision.api.source import Limits, Source
from provision.api.states import status
from provision.errors import GpuprovError

__all__ = [
    "DriftResult",
    "Event",
    "GpuprovError",
    "Limits",
    "LoadedFleet",
    "NodeAnswered",
    "Note",
    "PlanResult",
    "RunBegan",
    "Source",
    "__version__",
    "drift",
    "load",
    "plan",
    "status",
]
