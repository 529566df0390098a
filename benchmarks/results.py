"""The interface of the benchmarks' parts.

A part is a module `benchmarks/bench_*.py` with `measure(options)`, which yields results as they arrive.
`python -m benchmarks` finds the parts by this function.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The amount to measure. A part that needs minutes per node may take fewer nodes and report that."""

    folder: Path  # for all files of a part; removed at the end
    nodes: int = 100
    rounds: int = 5
    quick: bool = False  # a smoke test with meaningless figures


@dataclass(frozen=True)
class Result:
    """One quantity measured in several rounds, floor and contender in turns.

    `goal`: a key of goals.GOALS, which has limit and unit; empty without a goal. `what`: the work and its
    amount; `floor`: the meaning of a ratio of 1, empty if the values are not ratios. `values`: one for each
    round. `note`: a hint for their interpretation. `unproven`: why they neither meet nor miss the goal.
    """

    goal: str
    what: str
    floor: str
    values: tuple[float, ...]
    note: str = ""
    unproven: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.values)


Measure = Callable[[Options], Iterable[Result]]


@dataclass
class Rounds:
    """Costs of contenders that ran in turns, so that all see the same machine load.

    >>> rounds = Rounds(); rounds.add("floor", 2.0); rounds.add("ours", 1.0); rounds.ratios("ours", "floor")
    (0.5,)
    """

    costs: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, cost: float) -> None:
        self.costs.setdefault(name, []).append(cost)

    def ratios(self, name: str, floor: str) -> tuple[float, ...]:
        """Return one ratio for each round, to the floor of the same round."""
        return ratios(self.costs[name], self.costs[floor])

    def median(self, name: str) -> float:
        return statistics.median(self.costs[name])


def ratios(costs: Sequence[float], floors: Sequence[float]) -> tuple[float, ...]:
    """Return the ratio of each cost to the same round's floor."""
    return tuple(cost / floor for cost, floor in zip(costs, floors, strict=True))


def number(value: float) -> str:
    """Format with about three significant digits: 0.39, 1.05, 12.4, 317, 4,875."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def spread(values: tuple[float, ...], unit: str = "") -> str:
    """Format the median, least and greatest of several rounds: `0.39x (0.37 to 0.44)`."""
    shown = f"{number(statistics.median(values))}{unit}"
    return shown if len(values) == 1 else f"{shown} ({number(min(values))} to {number(max(values))})"


def lines(finding: Result) -> Iterator[str]:
    """Render a finding as text for the console."""
    from benchmarks.goals import GOALS

    goal = GOALS.get(finding.goal)
    unit = goal.unit if goal else "x" if finding.floor else ""
    against = f" of {finding.floor}" if finding.floor else ""
    unproven = f"not told ({finding.unproven})" if finding.unproven else ""
    met = unproven or ("NOT MET" if misses(finding) else "met")
    end = f"; goal {goal.asked}: {met}" if goal else ""
    yield f"{finding.what}: {spread(finding.values, unit)}{against}{end}"
    if finding.note:
        yield f"    {finding.note}"


def misses(result: Result) -> bool:
    """Whether the result has a goal, can be compared with it, and misses it."""
    from benchmarks.goals import GOALS

    goal = GOALS.get(result.goal)
    return goal is not None and not result.unproven and not goal.met(result.median)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, help="how many nodes (100; with --quick 4)")
    parser.add_argument("--rounds", type=int, help="how often each is measured (5; with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="see that it works, in seconds")


def options_of(chosen: argparse.Namespace, folder: Path) -> Options:
    nodes, rounds = (4, 1) if chosen.quick else (100, 5)
    return Options(folder, chosen.nodes or nodes, chosen.rounds or rounds, chosen.quick)


def as_installed(package: Path = Path(__file__).parent.parent / "provision") -> None:
    """Compile our modules as pip does at installation.
    In a checkout where Python may not write next to them (PYTHONDONTWRITEBYTECODE), every command would
    compile them again, a cost that no user has."""
    import compileall

    compileall.compile_dir(str(package), quiet=2)


def clean_up_on_sigterm() -> None:
    """Exit on SIGTERM as after an error, so that nodes and folders are removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
