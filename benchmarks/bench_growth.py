"""How the cost of `gpuprov drift` grows with the fleet: a constant, and so much for each node.

The whole command on 10, 30, 100, 300 and 1,000 light nodes, in rounds, and a straight line through what it
cost (least squares of the relative error, so that small fleets count as much as large ones).

    python -m benchmarks.bench_growth [--nodes 100] [--rounds 3]
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import expected as expectations
from benchmarks.bench_drift import OURS, converged
from benchmarks.costs import cost_of
from benchmarks.nodes import fleet
from benchmarks.peers.contender import Work
from benchmarks.peers.plain_ssh import FLOOR
from benchmarks.results import Finding, Options, Plot, Result, Rounds, Table, alone, number, spread

SIZES = (10, 30, 100, 300, 1000)
TIMES = 10  # as many nodes as the other parts are asked to take: 1,000 instead of 100
NAME = "performance-growth.svg"


@dataclass(frozen=True)
class Line:
    """cost = constant + slope x nodes; `furthest`: the greatest relative distance of a median from it."""

    constant: float
    slope: float
    furthest: float


def fitted(sizes: Sequence[int], costs: Sequence[float]) -> Line:
    """The line with the least squares of the relative error.

    >>> fitted([10, 100, 1000], [1.0, 1.9, 10.9])
    Line(constant=0.9, slope=0.01, furthest=0.0)
    """
    weights = [1 / cost**2 for cost in costs]
    total = sum(weights)
    mean_n = sum(w * n for w, n in zip(weights, sizes, strict=True)) / total
    mean_c = sum(w * c for w, c in zip(weights, costs, strict=True)) / total
    both = sum(w * (n - mean_n) * (c - mean_c) for w, n, c in zip(weights, sizes, costs, strict=True))
    spread_n = sum(w * (n - mean_n) ** 2 for w, n in zip(weights, sizes, strict=True))
    slope = both / spread_n if spread_n else 0.0
    constant = mean_c - slope * mean_n
    off = [abs((constant + slope * n) / c - 1) for n, c in zip(sizes, costs, strict=True)]
    return Line(round(constant, 6), round(slope, 6), round(max(off), 6))


def measure(options: Options) -> Iterator[Finding]:
    most = options.nodes if options.quick else TIMES * options.nodes
    sizes = [size for size in SIZES if size < most] + [most] if not options.quick else [2, most]
    cpu, node, wall, memory = Rounds(), Rounds(), Rounds(), Rounds()
    plain = Rounds()
    with fleet(most) as nodes:
        folder = f"/tmp/gpuprov-growth-{nodes.port}"  # noqa: S108 - on the nodes
        expected = expectations.prepared(nodes, folder)
        try:
            works: dict[int, Work] = {}
            for size in sizes:
                place = options.folder / str(size)
                place.mkdir()
                works[size] = OURS.make(nodes.first(size), expected, place, False)
            floor = FLOOR.make(nodes, expected, options.folder, True)
            for _ in range(min(options.rounds, 3)):
                plain.add(FLOOR.name, cost_of(floor.command, nodes=nodes).controller)
                for size, work in works.items():
                    cost = converged(OURS.name, work, nodes.first(size))
                    cpu.add(str(size), cost.controller)
                    node.add(str(size), cost.node)
                    wall.add(str(size), cost.wall)
                    memory.add(str(size), cost.memory)
        finally:
            expectations.removed(nodes, folder)
    what = f"`gpuprov drift` of {len(expected)} expectations on {most:,} nodes"
    plain.costs[OURS.name] = cpu.costs[str(most)]
    yield Result("drift.controller", what, "`ssh host true`", plain.ratios(OURS.name, FLOOR.name))
    costs = [cpu.median(str(size)) for size in sizes]
    line = fitted(sizes, costs)
    rows = [
        (
            f"{size:,}",
            spread(tuple(cpu.costs[str(size)])),
            number(line.constant + line.slope * size),
            number(cpu.median(str(size)) / size * 1000),
            number(node.median(str(size)) / size * 1000),
            number(wall.median(str(size))),
            number(memory.median(str(size))),
        )
        for size in sizes
    ]
    head = ("nodes", "controller s", "the line, s", "ms a node", "node ms", "wall s", "memory MB")
    text = (
        f"The line: {number(line.constant)} s (start, imports, roles) and {number(line.slope * 1000)} ms a "
        f"node; no median is further from it than {line.furthest:.0%}. Nodes: {nodes.kind}."
    )
    title = f"`gpuprov drift` of {len(expected)} expectations: cost against the number of nodes"
    yield Table(title, head, tuple(rows), (text,))
    if not options.quick:
        drawn = plotted(sizes, [cpu.costs[str(size)] for size in sizes], line)
        yield Plot(NAME, drawn, "Controller CPU of gpuprov drift against the number of nodes")


def plotted(sizes: Sequence[int], costs: Sequence[Sequence[float]], line: Line) -> str:
    """The same drawing for the same figures, byte for byte."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    settings: dict[str, Any] = {
        "svg.hashsalt": "gpuprov",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
    }
    with mpl.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(6, 3.6))
        for number_, several in enumerate(costs):
            label = "measured, each round" if number_ == 0 else None
            axes.plot(
                [sizes[number_]] * len(several), several, "o", color="#1f6f8b", markersize=4, label=label
            )
        ends = [sizes[0] * (sizes[-1] / sizes[0]) ** (i / 40) for i in range(41)]
        name = f"{number(line.constant)} s + {number(line.slope * 1000)} ms a node"
        axes.plot(ends, [line.constant + line.slope * n for n in ends], "-", color="#d1495b", label=name)
        axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="controller CPU, seconds")
        axes.grid(visible=True, which="major", linewidth=0.3)
        axes.legend(frameon=False)
        figure.tight_layout()
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return "\n".join(row.rstrip() for row in text.getvalue().splitlines()) + "\n"


if __name__ == "__main__":
    sys.exit(alone(measure, __doc__ or ""))
