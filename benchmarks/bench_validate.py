"""What `gpuprov validate --stage quick` costs the controller, beyond the tests, which run on the nodes.

Against 1.5 F + 5 ms for each node, with F as in bench_drift. The nodes are declared to have GPUs and have
none: what a check begins with is run there, says so at once, and is judged, so the tests take next to no time
and what is left is the orchestration. The command's start is counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contenders import FLOOR
from benchmarks.costs import Cost, FailedError, cost_of, environment, gpuprov
from benchmarks.nodes import Nodes, light
from benchmarks.results import Options, Result, Rounds, number

MOST = 50
LOCKS = "/run/gpuprov"  # as provision/node/lock.py has it: with one for all, they would be one machine
MORE = 0.005  # seconds for each node that the goal allows beside F


def measure(options: Options) -> Iterator[Result]:
    with light(min(options.nodes, MOST), own=LOCKS) as nodes:
        count = len(nodes.names)
        floor = FLOOR.make(nodes, (), options.folder)
        inventory = nodes.inventory(options.folder, gpuprov_expected_gpus=8)
        costs = Rounds()
        for _ in range(options.rounds):
            plain = cost_of(floor.command, nodes=nodes).controller
            costs.add("allowed", 1.5 * plain + MORE * count)
            costs.add("validate", validated(nodes, inventory, options.folder).controller)
        each = number(costs.median("validate") / count * 1000)
        what = f"`gpuprov validate --stage quick` on {count} nodes, {each} ms a node"
        note = "The nodes have no GPU: programs end at once."
        yield Result("validate.controller", what, "1.5 F + 5 ms", costs.ratios("validate", "allowed"), note)


def validated(nodes: Nodes, inventory: Path, folder: Path) -> Cost:
    """One run. Raises FailedError unless every node was reached and its checks were made."""
    words = ("--nodes", "all", "--stage", "quick", "--json", "--format", "nodes")
    command = gpuprov("validate", *words, "--inventory", str(inventory))
    cost = cost_of(command, nodes=nodes, environment=environment(folder), folder=folder)
    try:
        reported = {each["node"]: each for each in json.loads(cost.output)["nodes"]}
    except (ValueError, KeyError):
        raise FailedError(f"gpuprov validate: {cost.last_words}") from None
    for name in nodes.names:
        found = reported.get(name, {"unreachable": True, "checks": []})
        verdicts = {check["verdict"] for check in found["checks"]}
        if found["unreachable"] or not verdicts - {"skip"}:
            raise FailedError(f"gpuprov validate did not look at {name}: {cost.last_words}")
    return cost
