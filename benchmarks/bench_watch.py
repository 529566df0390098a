"""The reaction time of `gpuprov watch` to a fault among many nodes.

Light nodes (needs root), each with a new health result once a minute, are watched for ten minutes. Three lose
a GPU meanwhile; each must be drained and replaced by a spare, once.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

from benchmarks import health_results
from benchmarks.results import Options, Result
from benchmarks.substitution import MOMENTS, Substitution, substituted
from benchmarks.watched_fleet import WatchedFleet, watched

MINUTE, MINUTES = 60.0, 10
QUICK_MINUTE, QUICK_MINUTES = 5.0, 3
FAULTS = (2, 5, 8)  # the minutes at the start of which a node fails
SPARES = len(FAULTS) + 1
POLICY = {"share": 100}  # so that a small fleet can be measured, too


def measure(options: Options) -> Iterator[Result]:
    with watched(options.nodes, SPARES, options.folder, POLICY) as fleet:
        faults = _faults(fleet, options.quick)
        memory = fleet.memory
    what = f"`gpuprov watch` of {options.nodes:,} nodes and {SPARES} spares"
    slowest = max(one.seconds[MOMENTS[-1]] for one in faults)
    yield Result(
        "watch.acted",
        f"{what}, from a node's health result to a spare that takes jobs, the slowest of {len(faults)}",
        "",
        (slowest,),
        f"Nodes: {fleet.nodes.kind}",
    )
    about = f"{what}, the most memory of its process, without those of the checks that it starts"
    yield Result("watch.memory", about, "", (memory,))


def _faults(fleet: WatchedFleet, quick: bool) -> list[Substitution]:
    """Break nodes at the planned minutes and return their substitutions."""
    minute, count = (QUICK_MINUTE, QUICK_MINUTES) if quick else (MINUTE, MINUTES)
    drawn = random.Random(count)  # noqa: S311 - nodes, no secrets
    failing = dict(zip(FAULTS, drawn.sample(fleet.serving, len(FAULTS)), strict=True))
    faults: list[Substitution] = []
    for at in range(count):
        began = time.monotonic()
        if at in failing:
            faults.append(substituted(fleet, failing[at], drawn.randrange(health_results.GPUS)))
        time.sleep(max(0.0, began + minute - time.monotonic()))
        print(f"    minute {at + 1} of {count}", file=sys.stderr, flush=True)
    return faults
