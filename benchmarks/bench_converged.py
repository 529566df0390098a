"""What `gpuprov up` costs on nodes that are as declared already, against `gpuprov drift` on the same ones.

Both are the real command lines, taken in turns, against light nodes (light_nodes.py: needs root) that one
`gpuprov up` brought to a few kernel parameters, all that a machine without systemd can promise. Imports and
the reading of the inventory are counted on both sides; drift compares facts nobody declared as well, so less
than 1x is no wonder. Afterwards `up --full` runs the roles on some of them: what would be changed now was
skipped wrongly, and fails the part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.costs import Cost, FailedError, cost_of, environment, gpuprov
from benchmarks.light_nodes import light_nodes
from benchmarks.results import Options, Result, Rounds

_PATIENT = ("--connections", "16", "--timeout", "600")  # all nodes share the cores of this machine
_FULL = 5  # nodes on which the roles are run although nothing differs
_SYSCTLS = ("vm.swappiness", "vm.dirty_ratio", "vm.overcommit_memory", "kernel.pid_max", "net.core.somaxconn")


def declared() -> dict[str, Any]:
    """What the nodes promise: parameters as this machine's kernel has them, which is theirs, too."""
    values = {name: Path("/proc/sys", *name.split(".")).read_text().strip() for name in _SYSCTLS}
    return {
        "gpuprov_roles": ["host_settings"],
        "host_settings_sysctls": values,
        "host_settings_cpu_governor": None,
        "host_settings_numa_balancing": None,
        "host_settings_time_sync": "none",
    }


def ran(folder: Path, inventory: Path, verb: str, *words: str) -> Cost:
    """The real command line, with its runs below `folder`. Raises FailedError unless it ended with 0."""
    command = gpuprov(verb, str(inventory), *_PATIENT, *words)
    cost = cost_of(command, environment=environment(folder))
    if cost.code:
        raise FailedError(f"gpuprov {verb} ended with {cost.code}:\n{(cost.output + cost.trouble)[-3000:]}")
    return cost


def measure(options: Options) -> Iterator[Result]:
    """Converge, compare in turns, and see with the roles themselves that nothing was skipped wrongly."""
    with light_nodes(options.nodes, variables=declared(), folder=options.folder / "nodes") as fleet:
        run = partial(ran, options.folder, fleet.inventory)
        run("up", "--nodes", fleet.names[0])  # they share one root: one is all
        done = run("up")
        if f"{options.nodes} nodes already as declared" not in done.output + done.trouble:
            raise FailedError(f"the nodes are not as declared:\n{done.output}{done.trouble}")
        cpu = Rounds()
        for _ in range(options.rounds):
            for verb in ("drift", "up"):
                cpu.add(verb, run(verb).controller)
        what = f"up, {options.nodes} nodes as declared"
        yield Result("up.converged", f"{what}, controller CPU", "drift", cpu.ratios("up", "drift"))
        some = fleet.names[:_FULL]
        full = run("up", "--full", "--check", "--no-canary", "--nodes", ",".join(some), "--json")
        changed = sum(node["changed"] for node in json.loads(full.output)["nodes"].values())
        if changed:
            raise FailedError(f"`up --full` on {len(some)} of them changed something in {changed} tasks")
