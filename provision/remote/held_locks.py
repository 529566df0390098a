"""The locks that this process holds on nodes, and what a worker needs to confirm them while it works there.

Beside fleet_lock.py, which imports what workers are reached by.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

# Of these nodes, those whose lock somebody holds (`nodes`), with what a lock says of its holder.
Lend = Callable[[Collection[str]], Mapping[str, Any]]
_holders: list[Lend] = []


@contextlib.contextmanager
def lent(lend: Lend) -> Iterator[None]:
    """Locks are held in this block, and `lend` says which."""
    _holders.append(lend)
    try:
        yield
    finally:
        _holders.remove(lend)


def of(nodes: Collection[str]) -> list[Mapping[str, Any]]:
    """What is lent of these nodes' locks, as plain data: FleetLock.borrowed takes it."""
    return [said for lend in list(_holders) if (said := lend(nodes))["nodes"]]
