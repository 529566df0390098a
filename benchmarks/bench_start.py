"""The duration of `gpuprov --help`, as a ratio to `python -c pass` of the same round."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.costs import FailedError, cost_of, environment, gpuprov
from benchmarks.results import Options, Result, Rounds

FLOOR = "python -c pass"
OURS = "gpuprov --help"
EACH = 5  # runs are short, so a round takes the best of these


def best_of(command: list[str], folder: Path) -> tuple[float, float]:
    """Return the least (wall, CPU) seconds of several runs."""
    costs = [cost_of(command, environment=environment(folder), timeout=60) for _ in range(EACH)]
    if failed := [cost for cost in costs if cost.code]:
        raise FailedError(f"{' '.join(command)}: {failed[0].last_words}")
    return min(cost.wall for cost in costs), min(cost.controller for cost in costs)


def measure(options: Options) -> Iterator[Result]:
    commands = {FLOOR: [sys.executable, "-c", "pass"], OURS: gpuprov("--help")}
    walls, cpus = Rounds(), Rounds()
    for _ in range(options.rounds):
        for name, command in commands.items():
            wall, cpu = best_of(command, options.folder)
            walls.add(name, wall)
            cpus.add(name, cpu)
    yield Result("help.cpu", f"`{OURS}`", f"`{FLOOR}`", cpus.ratios(OURS, FLOOR))
    yield Result("help.wall", f"`{OURS}`", f"`{FLOOR}`", walls.ratios(OURS, FLOOR))
