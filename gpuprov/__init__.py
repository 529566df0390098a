"""Public Python API of gpuprov; only what docs/python.md describes is stable."""

from provision import __version__
from provision.api.drifts import DriftResult, drift
from provision.api.fleets import LoadedFleet, load
from provision.api.plans import PlanResult, plan
from provision.api.source import Limits, Source
from provision.api.states import status
from provision.api.ups import up
from provision.api.validations import Campaign, ValidateResult, validate
from provision.errors import GpuprovError
from provision.events import (
    Began,
    CheckBegan,
    CheckEnded,
    ChecksChosen,
    Ended,
    Event,
    NodeAnswered,
    NodeEnded,
    NodeLeftOut,
    Note,
    PartEnded,
    RunBegan,
    Step,
    TaskBegan,
    UpPlanned,
)
from provision.up.options import UpOptions
from provision.up.result import UpResult
from provision.up.waves import Share

__all__ = [
    "Began",
    "Campaign",
    "CheckBegan",
    "CheckEnded",
    "ChecksChosen",
    "DriftResult",
    "Ended",
    "Event",
    "GpuprovError",
    "Limits",
    "LoadedFleet",
    "NodeAnswered",
    "NodeEnded",
    "NodeLeftOut",
    "Note",
    "PartEnded",
    "PlanResult",
    "RunBegan",
    "Share",
    "Source",
    "Step",
    "TaskBegan",
    "UpOptions",
    "UpPlanned",
    "UpResult",
    "ValidateResult",
    "__version__",
    "drift",
    "load",
    "plan",
    "status",
    "up",
    "validate",
]
