"""The public API for checks of your own, as documented in docs/own-checks.md; it is stable."""

from provision.checks.check import CheckNode, Command, Measurement, Output, completed, last_words
from provision.checks.judge import ACTIONS, Finding, Verdict, by_threshold
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

__all__ = [
    "ACTIONS",
    "CheckNode",
    "Command",
    "Finding",
    "Measurement",
    "Output",
    "ParseError",
    "Threshold",
    "Verdict",
    "by_threshold",
    "completed",
    "last_words",
]
