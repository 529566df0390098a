"""The controller's cost of `gpuprov validate --stage quick`, excluding the tests on the nodes.

Compared with 1.5 F + 5 ms for each node, F as in bench_drift. The nodes are declared to have GPUs but have
none, so the first command of each check runs, fails at once and is judged; the tests take next to no time,
and the orchestration remains. The command's startup counts.
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
LOCKS = "/run/gpuprov"  # as in provision/node/lock.py; sharing one would make all nodes a single machine
MORE = 0.005  # seconds that the goal allows for each node on top of F


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
    """Run `validate` once. Raises FailedError unless every node was reached and its checks ran."""
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
