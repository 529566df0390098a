"""Which nodes are done together, and in which order (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby


def make(nodes: Sequence[str], size: int | None, first: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    """Waves of at most `size` nodes (None: no limit). Nodes of a lower number in `first` come first, and
    never share a wave with those of a higher one."""

    def number(node: str) -> int:
        return first.get(node, 0)

    waves = []
    for _number, members in groupby(sorted(nodes, key=number), key=number):
        together = tuple(members)
        step = size or len(together)
        waves += [together[start : start + step] for start in range(0, len(together), step)]
    return tuple(waves)
