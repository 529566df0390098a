"""Schedules of disjoint pairs and groups: which nodes are measured together (pure).

Round 1 pairs nodes across racks, each rack with as many others as possible, so that a bad uplink is slow
towards many racks and its partners are not. Round 2 pairs nodes within racks, without uplinks. A node is in
at most one pair per round, since pairs measured at once must not share a cable. `suspects.next_pairs`
measures whatever two rounds leave open; the number of rounds does not grow with the fleet. Only the
exhaustive schedule, the circle method, covers every pair, and its number of rounds does grow.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from provision.errors import InventoryError
from provision.node_names import fold
from provision.text import many, one_line

RACK = "gpuprov_rack"  # the inventory variable
ALIKE = 4  # nodes of a rack from which on a bad leaf is more likely than "all of them are bad"

Pair = tuple[str, str]
Group = tuple[str, ...]


@dataclass(frozen=True)
class Topology:
    """The nodes to measure, in inventory order, and the known racks among theirs.

    Nodes of a rack share their leaf switch or, if every rail has a separate leaf, that set of leaf switches.
    """

    nodes: tuple[str, ...]
    racks: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def members(self) -> Mapping[str, tuple[str, ...]]:
        """Rack → its nodes, with racks in the order of their first node."""
        by_rack: dict[str, list[str]] = defaultdict(list)
        for node in self.nodes:
            if node in self.racks:
                by_rack[self.racks[node]].append(node)
        return {rack: tuple(nodes) for rack, nodes in by_rack.items()}

    @cached_property
    def order(self) -> Mapping[str, int]:
        """Node → position in the inventory."""
        return {node: place for place, node in enumerate(self.nodes)}

    def spans(self, nodes: Collection[str]) -> bool | None:
        """Return whether these nodes are in more than one rack; None if unknown."""
        racks = {self.racks.get(node) for node in nodes}
        if len(racks - {None}) > 1:
            return True
        return None if None in racks else False


def topology(variables: Mapping[str, Mapping[str, Any]]) -> Topology:
    """Build the topology from the nodes' resolved inventory variables (name → variables).

    Raises InventoryError for a rack that is neither a name nor a whole number.
    """
    racks = {}
    for node, stated in variables.items():
        value = stated.get(RACK)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            raise InventoryError(
                f"{one_line(node, 80)}: {RACK} must be a name or a whole number, "
                f"not {one_line(repr(value), 80)}",
                "name the leaf switch or the rack that its nodes share, or leave the variable out",
            )
        racks[node] = str(value).strip()
    return Topology(tuple(variables), racks)


def across(fleet: Topology) -> tuple[Pair, ...]:
    """Return round 1: disjoint pairs, across racks if possible; in an odd fleet one node waits.

    The rack with most nodes left goes first and takes the rack it met least, then the one with most left, so
    that no node of a large rack remains that a small one could have taken. Nodes without a rack form one more
    rack.
    """
    left = {rack: list(nodes) for rack, nodes in fleet.members.items()}
    if unknown := [node for node in fleet.nodes if node not in fleet.racks]:
        left[""] = unknown  # a rack's name is never empty
    met: Counter[frozenset[str]] = Counter()
    pairs: list[Pair] = []
    while len(left) > 1:
        largest = max(left, key=lambda rack: len(left[rack]))
        other = min(
            (rack for rack in left if rack != largest),
            key=lambda rack: (met[frozenset((largest, rack))], -len(left[rack])),
        )
        met[frozenset((largest, other))] += 1
        pairs.append((left[largest].pop(0), left[other].pop(0)))
        for rack in (largest, other):
            if not left[rack]:
                del left[rack]
    for rest in left.values():
        half = len(rest) // 2
        pairs += zip(rest[:half], rest[half : 2 * half], strict=True)
    return tuple(pairs)


def within(fleet: Topology, first: Sequence[Pair]) -> tuple[Pair, ...]:
    """Return round 2: disjoint pairs within racks, none of them from the `first` round.

    Odd nodes of racks meet one another; in an odd fleet a different node waits than in round 1.
    """
    before = {node: partner for pair in first for node, partner in (pair, pair[::-1])}
    waited = next((node for node in fleet.nodes if node not in before), None)
    pairs: list[Pair] = []
    rest: list[str] = []
    racks = [*fleet.members.values(), tuple(node for node in fleet.nodes if node not in fleet.racks)]
    for nodes in racks:
        inside: list[Pair] = []
        rest += _pair_neighbours(sorted(nodes, key=lambda node: node != waited), before, inside)
        pairs += inside
    odd = _pair_neighbours(sorted(rest, key=lambda node: node != waited), before, pairs)
    if odd == [waited] and pairs:
        pairs[-1] = (pairs[-1][0], odd[0])
    return tuple(pairs)


def _pair_neighbours(nodes: Sequence[str], before: Mapping[str, str], pairs: list[Pair]) -> list[str]:
    """Append pairs of neighbours that have not met to `pairs`, and return the remaining nodes.

    They are the odd one, or two that have met and find no pair to swap partners with.
    """
    left = list(nodes)
    while len(left) > 1:
        node = left.pop(0)
        index = next((i for i, other in enumerate(left) if before.get(node) != other), None)
        if index is not None:
            pairs.append((node, left.pop(index)))
        elif pairs:  # these two have met only each other so far, so either may join a node of the last pair
            one, other = pairs.pop()
            pairs += [(one, node), (other, left.pop(0))]
        else:
            return [node, *left]
    return left


def exhaustive(nodes: Sequence[str]) -> Iterator[tuple[Pair, ...]]:
    """Yield every pair once, in `exhaustive_rounds` rounds of disjoint pairs (the circle method)."""
    ring: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    half = len(ring) // 2
    for _ in range(exhaustive_rounds(len(nodes))):
        yield tuple(
            (one, other)
            for one, other in zip(ring[:half], ring[: half - 1 : -1], strict=True)
            if one is not None and other is not None
        )
        ring[1:] = [ring[-1], *ring[1:-1]]


def exhaustive_rounds(nodes: int) -> int:
    """Return the number of exhaustive rounds: nodes - 1, or nodes if their number is odd."""
    return 0 if nodes < 2 else nodes - 1 + nodes % 2


def minutes(rounds: int, seconds: float) -> float:
    """Return the minutes that `rounds` take at `seconds` each; the pairs of a round run at once."""
    return rounds * seconds / 60


def limits(fleet: Topology) -> tuple[str, ...]:
    """Return sentences on the parts of this fleet that no measurement can tell apart."""
    count = len(fleet.nodes)
    if count < 2:
        return (f"{many(count, 'node')}: there is no pair to measure",)
    sentences = []
    if count == 2:
        sentences.append(
            "two nodes have one pair: when it is slow, the end or the link at fault cannot be told apart"
        )
    return (*sentences, *_rack_limits(fleet))


def _rack_limits(fleet: Topology) -> Iterator[str]:
    unknown = [node for node in fleet.nodes if node not in fleet.racks]
    if not fleet.members:
        yield (
            f"no node has {RACK}: a bad leaf or uplink looks like bad nodes or links; "
            "set it to the name that the nodes of a leaf switch share"
        )
        return
    if unknown:
        yield (
            f"{RACK} is missing on {fold(unknown)}: whether their pairs cross an uplink is not known, "
            "and a bad leaf of theirs looks like bad nodes"
        )
    if len(fleet.members) == 1 and not unknown:
        yield "all nodes are in one rack: no pair crosses an uplink"
    if len(fleet.members) == 2:
        yield "two racks: their uplinks and the path between them carry the same pairs and look the same"
    alone = [nodes[0] for nodes in fleet.members.values() if len(nodes) == 1]
    if alone:
        yield f"{fold(alone)}: the only node of its rack, so its leaf and uplink cannot be told from the node"
    few = [rack for rack, nodes in fleet.members.items() if 1 < len(nodes) < ALIKE]
    if few:
        yield (
            f"rack {fold(few)}: fewer than {ALIKE} nodes, so a bad leaf cannot be told from bad nodes only"
        )


# --- Results of pairs and groups, and which of them are evidence. A result holds a measurement, not its
# grade. Contradictory results, and measurements that were not alone on their nodes, are not evidence: they
# are left out with a note.


class Outcome(enum.StrEnum):
    """Outcome of measuring a pair or group."""

    MEASURED = "measured"
    HANG = "hang"
    ERROR = "error"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Result:
    """One measurement of a pair (two nodes) or a group."""

    nodes: tuple[str, ...]
    round: int  # from 1; 0: the group of all nodes
    outcome: Outcome = Outcome.MEASURED
    value: float | None = None  # in `unit`
    rail: str = ""  # "": all rails
    unit: str = "GB/s"
    expected: float | None = None  # the least it should be; of a latency the most
    end: str = ""  # node at fault, if the output proves it (no such device, wrong version); "": either may be
    size: int | None = None  # number of participating nodes according to the tool
    said: str = ""  # the tool's message about a failure, or its remark on the value

    @property
    def name(self) -> str:
        """Name for messages, such as `gpu-01 and gpu-07 on rail 2 in round 1`."""
        nodes = " and ".join(one_line(node, 80) for node in self.nodes)
        members = nodes if len(self.nodes) < 3 else fold(self.nodes, 120)
        return f"{members}{f' on rail {one_line(self.rail, 40)}' if self.rail else ''} in round {self.round}"


def usable(fleet: Topology, results: Iterable[Result]) -> tuple[list[Result], list[str]]:
    """Return the results that are evidence, and a line for each of the others."""
    kept: list[Result] = []
    notes: list[str] = []
    for result in dict.fromkeys(results):  # a repeated line is one result
        if why := _unusable(fleet, result):
            notes.append(f"{result.name}: left out, {why}")
        else:
            kept.append(result)
    twice = {key for key, count in Counter(map(_place, kept)).items() if count > 1}
    places: dict[tuple[int, str], set[frozenset[str]]] = defaultdict(set)
    for result in kept:
        for node in result.nodes if result.outcome is not Outcome.NOT_RUN else ():
            places[result.round, node].add(frozenset(result.nodes))
    shared = {place for place, together in places.items() if len(together) > 1}
    alone = []
    for result in kept:
        busy = [node for node in result.nodes if (result.round, node) in shared]
        if _place(result) in twice:
            notes.append(f"{result.name}: left out, it was reported more than once and not alike")
        elif busy:
            notes.append(f"{result.name}: left out, {fold(busy, 120)} was in another one at the same time")
        else:
            alone.append(result)
    return alone, notes


def _place(result: Result) -> tuple[int, frozenset[str], str]:
    return result.round, frozenset(result.nodes), result.rail


def _unusable(fleet: Topology, result: Result) -> str:
    """Return why a result is not evidence; "" if it is."""
    strangers = [node for node in result.nodes if node not in fleet.order]
    value = result.value
    if strangers:
        return f"{fold(strangers, 120)} is not of this run"
    if len(set(result.nodes)) != len(result.nodes) or len(result.nodes) < 2:
        return "it takes different nodes, two at least"
    if result.end and result.end not in result.nodes:
        return f"{one_line(result.end, 80)}, which is reported as failed, is not one of them"
    if result.outcome is not Outcome.MEASURED:
        return ""
    if result.size is not None and result.size != len(result.nodes):
        return f"the tool ran on {many(result.size, 'node')}, not on {len(result.nodes)}"
    if value is None or not math.isfinite(value) or value <= 0:
        return "its value is not a number above 0"
    if result.expected is not None and not (math.isfinite(result.expected) and result.expected > 0):
        return "its expected value is not a number above 0"
    return ""
