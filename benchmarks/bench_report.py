"""What a report of many nodes costs: a full campaign of 8-GPU nodes, about 80 KB of results each.

Every figure is of a fresh process, to the floor of the same round: `json.loads` of report.json, a node at a
time, which is the least that whoever reads the results must do. Nodes are simulated, measured and judged for
real, then repeated under other names with noise (report_fleet.py); one in a hundred is bad, some are
silent.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks import report_fleet
from benchmarks.results import Finding, Options, Result, Rounds, Table, alone, number

ROOT = Path(__file__).resolve().parent.parent
SIZES = (100, 1_000, 10_000)
FORMATS = {"summary": "none", "json": "json", "junit": "junit", "nodes": "nodes", "html": "html"}
TIMEOUT = 1800

# Both run as a program would be; the last line says CPU seconds and the most memory in MB.
_END = """
import atexit, os, sys
def end():
    most = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    spent = os.times()
    sys.stderr.write(f"\\ncost {spent.user + spent.system} {int(most.split()[1]) / 1024}\\n")
atexit.register(end)
"""
_REPORT = """
from provision.cli import main
sys.exit(main(sys.argv[1:]))
"""


def cost(program: str, *arguments: str) -> tuple[float, float]:
    """(CPU seconds, MB) of one process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _END + program, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=TIMEOUT
    )
    found = re.search(r"^cost (\S+) (\S+)$", done.stderr, re.MULTILINE)
    if found is None or done.returncode not in (0, 3, 5):
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    return float(found[1]), float(found[2])


def measure(options: Options) -> Iterator[Finding]:
    """Reports of fleets of several sizes."""
    made = report_fleet.templates()
    for size in (options.nodes,) if options.quick else SIZES:
        home = options.folder / str(size)
        run = report_fleet.write(home, size, made)
        yield from _reports(run, size, 1 if options.quick else options.rounds)
        (run / "report.json").unlink()


def _reports(run: Path, size: int, rounds: int) -> Iterable[Finding]:
    taken, most, out = Rounds(), Rounds(), run.parent / "out"
    for _ in range(rounds):
        cpu, memory = cost(report_fleet.FLOOR, str(run / "report.json"))
        taken.add("json.loads", cpu)
        most.add("json.loads", memory)
        for name, form in FORMATS.items():
            cpu, memory = cost(_REPORT, "report", str(run), "--format", form, "--output", str(out))
            taken.add(name, cpu)
            most.add(name, memory)
    large = size == max(SIZES)  # what the goals are about
    ratios = taken.ratios("summary", "json.loads")
    yield Result(
        "report.summary" if large else "",
        f"report, summary of {size:,} nodes, CPU", "json.loads of the results", ratios,
    )  # fmt: skip
    page = (out / "report.html").stat().st_size / 1e6
    memory = tuple(most.costs["summary"])
    yield Result("report.memory" if large else "", f"the same, memory in MB, {size:,} nodes", "", memory)
    yield Result("report.html" if large else "", f"size of the HTML in MB, {size:,} nodes", "", (page,))
    rows = tuple(
        (
            name,
            number(taken.median(name)),
            number(taken.median(name) / taken.median("json.loads")),
            number(most.median(name)),
        )
        for name in taken.costs
    )
    told = (run / "report.json").stat().st_size / 1e6
    head = ("one process each", "CPU s", "x json.loads", "MB at most")
    yield Table(f"{size:,} nodes, {number(told)} MB of results, median of {rounds}", head, rows)


if __name__ == "__main__":
    sys.exit(alone(measure, __doc__ or ""))
