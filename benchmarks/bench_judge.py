"""What judging a fleet costs: `gpuprov report --rejudge` of 8-GPU nodes after a full campaign.

Each node's raw output (about 450 KB) is read, understood and judged, then the nodes against each other, and
report.json is written. Every figure is of a fresh command with all its processes: their CPU, and the most
memory that they had together (proportional set size, looked at four times a second). The floor of a round is
`json.loads` of the report that came out, a node at a time: the least that whoever reads the measurements must
do, without the raw output they come from. Nodes of two products are simulated, measured for real, then
repeated (raw_fleet.py); one in a hundred is bad, some are silent.

10,000 nodes are judged once, for their memory: a quarter of an hour of one core, and 6 GB of disk.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import raw_fleet, report_fleet
from benchmarks.costs import FailedError, environment, gpuprov
from benchmarks.detection.trial import OWN_LIMITS
from benchmarks.results import Finding, Options, Result, Rounds, Table, number

SIZES = (100, 1_000, 10_000)
SKUS = ("h100-sxm", "b200")
TIMEOUT = 7200
MOST = 3  # rounds: a thousand nodes take minutes


def measure(options: Options) -> Iterator[Finding]:
    """Fleets of several sizes; `--quick`: one, of few nodes."""
    if options.quick:
        made = raw_fleet.templates(SKUS[:1], good=1, faults=report_fleet.FAULTS[:1])
    else:
        made = raw_fleet.templates(SKUS)
    rows = []
    for size in (options.nodes,) if options.quick else SIZES:
        large = size == max(SIZES)  # what the goal is about
        folder = options.folder / str(size)
        run = raw_fleet.write(folder / "20260504T100000.000Z-validate", size, made)
        taken, most = judged(run, 1 if large else min(options.rounds, MOST))
        shutil.rmtree(folder)
        ratios = taken.ratios("rejudge", "json.loads")
        yield Result("", f"report --rejudge of {size:,} nodes, CPU", "json.loads of the report", ratios)
        memory = tuple(most.costs["rejudge"])
        yield Result("judge.memory" if large else "", f"the same, memory in MB, {size:,} nodes", "", memory)
        cpu = taken.median("rejudge")
        rows.append(
            (f"{size:,} nodes", number(cpu), number(1000 * cpu / size), number(most.median("rejudge")))
        )
    yield Table(
        "report --rejudge, all its processes", ("", "CPU s", "CPU ms a node", "MB at most"), tuple(rows)
    )


def judged(run: Path, rounds: int) -> tuple[Rounds, Rounds]:
    """CPU seconds, and MB, of judging this run and of the floor, in turns."""
    taken, most, out = Rounds(), Rounds(), run.parent / "out"
    words = ("--rejudge", "--thresholds", str(OWN_LIMITS), "--format", "json", "--output", str(out))
    commands = {
        "rejudge": gpuprov("report", str(run), *words),
        "json.loads": report_fleet.floor(out / "report.json"),
    }
    for _ in range(rounds):
        for name, command in commands.items():
            cpu, memory = cost(command, run.parent)
            taken.add(name, cpu)
            most.add(name, memory)
    return taken, most


def cost(command: list[str], folder: Path) -> tuple[float, float]:
    """(CPU seconds, MB) of one command with its processes. Raises FailedError when it fails."""
    around = {**os.environ, **environment(folder)}
    before, most, deadline = _spent(), 0.0, time.monotonic() + TIMEOUT
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, env=around) as process:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    process.kill()
                most = max(most, _memory(process.pid))
                time.sleep(0.25)
        said.seek(0)
        if process.returncode not in (0, 3, 5):
            raise FailedError(f"{' '.join(command)}: {said.read()[-2000:]}")
    return _spent() - before, most


def _spent() -> float:
    """CPU seconds of all processes that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _memory(process: int) -> float:
    """MB that a process and those it started have together: what they share is counted once."""
    with contextlib.suppress(OSError):  # it has ended
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        own = next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
        started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return own / 1024 + sum(map(_memory, map(int, started)))
    return 0.0
