"""Time from a node's failure to a spare in its place: the slowest of 100 trials of `gpuprov watch`.

Ten light nodes in service and two spares (needs root). In each trial a random node in service loses a GPU.
The watch must drain it with its cause and put a spare into its partition, each exactly once and nothing else;
then the node is repaired and returned as a spare. A single wrong trial fails the part.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

from benchmarks.costs import FailedError
from benchmarks.health_results import GPUS
from benchmarks.results import Options, Result
from benchmarks.slurm_stub import PARTITION
from benchmarks.substitution import MOMENTS, Substitution, substituted, waiting
from benchmarks.watched_fleet import WatchedFleet, watched
from provision.errors import ExitCode
from provision.remote.schedulers import PREFIX, Scheduler, chosen
from provision.up.watch import returning
from provision.up.watch.incidents import SPARE

SERVING, SPARES, TRIALS, QUICK = 10, 2, 100, 3
WAITS = {"state": "IDLE+DRAIN", "reason": f"{PREFIX}{SPARE}", "pool": "", "comment": ""}
# More nodes fail here than a real fleet should tolerate.
POLICY = {"hourly": 1000, "rack_hourly": 1000, "breaker_nodes": 1000, "return_hours": 0}


def measure(options: Options) -> Iterator[Result]:
    count = QUICK if options.quick else TRIALS
    drawn = random.Random(count)  # noqa: S311 - nodes and moments, no secrets
    with watched(SERVING, SPARES, options.folder, POLICY) as fleet:
        scheduler, _ = chosen.only(fleet.fleet, {})
        trials = []
        for turn in range(1, count + 1):
            time.sleep(drawn.uniform(0.0, 2.0))  # hits any moment between two polls of the watch
            rows = fleet.slurm.nodes()
            node = drawn.choice([name for name in rows if name not in waiting(rows)])
            trials.append(one := substituted(fleet, node, drawn.randrange(GPUS)))
            after = f"{one.incident.spare} after {one.seconds[MOMENTS[-1]]:.1f} s"
            print(f"    {turn} of {count}: {node}, {after}", file=sys.stderr, flush=True)
            bring_back(fleet, scheduler, one)
    slowest = max(one.seconds[MOMENTS[-1]] for one in trials)
    what = f"the slowest of {count} failed nodes, from the fault to a spare that takes jobs"
    right = f"{SERVING} light nodes and {SPARES} spares; in each trial one drain and one join, and no other"
    yield Result("replace.slowest", what, "", (slowest,), right)


def bring_back(fleet: WatchedFleet, scheduler: Scheduler, one: Substitution) -> None:
    """Return a repaired node as an operator would; `up`, `validate` and the burn-in count as passed.
    Raises FailedError unless the node is a spare afterwards."""
    fleet.results.write(one.node)
    fleet.slurm.update({"PartitionName": PARTITION, "Nodes-": one.node})

    def passed(_part: str) -> int:
        return ExitCode.OK

    def quiet(_line: str) -> None: ...

    code = returning.bring_back(one.incident, fleet.store, scheduler, passed, time.time, quiet)
    row = fleet.slurm.nodes()[one.node]
    if code != ExitCode.OK or {**row, "comment": ""} != WAITS:
        raise FailedError(f"{one.node} did not come back as a spare: {row}")
