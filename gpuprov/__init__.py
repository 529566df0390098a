"""gpuprov from Python: what docs/python.md describes, and nothing else, is promised to stay."""

from provision import __version__
from provision.api.drifts import DriftResult, drift
from provision.api.fleets import LoadedFleet, load
from provision.api.plans import PlanResult, plan
from provision.api.source import Limits, Source
from provision.api.states import status
from provision.api.validations import Campaign, ValidateResult, validate
from provision.errors import GpuprovError
from provision.events import (
    Began,
    CheckBegan,
    CheckEnded,
    ChecksChosen,
    CheckWaits,
    Ended,
    Event,
    NodeAnswered,
    NodeLeftOut,
    Note,
    PartEnded,
    RunBegan,
    Step,
)

__all__ = [
    "Began",
    "Campaign",
    "CheckBegan",
    "CheckEnded",
    "CheckWaits",
    "ChecksChosen",
    "DriftResult",
    "Ended",
    "Event",
    "GpuprovError",
    "Limits",
    "LoadedFleet",
    "NodeAnswered",
    "NodeLeftOut",
    "Note",
    "PartEnded",
    "PlanResult",
    "RunBegan",
    "Source",
    "Step",
    "ValidateResult",
    "__version__",
    "drift",
    "load",
    "plan",
    "status",
    "validate",
]
