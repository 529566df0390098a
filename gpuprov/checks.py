"""What a check of your own is made of: docs/own-checks.md describes it, and it is promised to stay."""

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
