"""From a node that fails to a spare in its place: a hundred trials of `gpuprov watch`, as a distribution.

Ten light nodes in service and two spares (needs root). In each trial a node drawn from those in service loses
a GPU. The watch must drain it with its cause and put a spare into its partition, each exactly once and
nothing else; then the node is repaired and returned as a spare. One trial that is not right fails the part.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks.costs import FailedError
from benchmarks.health_results import GPUS
from benchmarks.results import Finding, Options, Result, Table, number
from benchmarks.slurm_stub import PARTITION
from benchmarks.substitution import MOMENTS, Substitution, substituted, waiting
from benchmarks.watched_fleet import NOTE, WatchedFleet, watched
from provision.errors import ExitCode
from provision.remote.schedulers import PREFIX, Scheduler, chosen
from provision.up.watch import returning
from provision.up.watch.incidents import SPARE

SERVING, SPARES, TRIALS, QUICK = 10, 2, 100, 3
POLICY = {"hourly": 1000, "return_hours": 0}  # more fail here than a real fleet should bear
_RETURN = (
    "After each trial the node is taken out of the partition, and comes back as a spare by what `gpuprov "
    "return` does, whose parts (`up`, `validate`, a burn-in) count as passed."
)
_SHARES = (("median", 0.5), ("90 %", 0.9), ("99 %", 0.99))


def measure(options: Options) -> Iterator[Finding]:
    count = QUICK if options.quick else TRIALS
    drawn = random.Random(count)  # noqa: S311 - nodes and moments, no secrets
    with watched(SERVING, SPARES, options.folder, POLICY) as fleet:
        scheduler, _ = chosen.only(fleet.fleet, {})
        trials = []
        for turn in range(1, count + 1):
            time.sleep(drawn.uniform(0.0, 2.0))  # at any moment between two of the watch's own looks
            rows = fleet.slurm.nodes()
            node = drawn.choice([name for name in rows if name not in waiting(rows)])
            trials.append(one := substituted(fleet, node, drawn.randrange(GPUS)))
            after = f"{one.incident.spare} after {one.seconds[MOMENTS[-1]]:.1f} s"
            print(f"    {turn} of {count}: {node}, {after}", file=sys.stderr, flush=True)
            bring_back(fleet, scheduler, one)
    times = {moment: sorted(one.seconds[moment] for one in trials) for moment in MOMENTS}
    what = f"the slowest of {count} failed nodes, from the fault to a spare that takes jobs"
    right = f"{SERVING} light nodes and {SPARES} spares; in each trial one drain and one join, and no other"
    yield Result("replace.slowest", what, "", (times[MOMENTS[-1]][-1],), right)
    yield Table(
        f"`gpuprov watch`, {count} nodes that failed one after the other: seconds since the fault",
        ("", "least", *(name for name, _ in _SHARES), "most"),
        tuple((moment, *map(number, distribution(times[moment]))) for moment in MOMENTS),
        (NOTE, _RETURN),
    )


def distribution(values: Sequence[float]) -> tuple[float, ...]:
    """Least, median, 90 %, 99 % and most of sorted values; a share is the least that so many do not exceed.

    >>> distribution([1.0, 2.0, 3.0, 4.0])
    (1.0, 2.5, 4.0, 4.0, 4.0)
    """
    shares = [
        statistics.median(values) if share == 0.5 else values[math.ceil(len(values) * share) - 1]
        for _, share in _SHARES
    ]
    return (values[0], *shares, values[-1])


def bring_back(fleet: WatchedFleet, scheduler: Scheduler, one: Substitution) -> None:
    """As a person does after the repair. Raises FailedError when the node is no spare then."""
    fleet.results.write(one.node)
    fleet.slurm.update({"PartitionName": PARTITION, "Nodes-": one.node})

    def passed(_part: str) -> int:
        return ExitCode.OK

    def quiet(_line: str) -> None: ...

    code = returning.bring_back(one.incident, fleet.store, scheduler, passed, time.time, quiet)
    row = fleet.slurm.nodes()[one.node]
    if code != ExitCode.OK or row != {"state": "IDLE+DRAIN", "reason": f"{PREFIX}{SPARE}", "pool": ""}:
        raise FailedError(f"{one.node} did not come back as a spare: {row}")
