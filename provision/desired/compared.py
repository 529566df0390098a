"""Facts that should be equal on nodes of one kind, from provision/data/majority.yml."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision import shipped
from provision.errors import StackError

_KEYS = frozenset({"fact", "from", "pick", "per", "within", "declared_as", "vendor", "why"})


@dataclass(frozen=True)
class ComparedFact:
    """One fact that nodes of a kind share.
    `source`: the observed fact to read it from; `pick`: the key in its entries; `per`: what an entry stands
    for (GPU, card); `within`: the facts in which nodes must agree to be compared; a node that declares one of
    `declared_by` is not compared. `vendor`: only nodes with this vendor's GPUs need it; empty: all do."""

    fact: str
    source: str
    pick: str | None
    per: str
    within: tuple[str, ...]
    declared_by: frozenset[str]
    why: str
    vendor: str = ""

    def value(self, facts: Mapping[str, Any]) -> Any:
        """Return a node's value: a scalar, or a list if its GPUs (cards) differ; None if it is unknown."""
        observed = facts.get(self.source)
        if self.pick is not None and isinstance(observed, list):
            observed = [entry.get(self.pick) if isinstance(entry, dict) else None for entry in observed]
            if self.source == "firmware.rdma":  # software devices have no board
                observed = [value for value in observed if value is not None]
        if self.per == "GPU" and isinstance(observed, list):
            if not observed or None in observed:
                return None
            return observed[0] if all(value == observed[0] for value in observed) else observed
        return observed


@functools.cache
def compared_facts() -> Mapping[str, ComparedFact]:
    """Return every compared fact by name. Raises StackError on a bad data file."""
    file = shipped.file_of("majority")
    data = shipped.load("majority", StackError)
    facts: dict[str, ComparedFact] = {}
    for entry in data if isinstance(data, list) else [None]:
        if not isinstance(entry, dict) or not {"fact", "why"} <= entry.keys() <= _KEYS:
            raise StackError(f"{file}: not an entry: {entry!r}", "the head of the file lists the valid keys")
        fact = str(entry["fact"])
        source = str(entry.get("from", fact))
        facts[fact] = ComparedFact(
            fact=fact,
            source=source,
            pick=entry.get("pick"),
            per=str(entry.get("per", "")),
            within=tuple(entry.get("within", ())),
            declared_by=frozenset({fact, source, *entry.get("declared_as", ())}),
            why=str(entry["why"]),
            vendor=str(entry.get("vendor", "")),
        )
    return facts


@functools.cache
def facts_to_ask(vendor: str = "") -> frozenset[str]:
    """Return the observed facts that the comparison needs from every node.
    With `vendor`, return the facts that it needs in addition from a node with this vendor's GPUs."""
    facts = {name: fact for name, fact in compared_facts().items() if fact.vendor == vendor}
    within = {name for fact in facts.values() for name in fact.within if name not in compared_facts()}
    return frozenset({fact.source for fact in facts.values()} | within)
