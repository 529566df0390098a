"""Asks many nodes at once, one round trip each; facts come back. The program that runs there is node/observe.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.inventory import Node


@dataclass(frozen=True)
class Observation:
    """What one node answered.

    `facts`: dotted name → value, for all that could be read. `problems`: dotted name (or probe) → why it could not.
    `error`: the node as a whole could not be asked (unreachable, wrong key, sudo refused, cut answer): one line with
    cause and next step; then `facts` is empty. `unreachable` tells a silent node from one that answered badly.
    """

    node: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None
    unreachable: bool = False
    seconds: float = 0.0


def observe(
    nodes: Collection[Node],
    ask: Mapping[str, Collection[str]],
    *,
    timeout: float = 60.0,
    connections: int = 64,
    on_done: Callable[[Observation], None] | None = None,
) -> dict[str, Observation]:
    """Observe `nodes` concurrently; `ask` maps node name → fact names (base facts are always returned too).

    Never raises for a node: its trouble is in its Observation. Always returns one per node, within `timeout` seconds
    for each.
    """
    raise NotImplementedError
