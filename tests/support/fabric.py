"""A simulated fabric with planted faults that measures pairs and groups as a real one would."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from provision.checks.pairs.pairing import Outcome, Result, Topology
from provision.checks.pairs.suspects import Diagnosis, diagnose, next_round

RATE = 48.0
Faults = dict[tuple[str, ...], float | None]  # location → factor; None hangs


def racked(nodes: int, size: int) -> Topology:
    """Return nodes n0, n1, … in racks r0, r1, … of `size` nodes each."""
    names = tuple(f"n{i}" for i in range(nodes))
    return Topology(names, {name: f"r{i // size}" for i, name in enumerate(names)})


@dataclass
class Fabric:
    """A fabric with `faults`: (kind, name, …) → factor of the rate, None for a hang.
    Kinds: node, port (node, rail), link (both nodes in order), leaf, uplink (rack), path (both racks in
    order). `true_racks`: the real racks, if the inventory's are wrong."""

    fleet: Topology
    faults: Faults = field(default_factory=dict)
    noise: float = 0.01
    seed: int = 0
    rails: Sequence[str] = ("",)
    expected: float | None = None
    oversubscription: float = 1.0  # the declared ratio, which divides the expected rate across racks
    disturbed: Collection[tuple[int, str]] = ()  # (round, node): slow in this round only
    true_racks: dict[str, str] | None = None

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)  # noqa: S311 - a seed reproduces it
        self.rounds = 0
        self.asked: list[Sequence[tuple[str, ...]]] = []

    def through(self, nodes: Sequence[str], rail: str) -> Iterable[tuple[str, ...]]:
        racks = self.true_racks or self.fleet.racks
        known = sorted({racks[node] for node in nodes if node in racks})
        for node in nodes:
            yield "node", node
            yield "port", node, rail
        for rack in known:
            yield "leaf", rack
            if len(known) > 1:
                yield "uplink", rack
        if len(nodes) == 2:
            yield ("link", *sorted(nodes))
        if len(known) == 2:
            yield ("path", *known)

    def measure(self, groups: Sequence[tuple[str, ...]]) -> list[Result]:
        """Return the results of one round; groups measured at the same time must be disjoint."""
        self.rounds += 1
        self.asked.append(groups)
        assert len({node for group in groups for node in group}) == sum(map(len, groups))
        return [self._answer(group, rail) for group in groups for rail in self.rails]

    def _answer(self, nodes: tuple[str, ...], rail: str) -> Result:
        factors = [self.faults[part] for part in self.through(nodes, rail) if part in self.faults]
        across = self.fleet.spans(nodes) is not False
        least = self.expected and self.expected / (self.oversubscription if across else 1.0)
        if None in factors:
            return Result(nodes, self.rounds, Outcome.HANG, rail=rail, expected=least)
        factor = min([1.0, *(one for one in factors if one is not None)])
        if any((self.rounds, node) in self.disturbed for node in nodes):
            factor *= 0.5
        value = RATE * factor * self.chance.gauss(1, self.noise)
        return Result(nodes, self.rounds, value=value, rail=rail, expected=least)

    def run(self) -> Diagnosis:
        """Run all rounds of the default plan and return the diagnosis."""
        results: list[Result] = []
        while pairs := next_round(self.fleet, results):
            results += self.measure(pairs)
        self.results = results
        return diagnose(self.fleet, results)


def named(diagnosis: Diagnosis) -> set[str]:
    return {culprit.device for culprit in diagnosis.culprits}
