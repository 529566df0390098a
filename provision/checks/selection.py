"""Selection of the checks of a run, in the order they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from provision.checks.registry import CHECKS, PAIRS
from provision.checks.table import STAGES, Entry
from provision.errors import UsageError


def table() -> dict[str, Entry]:
    """Every check's line of the table: of nodes in the order they run, then of several nodes."""
    return CHECKS.entries | PAIRS.entries


def select(stage: str, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The checks to run, in the order they run. `names` wins over `stage`; raises UsageError on an unknown
    one.
    """
    every = table()
    unknown = [name for name in names if name not in every]
    if unknown:
        raise UsageError(f"unknown check {unknown[0]!r}", f"the checks are {', '.join(every)}")
    stages = STAGES[: STAGES.index(stage) + 1]
    return tuple(name for name, one in every.items() if (name in names if names else one.stage in stages))


def of_nodes(asked: Iterable[str]) -> tuple[str, ...]:
    """Those of these checks that look at one node at a time."""
    return tuple(name for name in asked if name not in PAIRS)


def facts_for(asked: Iterable[str]) -> frozenset[str]:
    """The facts that these checks read: the look before them asks for all at once."""
    every = table()
    return frozenset(fact for name in asked for fact in getattr(every[name].load(), "FACTS", ()))


def of_pairs(asked: Iterable[str]) -> tuple[str, ...]:
    """Those of these checks that look at nodes together, in the order they run."""
    wanted = set(asked)
    return tuple(name for name in PAIRS if name in wanted)
