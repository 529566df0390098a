"""Expectations × facts → drifts (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from provision.expectations import Expectation
from provision.observe import Observation


@dataclass(frozen=True)
class Drift:
    """One expectation that does not hold on one node. `unknown`: it could not be read (`problem` says why)."""

    node: str
    expectation: Expectation
    found: Any
    unknown: bool = False
    problem: str = ""


def drifts(expectations: Sequence[Expectation], observation: Observation) -> list[Drift]:
    """What differs on one observed node, in role order."""
    raise NotImplementedError
