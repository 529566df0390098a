"""What `gpuprov watch` costs the controller, and how soon it acts on a fault among many nodes.

Light nodes (needs root), each with a new health result once a minute, are watched for ten minutes. CPU of the
watch and of all that it starts, minute by minute, against F, `xargs -P ssh host true`, taken before. Three
nodes lose a GPU meanwhile: each must be drained, and a spare take its place, once.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks import health_results
from benchmarks.costs import FailedError, cost_of
from benchmarks.light_nodes import below, cpu_of, memory_of
from benchmarks.nodes import in_parallel, light
from benchmarks.peers.contender import CONNECTIONS
from benchmarks.results import Finding, Options, Result, Table, number, spread
from benchmarks.substitution import MOMENTS, Substitution, substituted
from benchmarks.watched_fleet import NOTE, WatchedFleet, watched

MINUTE, MINUTES = 60.0, 10
QUICK_MINUTE, QUICK_MINUTES = 5.0, 3
FLOORS = 3  # rounds of F
FAULTS = (2, 5, 8)  # the minutes at whose beginning a node fails
SPARES = len(FAULTS) + 1
POLICY = {"share": 100}  # so that few nodes can be measured, too


def measure(options: Options) -> Iterator[Finding]:
    floor = _floor(options)
    with watched(options.nodes, SPARES, options.folder, POLICY) as fleet:
        meter = Meter(fleet.watching.pid)
        minutes, faults = _minutes(fleet, meter, options.quick)
    count = options.nodes + SPARES
    ratios = tuple(cpu / count / floor for cpu in minutes)
    what = f"`gpuprov watch` of {options.nodes:,} nodes and {SPARES} spares"
    slowest = max(one.seconds[MOMENTS[-1]] for one in faults)
    yield Result(
        "watch.acted",
        f"{what}, from a node's health result to a spare that takes jobs, the slowest of {len(faults)}",
        "",
        (slowest,),
        f"Nodes: {fleet.nodes.kind}",
    )
    yield Result(
        "",
        f"{what}, a minute with a new result of each node; {len(faults)} of {len(minutes)} with a fault",
        "`ssh host true`",
        ratios,
        f"{number(floor * 1000)} ms of CPU for `ssh host true`. Memory of the largest process: "
        f"{number(meter.memory)} MB. It had a result of each node after {number(fleet.start)} s.",
    )
    each = tuple(cpu / count * 1000 for cpu in minutes)
    yield Table(
        f"{what}, for {len(minutes)} minutes: seconds since the fault",
        ("", *MOMENTS),
        tuple((one.node, *(number(one.seconds[moment]) for moment in MOMENTS)) for one in faults),
        (f"Controller CPU of a node's minute: {spread(each)} ms.", NOTE),
    )


def _floor(options: Options) -> float:
    """CPU seconds of `ssh host true` on one node."""
    costs = []
    with light(options.nodes, own=health_results.FOLDER) as nodes:
        for _ in range(min(options.rounds, FLOORS)):
            cost = cost_of(in_parallel(nodes, ["true"], CONNECTIONS, options.folder), nodes=nodes)
            if cost.code:
                raise FailedError(f"ssh host true ended with {cost.code}: {cost.last_words}")
            costs.append(cost.controller / options.nodes)
    return statistics.median(costs)


class Meter:
    """CPU seconds of a process and of all that it starts, and the memory in MB of the largest of them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.memory = 0.0

    def look(self) -> None:
        """See how much memory there is in use; call it often enough to meet what does not run for long."""
        self.memory = max(self.memory, *map(memory_of, below(self._pid)))

    def cpu(self) -> float:
        return sum(map(cpu_of, below(self._pid)))


def _minutes(fleet: WatchedFleet, meter: Meter, quick: bool) -> tuple[Sequence[float], list[Substitution]]:
    """CPU seconds of each minute, and what came of the faults."""
    minute, count = (QUICK_MINUTE, QUICK_MINUTES) if quick else (MINUTE, MINUTES)
    drawn = random.Random(count)  # noqa: S311 - nodes, no secrets
    failing = dict(zip(FAULTS, drawn.sample(fleet.serving, len(FAULTS)), strict=True))
    spent: list[float] = []
    faults: list[Substitution] = []
    for at in range(count):
        began, cpu = time.monotonic(), meter.cpu()
        if at in failing:
            faults.append(substituted(fleet, failing[at], drawn.randrange(health_results.GPUS), meter.look))
        while time.monotonic() < began + minute:
            meter.look()
            time.sleep(0.5)
        spent.append((meter.cpu() - cpu) / (time.monotonic() - began) * 60)
        print(f"    minute {at + 1} of {count}: {spent[-1]:.2f} s of CPU", file=sys.stderr, flush=True)
    return spent, faults
