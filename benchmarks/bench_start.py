"""How long `gpuprov --help` takes, as a ratio to `python -c pass` in the same run. Goal: 4x CPU, 3x wall."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPEATS = 15


def cost(command: Sequence[str]) -> tuple[float, float]:
    """(wall, CPU) seconds of one run."""
    before, started = os.times(), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment, timeout=60)
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - started, cpu


def medians(command: Sequence[str]) -> tuple[float, float]:
    walls, cpus = zip(*(cost(command) for _ in range(REPEATS)), strict=True)
    return statistics.median(walls), statistics.median(cpus)


def main() -> None:
    floor_wall, floor_cpu = medians([sys.executable, "-c", "pass"])
    rows = [("python -c pass", floor_wall, floor_cpu)]
    for arguments in (["--help"], ["up", "--help"], ["validate", "--help"]):
        costs = medians([sys.executable, "-m", "provision.cli", *arguments])
        rows.append((f"gpuprov {' '.join(arguments)}", *costs))
    for title, wall, cpu in rows:
        print(
            f"{title:28} {wall * 1000:7.1f} ms wall {cpu * 1000:7.1f} ms CPU"
            f" {wall / floor_wall:5.1f}x {cpu / floor_cpu:5.1f}x"
        )


if __name__ == "__main__":
    main()
