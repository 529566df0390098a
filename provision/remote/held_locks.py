"""Locks that this process holds on nodes, and the data with which a worker renews them.

Separate from fleet_lock.py, which imports the connections to workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

# Takes nodes; returns their held locks (`nodes`) with the holder's data.
Lend = Callable[[Collection[str]], Mapping[str, Any]]
_holders: list[Lend] = []


@contextlib.contextmanager
def lent(lend: Lend) -> Iterator[None]:
    """Register `lend`, which describes held locks, within the `with` block."""
    _holders.append(lend)
    try:
        yield
    finally:
        _holders.remove(lend)


def of(nodes: Collection[str]) -> list[Mapping[str, Any]]:
    """Return the held locks of these nodes as plain data for FleetLock.borrowed."""
    return [said for lend in list(_holders) if (said := lend(nodes))["nodes"]]
