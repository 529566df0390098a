"""Memory for judging a fleet: `gpuprov report --rejudge` of 8-GPU nodes after a full campaign.

Each node's raw output (about 450 KB) is read, parsed and judged, then the nodes are compared with each other,
and report.json is written. The figure is the peak memory of the command and all its processes together
(proportional set size, sampled four times a second). Nodes of two products are simulated and measured for
real, then repeated (raw_fleet.py); one in a hundred is bad, some are silent. 10,000 nodes take 15 minutes of
one core and 6 GB of disk.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import raw_fleet, report_fleet
from benchmarks.costs import FailedError, environment, gpuprov
from benchmarks.detection.trial import OWN_LIMITS
from benchmarks.results import Options, Result

NODES = 10_000
SKUS = ("h100-sxm", "b200")
TIMEOUT = 7200


def measure(options: Options) -> Iterator[Result]:
    """Measure 10,000 nodes once; a few with `--quick`."""
    if options.quick:
        made = raw_fleet.templates(SKUS[:1], good=1, faults=report_fleet.FAULTS[:1])
    else:
        made = raw_fleet.templates(SKUS)
    size = options.nodes if options.quick else NODES
    run = raw_fleet.write(options.folder / "20260504T100000.000Z-validate", size, made)
    words = ("--rejudge", "--thresholds", str(OWN_LIMITS), "--format", "json")
    memory = most_memory(
        gpuprov("report", str(run), *words, "--output", str(options.folder / "out")), options.folder
    )
    goal = "" if options.quick else "judge.memory"
    yield Result(goal, f"report --rejudge, memory in MB, {size:,} nodes", "", (memory,))


def most_memory(command: list[str], folder: Path) -> float:
    """Return the peak MB of a command with its processes. Raises FailedError when it fails."""
    around = {**os.environ, **environment(folder)}
    most, deadline = 0.0, time.monotonic() + TIMEOUT
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=around) as process:
            while process.poll() is None:
                if time.monotonic() > deadline:
                    process.kill()
                most = max(most, _memory(process.pid))
                time.sleep(0.25)
        errors.seek(0)
        if process.returncode not in (0, 3, 5):
            raise FailedError(f"{' '.join(command)}: {errors.read()[-2000:]}")
    return most


def _memory(process: int) -> float:
    """Return the MB of a process and its descendants; shared memory counts once."""
    with contextlib.suppress(OSError):  # the process has ended
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        own = next((int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")), 0)
        started = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        return own / 1024 + sum(map(_memory, map(int, started)))
    return 0.0
