"""The wall time of `gpuprov validate` on a mixed fleet, compared with its slowest node alone.

The nodes are booted lab nodes of four kinds after `gpuprov up`; their simulated loads run faster than real
ones. Each round measures one node of each kind alone, then all nodes at once. Needs root and, for `up`, time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

from benchmarks.costs import FailedError
from benchmarks.results import Options, Result, Rounds, number
from gpuprov_lab.spec import NodeSpec
from tests.lab.gpuprov_up import Operator, said
from tests.lab.lab_nodes import running_lab

SPEED = 5.0  # simulated seconds per real second
NODES = (
    *(NodeSpec(name, "h100-sxm") for name in ("h100-1", "h100-2")),
    NodeSpec("l40s", "l40s", "debian12"),
    NodeSpec("mi300x", "mi300x", "ubuntu2404"),
    NodeSpec("mi250x", "mi250x", "ubuntu2404"),
)
ALONE = [node.name for node in NODES[1:]]


def measure(options: Options) -> Iterator[Result]:
    with running_lab("mixed", NODES, options.folder / "lab.yml", speed=SPEED) as lab:
        operator = Operator(lab.inventory, options.folder / "runs")
        done = operator.call("up", "--yes", timeout=3600)
        if done.returncode:
            raise FailedError(f"gpuprov up: {said(done)[-1000:]}")
        walls = Rounds()
        for _ in range(1 if options.quick else options.rounds):
            walls.add("alone", max(validated(operator, [name]) for name in ALONE))
            walls.add("all", validated(operator, [node.name for node in NODES]))
        seconds = number(walls.median("all"))
        what = f"two H100, L40S, MI300X and MI250X at {SPEED:g} times their speed, {seconds} s"
        note = "Less than 1 shows other work on the machine while the slowest was alone."
        yield Result("validate.mixed", what, "the slowest alone", walls.ratios("all", "alone"), note)


def validated(operator: Operator, nodes: list[str]) -> float:
    """Return the seconds of one run. Raises FailedError unless each of these nodes was fully measured."""
    began = time.monotonic()
    done = operator.call("validate", "--nodes", ":".join(nodes), "--json", timeout=3600)
    seconds = time.monotonic() - began
    reported = json.loads(done.stdout or "{}").get("nodes", [])
    if [each["node"] for each in reported if each["verdict"] != "error"] != nodes:
        raise FailedError(f"gpuprov validate: {said(done)[-1000:]}")
    return seconds
