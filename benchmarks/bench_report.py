"""What a report of many nodes costs: a full campaign of 8-GPU nodes, about 80 KB of results each.

Every figure is of a fresh process, to the floor of the same round: `json.loads` of report.json, a node at a
time, which is the least that whoever reads the results must do. Nodes are simulated, measured and judged for
real, then repeated under other names with noise (report_fleet.py); one in a hundred is bad, some are
silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks import report_fleet
from benchmarks.costs import FailedError, cost_of, environment, gpuprov
from benchmarks.results import Finding, Options, Result, Rounds, Table, number

SIZES = (100, 1_000, 10_000)
FORMATS = {"summary": "none", "json": "json", "junit": "junit", "nodes": "nodes", "html": "html"}
TIMEOUT = 1800


def cost(command: list[str], folder: Path) -> tuple[float, float]:
    """(CPU seconds, MB) of one process."""
    done = cost_of(command, environment=environment(folder), timeout=TIMEOUT)
    if done.code not in (0, 3, 5):
        raise FailedError(f"{' '.join(command)}: {done.trouble[-2000:]}")
    return done.controller, done.memory


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
    commands = {"json.loads": report_fleet.floor(run / "report.json")}
    for name, form in FORMATS.items():
        commands[name] = gpuprov("report", str(run), "--format", form, "--output", str(out))
    for _ in range(rounds):
        for name, command in commands.items():
            cpu, memory = cost(command, run.parent)
            taken.add(name, cpu)
            most.add(name, memory)
    large = size == max(SIZES)  # what the goals are about
    ratios = taken.ratios("summary", "json.loads")
    yield Result(
        "report.summary" if large else "",
        f"report, summary of {size:,} nodes, CPU", "json.loads of the results", ratios,
    )  # fmt: skip
    page = (out / "report.html").stat().st_size / 1e6
    peaks = tuple(most.costs["summary"])
    yield Result("report.memory" if large else "", f"the same, memory in MB, {size:,} nodes", "", peaks)
    yield Result("report.html" if large else "", f"size of the HTML in MB, {size:,} nodes", "", (page,))
    rows = tuple(
        (
            name,
            number(taken.median(name)),
            number(taken.median(name) / taken.median("json.loads")),
            number(most.median(name)),
        )
        for name in commands
    )
    told = (run / "report.json").stat().st_size / 1e6
    head = ("one process each", "CPU s", "x json.loads", "MB at most")
    yield Table(f"{size:,} nodes, {number(told)} MB of results, median of {rounds}", head, rows)
