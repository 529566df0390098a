"""Which checks a run is asked for, in the order they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from provision import checks
from provision.errors import UsageError
from provision.pairs import nccl_group, nccl_pair, write_bw, write_lat

STAGES = ("quick", "standard", "burnin")
# Checks of nodes together: asked for by name, or by --pairs and --group.
PAIRS = {check.ID: check for check in (write_bw, write_lat, nccl_pair, nccl_group)}


def known() -> dict[str, Any]:
    """Every check by name: of nodes in the order they run, then of pairs."""
    return {**{name: checks.CHECKS[name] for name in checks.CHECKS}, **PAIRS}


def select(stage: str, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The checks to run, in the order they run. `names` wins over `stage`; raises UsageError on an unknown
    one.
    """
    every = known()
    unknown = [name for name in names if name not in every]
    if unknown:
        raise UsageError(f"unknown check {unknown[0]!r}", f"the checks are {', '.join(every)}")
    stages = STAGES[: STAGES.index(stage) + 1]
    return tuple(name for name, check in every.items() if (name in names if names else check.STAGE in stages))


def of_nodes(asked: Iterable[str]) -> tuple[str, ...]:
    """Those of these checks that look at one node at a time."""
    return tuple(name for name in asked if name not in PAIRS)


def facts_for(asked: Iterable[str]) -> frozenset[str]:
    """The facts that these checks read: the look before them asks for all at once."""
    every = known()
    return frozenset(fact for name in asked for fact in getattr(every[name], "FACTS", ()))


def of_pairs(asked: Iterable[str]) -> tuple[str, ...]:
    """Those of these checks that look at nodes together, in the order they run."""
    wanted = set(asked)
    return tuple(name for name in PAIRS if name in wanted)
