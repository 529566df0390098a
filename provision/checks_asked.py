"""Selection of the checks of a run, in the order they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from provision import checks
from provision.checks.modules import Modules, Place
from provision.errors import UsageError

STAGES = ("quick", "standard", "burnin")
# Checks of nodes together: asked for by name, or by --pairs and --group.
PAIRS = Modules(
    {
        "pair_bandwidth": Place("provision.pairs.write_bw", "pairs"),
        "pair_latency": Place("provision.pairs.write_lat", "pairs"),
        "nccl_pair": Place("provision.pairs.nccl_pair", "by name"),
        "nccl_group": Place("provision.pairs.nccl_group", "group"),
    }
)


def known() -> dict[str, Any]:
    """Every check by name: of nodes in the order they run, then of pairs."""
    return {**checks.CHECKS, **PAIRS}


def select(stage: str, names: Sequence[str] = ()) -> tuple[str, ...]:
    """The checks to run, in the order they run. `names` wins over `stage`; raises UsageError on an unknown
    one.
    """
    every = {**checks.CHECKS.stages, **PAIRS.stages}
    unknown = [name for name in names if name not in every]
    if unknown:
        raise UsageError(f"unknown check {unknown[0]!r}", f"the checks are {', '.join(every)}")
    stages = STAGES[: STAGES.index(stage) + 1]
    return tuple(name for name in every if (name in names if names else every[name] in stages))


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
