"""Comparison of expectations with facts: the drifts of a node (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.desired.expectations import Expectation
from provision.remote.observe import Observation

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Drift:
    """One expectation that does not hold on one node. `unknown`: not readable (`problem` says why)."""

    node: str
    expectation: Expectation
    found: Any
    unknown: bool = False
    problem: str = ""

    def record(self) -> dict[str, Any]:
        """The drift for JSON and the run folder. It may hold a declared secret: mask it before it is kept."""
        expectation = self.expectation
        return {
            "node": self.node,
            "role": expectation.role,
            "fact": expectation.fact,
            "operator": expectation.operator,
            "expected": expectation.value,
            "found": self.found,
            "why": expectation.why,
            "unknown": self.unknown,
            "problem": self.problem,
            "reboot": expectation.reboot,
        }


def drifts(expectations: Sequence[Expectation], observation: Observation) -> list[Drift]:
    """What differs on one observed node, in role order. What could not be read is unknown: it never holds."""
    facts, problems, node = observation.facts, observation.problems, observation.node
    result = []
    for expectation in expectations:
        problem = _problem(expectation.fact, problems) if problems else ""
        found = facts.get(expectation.fact, _ABSENT)
        if problem or found is _ABSENT:
            problem = problem or "the node did not answer this fact"
            result.append(Drift(node, expectation, None, unknown=True, problem=problem))
        elif not expectation.holds(found):
            result.append(Drift(node, expectation, found))
    return result


def _problem(fact: str, problems: Mapping[str, str]) -> str:
    """Why a fact could not be read: said of itself, or of its probe (`package`, `package.nvidia-open`)."""
    probe = fact.partition(".")[0]
    item = fact.rpartition(".")[0]
    return problems.get(fact) or problems.get(item) or problems.get(probe) or ""
