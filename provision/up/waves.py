"""Division of nodes into waves, and their order (pure).

The canaries go first: one node of each kind (SKU and operating system), so that a fault of every machine of a
kind occurs there, once. The rest follows in batches. Nodes that must not be split (a rack, an NVLink domain)
form one unit, even if one of them is a canary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from provision.errors import StackError
from provision.node_names import fold

CANARY, BATCH = "canary", "batch"

# Defaults without --wave: small fleets in one batch, larger ones in tenths. A mistake that canaries did not
# show is then seen after a tenth of the machines, and no fleet needs more than ten batches, each of which
# lasts as long as its slowest node (a driver and a reboot: a quarter of an hour).
SMALL = 20
PART = 10  # percent


@dataclass(frozen=True)
class Share:
    """A number of nodes, or a percentage of them."""

    number: int
    percent: bool = False

    def of(self, total: int) -> int:
        """Return the share of `total` nodes, rounded down."""
        return total * self.number // 100 if self.percent else self.number

    def __str__(self) -> str:
        return f"{self.number}{'%' if self.percent else ''}"


def share(text: str) -> Share:
    """Parse `20` or `10%`. Raises ValueError."""
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdecimal()) or len(number) > 9:
        raise ValueError(f"{text!r} is neither a number of nodes nor a percentage")
    parsed = Share(int(number), text.endswith("%"))
    if parsed.percent and parsed.number > 100:
        raise ValueError(f"{text!r} is more than all of them")
    return parsed


class Wave(tuple[str, ...]):
    """The nodes of one wave; `kind`: CANARY or BATCH; `groups`: its nodes that stay together.

    A tuple of its nodes, so that it compares equal to one and becomes a list of names in JSON (`record` is
    complete).
    """

    kind: str
    groups: tuple[tuple[str, ...], ...]

    def __new__(
        cls, nodes: Collection[str], kind: str = BATCH, groups: Sequence[tuple[str, ...]] = ()
    ) -> Wave:
        made = super().__new__(cls, nodes)
        made.kind = kind
        made.groups = tuple(groups)
        return made

    def together(self, node: str) -> tuple[str, ...]:
        """Return the nodes that must be handled together with `node`, including itself."""
        return next((group for group in self.groups if node in group), (node,))

    def without(self, nodes: Collection[str]) -> Wave:
        """Return the wave without these nodes."""
        groups = [tuple(node for node in group if node not in nodes) for group in self.groups]
        kept = [group for group in groups if len(group) > 1]
        return Wave([node for node in self if node not in nodes], self.kind, kept)

    def record(self) -> dict[str, Any]:
        """Return kind, nodes and groups for JSON."""
        return {"kind": self.kind, "nodes": list(self), "groups": [list(group) for group in self.groups]}


@dataclass(frozen=True)
class Rollout:
    """Rules for dividing a fleet; mappings are by node name.

    `stages`: values of `gpuprov_wave`; lower ones go first, in separate waves. `kinds`: kind of machine that
    a canary represents. `atomic`: nodes with the same value are never split. `chosen`: canaries selected in
    the inventory. `proved`: kinds that need no canary (a resumed run had one).
    """

    size: Share | None = None
    canary: bool = True
    stages: Mapping[str, int] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)
    atomic: Mapping[str, str] = field(default_factory=dict)
    chosen: frozenset[str] = frozenset()
    proved: frozenset[str] = frozenset()

    def waves(self, nodes: Sequence[str]) -> tuple[Wave, ...]:
        """Assign each of `nodes` to exactly one wave, in their order within a stage."""
        size = batch_size(self.size, len(nodes))
        seen = set(self.proved)  # across stages: a kind proved by an earlier stage needs no second canary
        waves = []
        for _number, members in groupby(sorted(nodes, key=self._stage), key=self._stage):
            units = self._units(tuple(members))
            # A single node leaves nothing for a canary to protect.
            first = self._canaries(units, seen) if self.canary and len(nodes) > 1 else []
            if first:
                waves.append(_wave(first, CANARY))
            waves += [_wave(batch, BATCH) for batch in _batches([u for u in units if u not in first], size)]
        return tuple(waves)

    def _stage(self, node: str) -> int:
        return self.stages.get(node, 0)

    def _units(self, nodes: Sequence[str]) -> list[tuple[str, ...]]:
        """Group nodes that stay together, ordered by their first node."""
        units: dict[tuple[str, str], list[str]] = {}
        for node in nodes:
            key = ("group", self.atomic[node]) if node in self.atomic else ("node", node)
            units.setdefault(key, []).append(node)
        return [tuple(unit) for unit in units.values()]

    def _canaries(self, units: Sequence[tuple[str, ...]], seen: set[str]) -> list[tuple[str, ...]]:
        """Return the units that go first, and add their kinds to `seen`."""
        first = [unit for unit in units if self.chosen.intersection(unit)]
        seen.update(self._kind(node) for unit in first for node in unit)
        for unit in units:
            kinds = {self._kind(node) for node in unit}
            if not kinds <= seen:
                first.append(unit)
                seen |= kinds
        return [unit for unit in units if unit in first]

    def _kind(self, node: str) -> str:
        return self.kinds.get(node, "")


def batch_size(wanted: Share | None, total: int) -> int:
    """Return the number of nodes per batch, for `total` nodes with work."""
    if wanted is None:
        wanted = Share(total) if total <= SMALL else Share(max(SMALL, Share(PART, True).of(total)))
    return max(1, wanted.of(total))


def _batches(units: Sequence[tuple[str, ...]], size: int) -> Iterator[list[tuple[str, ...]]]:
    """Fill batches with units in order; a unit larger than `size` gets its own batch."""
    batch: list[tuple[str, ...]] = []
    for unit in units:
        if batch and sum(map(len, batch)) + len(unit) > size:
            yield batch
            batch = []
        batch.append(unit)
    if batch:
        yield batch


def _wave(units: Sequence[tuple[str, ...]], kind: str) -> Wave:
    return Wave([node for unit in units for node in unit], kind, [unit for unit in units if len(unit) > 1])


def rollout(
    declared: Mapping[str, Mapping[str, Any]],
    described: Mapping[str, Mapping[str, Any]],
    *,
    size: Share | None = None,
    canary: bool = True,
) -> Rollout:
    """Return the inventory's rules for dividing its fleet.

    `declared`: each node's variables; `described`: `gpuprov_node` of each node that answered. Raises
    StackError if gpuprov_atomic cannot be followed.
    """
    stages = {node: int(given.get("gpuprov_wave") or 0) for node, given in declared.items()}
    atomic = {node: group for node, given in declared.items() if (group := _group(node, given)) is not None}
    _refuse_torn_groups(atomic, stages)
    return Rollout(
        size,
        canary,
        stages,
        {node: kind(what) for node, what in described.items()},
        atomic,
        frozenset(node for node, given in declared.items() if given.get("gpuprov_canary") is True),
    )


def kind(described: Mapping[str, Any]) -> str:
    """Return the kind that a canary represents: `h100-sxm on debian 13`."""
    system = described.get("os") or {}
    sku = (described.get("gpu") or {}).get("sku") or "unknown GPU"
    words = [sku, "on", system.get("id") or "unknown OS", system.get("version_id")]
    return " ".join(str(word) for word in words if word)


def _group(node: str, given: Mapping[str, Any]) -> str | None:
    """Return the node's group: the value of the variable that `gpuprov_atomic` names."""
    named = given.get("gpuprov_atomic")
    if named is None:
        return None
    value = given.get(str(named))
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "" or "{{" in str(value):
        raise StackError(
            f"{node}: gpuprov_atomic is {named!r}, and {named} is {value!r} there",
            f"give each of these nodes {named}: one plain text or number for those that stay together",
        )
    return f"{named}={value}"


def _refuse_torn_groups(atomic: Mapping[str, str], stages: Mapping[str, int]) -> None:
    by_group: dict[str, dict[int, list[str]]] = {}
    for node, group in atomic.items():
        by_group.setdefault(group, {}).setdefault(stages[node], []).append(node)
    for group, numbers in by_group.items():
        if len(numbers) > 1:
            stages_text = "; ".join(f"{number}: {fold(nodes)}" for number, nodes in sorted(numbers.items()))
            raise StackError(
                f"{group} must stay together (gpuprov_atomic), and its gpuprov_wave differs: {stages_text}",
                "give them one gpuprov_wave",
            )
