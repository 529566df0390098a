"""From a node that fails to a spare in its place: a hundred trials of `gpuprov watch`, as a distribution.

Ten light nodes in service and two spares (needs root). In each trial a node drawn from those in service loses
a GPU. The watch must drain it with its cause and put a spare into its partition, each exactly once and
nothing else; then the node is repaired and returned as a spare. One trial that is not right fails the part.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.costs import FailedError
from benchmarks.health_results import GPUS
from benchmarks.results import Finding, Options, Result, Table, number
from benchmarks.slurm_stub import PARTITION, Change
from benchmarks.watched_fleet import NOTE, WatchedFleet, watched
from provision.errors import ExitCode
from provision.remote.schedulers import PREFIX, Scheduler, chosen
from provision.up.watch import returning
from provision.up.watch.incidents import SPARE, Incident, Step

SERVING, SPARES, TRIALS, QUICK = 10, 2, 100, 3
POLICY = {"hourly": 1000, "return_hours": 0}  # more fail here than a real fleet should bear
MOMENTS = ("noticed", "drained", "a spare in the partition", "the spare takes jobs")
_SHARES = (("median", 0.5), ("90 %", 0.9), ("99 %", 0.99))


@dataclass(frozen=True)
class Trial:
    """One failed node: when its result said so (seconds since 1970), and what came of it."""

    node: str
    gpu: int
    at: float
    incident: Incident
    changes: tuple[Change, ...]

    @property
    def seconds(self) -> dict[str, float]:
        """From the fault to each of MOMENTS."""
        when = {change.kind: change.at for change in self.changes}
        moments = (self.incident.opened, when["drain"], when["join"], when["resume"])
        return dict(zip(MOMENTS, (moment - self.at for moment in moments), strict=True))

    def wrong(self, waiting: Sequence[str], rows: Mapping[str, Mapping[str, str]]) -> str:
        """What is not as it must be, or "". `waiting`: the spares before; `rows`: Slurm's nodes after."""
        one, spare = self.incident, self.incident.spare
        if (one.node, one.step) != (self.node, Step.REPAIR) or f"gpu{self.gpu} " not in one.cause:
            return f"the incident is of {one.node}: {one.step}: {one.cause}"
        if spare not in waiting:
            return f"{spare or 'no node'} took its place, and {', '.join(waiting)} waited"
        done = [(change.kind, change.node) for change in self.changes]
        if done != [("drain", self.node), ("mark", spare), ("join", spare), ("resume", spare)]:
            return f"Slurm was told {done}"
        reason = f"{PREFIX}{one.reason}"
        drained = {name: row["reason"] for name, row in rows.items() if "DRAIN" in row["state"]}
        left = {name: f"{PREFIX}{SPARE}" for name in waiting if name != spare}
        if drained != {self.node: reason, **left}:
            return f"out of service are {drained}"
        outside = [name for name, row in rows.items() if row["pool"] != PARTITION]
        return "" if sorted(outside) == sorted(left) else f"outside the partition are {outside}"


def measure(options: Options) -> Iterator[Finding]:
    count = QUICK if options.quick else TRIALS
    drawn = random.Random(count)  # noqa: S311 - nodes and moments, no secrets
    with watched(SERVING, SPARES, options.folder, POLICY) as fleet:
        scheduler = chosen.only(fleet.fleet, {})
        trials = [trial(fleet, scheduler, drawn, number + 1, count) for number in range(count)]
    times = {moment: sorted(one.seconds[moment] for one in trials) for moment in MOMENTS}
    what = f"the slowest of {count} failed nodes, from the fault to a spare that takes jobs"
    right = f"{SERVING} light nodes and {SPARES} spares; in each trial one drain and one join, and no other"
    yield Result("replace.slowest", what, "", (times[MOMENTS[-1]][-1],), right)
    yield Table(
        f"`gpuprov watch`, {count} nodes that failed one after the other: seconds since the fault",
        ("", "least", *(name for name, _ in _SHARES), "most"),
        tuple((moment, *map(number, distribution(times[moment]))) for moment in MOMENTS),
        (NOTE,),
    )


def distribution(values: Sequence[float]) -> tuple[float, ...]:
    """Least, median, 90 %, 99 % and most of sorted values; a share is the least that so many do not exceed.

    >>> distribution([1.0, 2.0, 3.0, 4.0])
    (1.0, 2.5, 4.0, 4.0, 4.0)
    """
    shares = [
        statistics.median(values) if share == 0.5 else values[-int(-len(values) * share // 1) - 1]
        for _, share in _SHARES
    ]
    return (values[0], *shares, values[-1])


def trial(fleet: WatchedFleet, scheduler: Scheduler, drawn: random.Random, number: int, count: int) -> Trial:
    """A node fails, and comes back as a spare. Raises FailedError for one that is not right."""
    time.sleep(drawn.uniform(0.0, 2.0))  # at any moment between two of the watch's own looks
    rows = fleet.slurm.nodes()
    waiting = [name for name, row in rows.items() if "DRAIN" in row["state"]]
    node, gpu = drawn.choice([name for name in rows if name not in waiting]), drawn.randrange(GPUS)
    known, before = len(fleet.store.incidents()), len(fleet.slurm.changes())
    at = fleet.results.write(node, lost=gpu)

    def ended() -> bool:
        newest = fleet.newest()
        return len(fleet.store.incidents()) > known and newest is not None and not newest.is_open

    fleet.until(ended, f"{node} is replaced")
    incidents = fleet.store.incidents()
    one = Trial(node, gpu, at, incidents[-1], tuple(fleet.slurm.changes()[before:]))
    wrong = one.wrong(waiting, fleet.slurm.nodes())
    if wrong or len(incidents) != known + 1:
        raise FailedError(f"trial {number}: {node}: {wrong or 'more than one incident'}")
    shown = one.seconds[MOMENTS[-1]]
    print(f"    {number} of {count}: {node}, {one.incident.spare} after {shown:.1f} s", file=sys.stderr)
    bring_back(fleet, scheduler, one)
    return one


def bring_back(fleet: WatchedFleet, scheduler: Scheduler, one: Trial) -> None:
    """As a person does after the repair: out of the partition, and `gpuprov return`. Its parts (`up`,
    `validate`, a burn-in) have nothing to do on a light node, and count as passed."""
    fleet.results.write(one.node)
    fleet.slurm.update({"PartitionName": PARTITION, "Nodes-": one.node})

    def passed(_part: str) -> int:
        return ExitCode.OK

    def quiet(_line: str) -> None: ...

    code = returning.bring_back(one.incident, fleet.store, scheduler, passed, time.time, quiet)
    row = fleet.slurm.nodes()[one.node]
    if code != ExitCode.OK or row != {"state": "IDLE+DRAIN", "reason": f"{PREFIX}{SPARE}", "pool": ""}:
        raise FailedError(f"{one.node} did not come back as a spare: {row}")
