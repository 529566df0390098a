"""What a look at 100,000 nodes takes behind 40 workers in 8 regions, and what is lost when a region is dark.

The controller's own code (observe, and all of remote/workers on the controller) drives simulated workers over
a simulated network, in virtual time (benchmarks/mesh): an hour of it takes a minute. Each run is a fresh
process. A node without a true result, or one that two workers have touched at the same time, fails the part.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.costs import ROOT, FailedError
from benchmarks.mesh.look import DARK, DEAD, EACH, REGIONS, SLOW_ONES, Looked, Scenario
from benchmarks.results import Finding, Options, Result, Table, number

SIZES, QUICK = (1_000, 10_000, 30_000, 100_000), (200, 400)
DIES = 10_000  # nodes where a worker dies
TIMEOUT = 3600
WELL, DARK_REGION = "no trouble", "a region dark for ten minutes"
ALONE = "the same, and nobody else reaches its nodes"
DEATH = "a worker dies for good"
_FLEET = f"{REGIONS * EACH} workers in {REGIONS} regions"


def measure(options: Options) -> Iterator[Finding]:
    sizes = QUICK if options.quick else SIZES
    largest = max(sizes)
    wanted = [(WELL, Scenario(size)) for size in sizes]
    wanted += [(DARK_REGION, Scenario(size, dark=True)) for size in sizes]
    wanted += [
        (ALONE, Scenario(largest, dark=True, both=False)),
        (DEATH, Scenario(min(DIES, largest), dies=True)),
    ]
    found: dict[tuple[str, int], Looked] = {}
    for what, scenario in sorted(wanted, key=lambda one: one[1].nodes):
        folder = options.folder / str(len(found))
        folder.mkdir()
        found[what, scenario.nodes] = one = in_a_process(scenario, folder)
        print(
            f"    {scenario.nodes:,} nodes, {what}: {one.seconds:.0f} s, {one.cpu:.1f} s of CPU",
            file=sys.stderr,
        )
        right(one, f"{scenario.nodes:,} nodes, {what}")

    worst = found[DARK_REGION, largest]
    what = f"{largest:,} nodes, {_FLEET}"
    true = 100.0 * (largest - worst.lost) / largest
    yield Result("mesh.results", f"{what}, {DARK_REGION}", "", (true,), "Virtual time, real code")
    middle = sizes[1]
    growth = (found[WELL, largest].cpu / largest) / (found[WELL, middle].cpu / middle)
    if not options.quick:
        yield Result("mesh.growth", f"{what}, {WELL}", f"{middle:,} nodes", (growth,))
    yield _costs(found)


def in_a_process(scenario: Scenario, folder: Path) -> Looked:
    """What a look in a fresh process came to."""
    program = f"from benchmarks.mesh.look import main; main({asdict(scenario)!r}, {str(folder)!r})"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT)
    said: dict[str, Any] = json.loads(done.stdout)
    return Looked(**{**said, "curve": tuple((at, count) for at, count in said["curve"])})


def right(one: Looked, what: str) -> None:
    """Raises FailedError where a result is lost, or nodes were not left alone by all but one."""
    if one.lost:
        raise FailedError(f"{what}: {one.lost} nodes have no true result")
    if one.together:
        raise FailedError(f"{what}: two workers were at work on {one.together} nodes at the same time")
    if one.left:
        raise FailedError(f"{what}: {one.left} units are left in the mesh")


def _costs(found: Mapping[tuple[str, int], Looked]) -> Table:
    rows = tuple(
        (
            f"{size:,} nodes, {what}",
            number(one.seconds),
            f"{one.unreached:,}",
            number(one.again) if one.unreached else "",
            f"{one.twice:,}",
            f"{one.lost:,}",
            f"{one.messages:,}",
            number(one.bytes / 1e6),
            number(one.cpu),
            number(one.cpu / size * 1000),
            number(one.memory),
        )
        for (what, size), one in found.items()
    )
    head = ("", "s", "not reached", "s again", "looked at twice", "lost", "messages", "MB", "CPU s")
    return Table(
        f"A look at a fleet behind {_FLEET}, simulated",
        (*head, "CPU ms a node", "peak MB"),
        rows,
        (
            "Real: the controller's code, from who does which node to the facts of each. Its CPU is that of "
            "this code alone; the memory is that of the process, the simulation in it. Simulated, in virtual "
            "time: Receptor, the network, the workers, the nodes.",
            f"Each node names the {EACH} workers of its region and those of the next one, but where nobody "
            f"else reaches it. A region goes dark for {DARK / 60:.0f} minutes when the first of its workers "
            "has looked at half of its nodes. `not reached`: nodes for which the look ends as `unreachable` "
            "and the name of their worker; when the region is back they are looked at again, for `s again`. "
            "`looked at twice`: by a worker that was cut off before it could say so and by the one that took "
            f"over, never at the same time. {SLOW_ONES} workers are slow, and one node in {DEAD:,} is dead: "
            "it must be found dead, and no other.",
        ),
    )
