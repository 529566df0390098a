"""The cost of a report of 10,000 nodes: a full campaign of 8-GPU nodes, about 80 KB of results each.

Every figure comes from a fresh process and is compared with the floor of the same round: `json.loads` of
report.json, one node at a time, the least that any reader of the results must do. Nodes are simulated,
measured and judged for real, then repeated under other names with noise (report_fleet.py); one in a hundred
is bad, some are silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks import report_fleet
from benchmarks.costs import FailedError, cost_of, environment, gpuprov
from benchmarks.results import Options, Result, Rounds

NODES = 10_000
FORMATS = {"summary": "none", "html": "html"}
TIMEOUT = 1800


def cost(command: list[str], folder: Path) -> tuple[float, float]:
    """Return (CPU seconds, MB) of one process."""
    done = cost_of(command, environment=environment(folder), timeout=TIMEOUT)
    if done.code not in (0, 3, 5):
        raise FailedError(f"{' '.join(command)}: {done.trouble[-2000:]}")
    return done.controller, done.memory


def measure(options: Options) -> Iterator[Result]:
    """Compare the summary with the floor in turns, and measure the size of the HTML."""
    size = options.nodes if options.quick else NODES
    run = report_fleet.write(options.folder, size, report_fleet.templates())
    taken, most, out = Rounds(), Rounds(), options.folder / "out"
    commands = {"json.loads": report_fleet.floor(run / "report.json")}
    for name, form in FORMATS.items():
        commands[name] = gpuprov("report", str(run), "--format", form, "--output", str(out))
    for _ in range(1 if options.quick else options.rounds):
        for name, command in commands.items():
            cpu, memory = cost(command, options.folder)
            taken.add(name, cpu)
            most.add(name, memory)
    ratios = taken.ratios("summary", "json.loads")
    page = (out / "report.html").stat().st_size / 1e6
    peaks = tuple(most.costs["summary"])
    for goal, what, floor, values in (
        ("report.summary", f"report, summary of {size:,} nodes, CPU", "json.loads of the results", ratios),
        ("report.memory", f"the same, memory in MB, {size:,} nodes", "", peaks),
        ("report.html", f"size of the HTML in MB, {size:,} nodes", "", (page,)),
    ):
        yield Result("" if options.quick else goal, what, floor, values)
