"""How long `gpuprov --help` takes, as a ratio to `python -c pass` in the same round.

python -m benchmarks.bench_start [--rounds 5]
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.results import Finding, Options, Result, Rounds, Table, alone, number  # noqa: E402

FLOOR = "python -c pass"
OURS = "gpuprov --help"
EACH = 5  # runs are short: a round takes the best of so many


def cost(command: Sequence[str]) -> tuple[float, float]:
    """(wall, CPU) seconds of one run."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, cpu


def measure(options: Options) -> Iterator[Finding]:
    commands = {FLOOR: [sys.executable, "-c", "pass"]}
    for name in (OURS, "gpuprov up --help", "gpuprov validate --help"):
        commands[name] = [sys.executable, "-m", "provision.cli", *name.split()[1:]]
    walls, cpus = Rounds(), Rounds()
    for _ in range(options.rounds):
        for name, command in commands.items():
            best = [min(values) for values in zip(*(cost(command) for _ in range(EACH)), strict=True)]
            walls.add(name, best[0])
            cpus.add(name, best[1])
    yield Result("help.cpu", f"`{OURS}`", f"`{FLOOR}`", cpus.ratios(OURS, FLOOR))
    yield Result("help.wall", f"`{OURS}`", f"`{FLOOR}`", walls.ratios(OURS, FLOOR))
    rows = [
        (
            f"`{name}`",
            number(cpus.median(name) * 1000),
            f"{number(cpus.median(name) / cpus.median(FLOOR))}x",
            number(walls.median(name) * 1000),
            f"{number(walls.median(name) / walls.median(FLOOR))}x",
        )
        for name in commands
    ]
    yield Table("Starting", ("", "CPU ms", "of the first", "wall ms", "of the first"), tuple(rows))


if __name__ == "__main__":
    sys.exit(alone(measure, __doc__ or ""))
