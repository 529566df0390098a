"""Comparison of expectations with facts: the drifts of a node (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from provision.desired.expectations import Expectation
from provision.remote.reach.observe import Observation
from provision.shared_facts import SharedFacts

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Drift:
    """One expectation that does not hold on a node. `unknown`: unreadable, see `problem`."""

    node: str
    expectation: Expectation
    found: Any
    unknown: bool = False
    problem: str = ""

    def record(self) -> dict[str, Any]:
        """Return the drift for JSON and the run folder, unmasked: it may hold a declared secret."""
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
    """Return the drifts of one observed node, in role order; an unreadable fact is an unknown drift."""
    facts, problems, node = observation.facts, observation.problems, observation.node
    result = []
    for expectation in expectations:
        problem = _problem(expectation.fact, problems) if problems else ""
        value = facts.get(expectation.fact, _ABSENT)
        if problem or value is _ABSENT:
            problem = problem or "the node did not answer this fact"
            result.append(Drift(node, expectation, None, unknown=True, problem=problem))
        elif not expectation.holds(value):
            result.append(Drift(node, expectation, value))
    return result


@dataclass
class FleetDrifts:
    """Drifts of many nodes; facts that nodes share are compared only once."""

    _kinds: dict[tuple[int, int], _Kind] = field(default_factory=dict)

    def of(self, expectations: Sequence[Expectation], observation: Observation) -> list[Drift]:
        """Return the drifts of a node; nodes with equal expectations should share one list of them."""
        facts = observation.facts
        if observation.problems or not isinstance(facts, SharedFacts):
            return drifts(expectations, observation)
        key = id(expectations), id(facts.base)
        if key not in self._kinds:
            self._kinds[key] = _Kind.of(expectations, replace(observation, facts=facts.base))
        kind = self._kinds[key]
        places = kind.differing.union(*(kind.places.get(name, ()) for name in facts.own))
        return drifts([expectations[index] for index in sorted(places)], observation)


@dataclass(frozen=True)
class _Kind:
    """Nodes with equal expectations and a shared base of facts, kept because their ids are the key.

    `differing`: indexes of expectations that the base does not meet; `places`: indexes by fact."""

    expectations: Sequence[Expectation]
    base: Mapping[str, Any]
    differing: frozenset[int]
    places: Mapping[str, list[int]]

    @classmethod
    def of(cls, expectations: Sequence[Expectation], base: Observation) -> _Kind:
        places: dict[str, list[int]] = {}
        for index, expectation in enumerate(expectations):
            places.setdefault(expectation.fact, []).append(index)
        differing = frozenset(
            index for index, expectation in enumerate(expectations) if drifts([expectation], base)
        )
        return cls(expectations, base.facts, differing, places)


def _problem(fact: str, problems: Mapping[str, str]) -> str:
    """Return why a fact could not be read; its item or probe (`package`) may have the problem instead."""
    probe = fact.partition(".")[0]
    item = fact.rpartition(".")[0]
    return problems.get(fact) or problems.get(item) or problems.get(probe) or ""
