"""The cost of `gpuprov up` on nodes that are already as declared, compared with `gpuprov drift`.

Both are the real command lines, run in turns against the same light nodes (light_nodes.py: needs root) after
one `gpuprov up` set a few kernel parameters, all that a machine without systemd can guarantee. Imports and
reading the inventory count on both sides; drift also compares undeclared facts, so a ratio below 1x is
expected. Afterwards `up --full` runs the roles on some nodes; any change it would make was wrongly skipped
before, and fails the part.
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
_FULL = 5  # nodes on which the roles run although nothing differs
_SYSCTLS = ("vm.swappiness", "vm.dirty_ratio", "vm.overcommit_memory", "kernel.pid_max", "net.core.somaxconn")


def declared() -> dict[str, Any]:
    """Return variables that declare kernel parameters at this machine's values, which are the nodes' too."""
    values = {name: Path("/proc/sys", *name.split(".")).read_text().strip() for name in _SYSCTLS}
    return {
        "gpuprov_roles": ["host_settings"],
        "host_settings_sysctls": values,
        "host_settings_cpu_governor": None,
        "host_settings_numa_balancing": None,
        "host_settings_time_sync": "none",
    }


def ran(folder: Path, inventory: Path, verb: str, *words: str) -> Cost:
    """Run the real command line with its runs below `folder`. Raises FailedError unless it exits with 0."""
    command = gpuprov(verb, str(inventory), *_PATIENT, *words)
    cost = cost_of(command, environment=environment(folder))
    if cost.code:
        raise FailedError(f"gpuprov {verb} ended with {cost.code}:\n{(cost.output + cost.trouble)[-3000:]}")
    return cost


def measure(options: Options) -> Iterator[Result]:
    """Converge, measure both verbs in turns, and run the roles to prove that nothing was wrongly skipped."""
    with light_nodes(options.nodes, variables=declared(), folder=options.folder / "nodes") as fleet:
        run = partial(ran, options.folder, fleet.inventory)
        run("up", "--nodes", fleet.names[0])  # one node is enough: all share one root
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
