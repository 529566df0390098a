"""What several processes that ask cost and gain: `observe` with one and with more, on the same light nodes.

CPU of this machine's side (all its processes, none of the nodes') in total, which should be about equal, and
wall time. Nodes live on this machine and share its cores: only nodes that are far away (a delay in each
direction, so that both sides wait) leave any to gain from, and no more than there are. Those need root.

    python -m benchmarks.bench_processes [--nodes 100] [--rounds 5]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.costs import cost_of
from benchmarks.light_nodes import light_nodes
from benchmarks.nodes import FailedError, fleet
from benchmarks.results import Finding, Options, Result, Rounds, Table, alone, number, spread
from provision.remote.ssh.fanout import VARIABLE

ROOT = Path(__file__).resolve().parent.parent
TIMES = 5  # as many nodes as the other parts are asked to take: 500 instead of 100
DELAY = 0.1  # seconds in each direction of the nodes that are far away
PROCESSES = (1, 2, 4)
# Which nodes did not answer, and what the parent alone spent: it takes all answers.
PROGRAM = """\
import json, sys, time
from pathlib import Path
from provision.desired import inventory
from provision.remote.observe import observe
nodes = list(inventory.load(Path(sys.argv[1])).nodes.values())
began, before = time.perf_counter(), time.process_time()
found = observe(nodes, {}, timeout=300)
wall, parent = time.perf_counter() - began, time.process_time() - before
silent = {name: seen.error for name, seen in found.items() if seen.error is not None}
print(json.dumps({"silent": silent, "wall": wall, "parent": parent}))
"""


def measure(options: Options) -> Iterator[Finding]:
    count = options.nodes if options.quick else TIMES * options.nodes
    several = PROCESSES[:2] if options.quick else PROCESSES
    rows: list[tuple[str, ...]] = []
    with fleet(count) as nodes:
        yield from _compared(options, "near", count, several, nodes.inventory(options.folder), rows)
    if os.geteuid() == 0:
        with light_nodes(count, delay=DELAY) as far:
            place = f"far away ({DELAY} s each way)"
            yield from _compared(options, place, count, several, far.inventory, rows)
    cores = len(os.sched_getaffinity(0))
    head = ("nodes, processes", "controller s", "ms a node", "of it the parent's ms", "wall s")
    note = (
        f"{cores} cores, which nodes and controller share: near nodes take most of them, so their wall time "
        "says little of what processes gain. The parent takes and parses every answer: its share bounds what "
        "any number of them can gain."
    )
    yield Table(f"Asking {count:,} nodes from several processes", head, tuple(rows), (note,))


def _compared(
    options: Options,
    place: str,
    count: int,
    several: Sequence[int],
    inventory: Path,
    rows: list[tuple[str, ...]],
) -> Iterator[Finding]:
    """One process and more on the same nodes, in turns; adds a row for each to `rows`."""
    cpu, wall, parent = Rounds(), Rounds(), Rounds()
    for _ in range(options.rounds):
        for processes in several:
            environment = {"PYTHONPATH": str(ROOT), VARIABLE: str(processes)}
            cost = cost_of([sys.executable, "-c", PROGRAM, inventory], environment=environment)
            if cost.code:
                raise FailedError(f"observe with {processes} processes: {cost.last_words}")
            said = json.loads(cost.output)
            if said["silent"]:
                raise FailedError(f"{processes} processes: nodes did not answer: {said['silent']}")
            cpu.add(str(processes), cost.controller)
            wall.add(str(processes), said["wall"])
            parent.add(str(processes), said["parent"])
    for processes in several[1:]:
        for what, rounds in (("CPU", cpu), ("wall time", wall)):
            done = f"`observe` of {count:,} nodes {place} by {processes} processes, {what}"
            yield Result("", done, "one process", rounds.ratios(str(processes), "1"))
    rows += [
        (
            f"{place}, {processes}",
            spread(tuple(cpu.costs[str(processes)])),
            number(cpu.median(str(processes)) / count * 1000),
            number(parent.median(str(processes)) / count * 1000),
            spread(tuple(wall.costs[str(processes)])),
        )
        for processes in several
    ]


if __name__ == "__main__":
    sys.exit(alone(measure, __doc__ or ""))
