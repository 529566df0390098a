"""The cost of observing 100,000 nodes behind 40 workers in 8 regions, also with one region down.

The controller's own code (observe, and the controller's side of remote/workers) drives simulated workers over
a simulated network in virtual time (benchmarks/mesh); a simulated hour takes a minute. Each run is a fresh
process. A node without a true result, or one that two workers touched at the same time, fails the part.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.costs import ROOT, FailedError
from benchmarks.mesh.look import EACH, REGIONS, Looked, Scenario
from benchmarks.results import Options, Result

SIZES, QUICK = (10_000, 100_000), (200, 400)
TIMEOUT = 3600
WELL, DARK_REGION = "no trouble", "a region dark for ten minutes"


def measure(options: Options) -> Iterator[Result]:
    middle, largest = QUICK if options.quick else SIZES
    well = [looked(options.folder, Scenario(size), WELL) for size in (middle, largest)]
    dark = looked(options.folder, Scenario(largest, dark=True), DARK_REGION)
    what = f"{largest:,} nodes, {REGIONS * EACH} workers in {REGIONS} regions"
    true = 100.0 * (largest - dark.lost) / largest
    yield Result("mesh.results", f"{what}, {DARK_REGION}", "", (true,), "Virtual time, real code")
    growth = (well[1].cpu / largest) / (well[0].cpu / middle)
    if not options.quick:
        yield Result("mesh.growth", f"{what}, {WELL}", f"{middle:,} nodes", (growth,))


def looked(folder: Path, scenario: Scenario, what: str) -> Looked:
    """Observe the nodes in a fresh process. Raises FailedError when the outcome is wrong."""
    place = folder / f"{scenario.nodes}-{scenario.dark}"
    place.mkdir()
    one = in_a_process(scenario, place)
    print(
        f"    {scenario.nodes:,} nodes, {what}: {one.seconds:.0f} s, {one.cpu:.1f} s of CPU", file=sys.stderr
    )
    right(one, f"{scenario.nodes:,} nodes, {what}")
    return one


def in_a_process(scenario: Scenario, folder: Path) -> Looked:
    """Observe the nodes in a fresh process and return its outcome."""
    program = f"from benchmarks.mesh.look import main; main({asdict(scenario)!r}, {str(folder)!r})"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT)
    outcome: dict[str, Any] = json.loads(done.stdout)
    return Looked(**{**outcome, "curve": tuple((at, count) for at, count in outcome["curve"])})


def right(one: Looked, what: str) -> None:
    """Raises FailedError when a result is lost, two workers shared a node, or units are left over."""
    if one.lost:
        raise FailedError(f"{what}: {one.lost} nodes have no true result")
    if one.together:
        raise FailedError(f"{what}: two workers were at work on {one.together} nodes at the same time")
    if one.left:
        raise FailedError(f"{what}: {one.left} units are left in the mesh")
