"""What `gpuprov up` costs on nodes that are as declared already, against `gpuprov drift` on the same ones.

Both are the real command lines, taken in turns, against light nodes (light_nodes.py: needs root) that one
`gpuprov up` brought to a few kernel parameters, all that a machine without systemd can promise. Imports and
the reading of the inventory are counted on both sides; drift compares facts nobody declared as well, so less
than 1x is no wonder. Afterwards `up --full` runs the roles on some of them: had anything been skipped
wrongly, it would be changed now.

    sudo python benchmarks/bench_converged.py [--nodes 100] [--rounds 5]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.costs import Cost, cost_of  # noqa: E402
from benchmarks.light_nodes import light_nodes  # noqa: E402
from benchmarks.results import Finding, Options, Result, Rounds, Table, alone, number  # noqa: E402

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


class Command:
    """The real command line, with its runs in a folder of their own."""

    def __init__(self, folder: Path, inventory: Path) -> None:
        self.said = self.output = ""  # of the last one
        self._inventory = str(inventory)
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(folder / "runs")}

    def __call__(self, verb: str, *words: str) -> Cost:
        """Run it; anything but exit 0 ends the benchmark with what was said."""
        line = [sys.executable, "-m", "provision.cli", verb, self._inventory, *_PATIENT, *words]
        cost = cost_of(line, environment=self._environment)
        self.output, self.said = cost.output, cost.output + cost.trouble
        if cost.code:
            raise SystemExit(f"gpuprov {verb} ended with {cost.code}:\n{self.said[-3000:]}")
        return cost


def measure(options: Options) -> Iterator[Finding]:
    """Converge, compare in turns, and see with the roles themselves that nothing was skipped wrongly."""
    with light_nodes(options.nodes, variables=declared(), folder=options.folder / "nodes") as fleet:
        gpuprov = Command(options.folder, fleet.inventory)
        gpuprov("up", "--nodes", fleet.names[0])  # they share one root: one is all
        gpuprov("up")
        if f"{options.nodes} nodes already as declared" not in gpuprov.said:
            raise SystemExit(f"the nodes are not as declared:\n{gpuprov.said}")
        cpu, wall, memory = Rounds(), Rounds(), Rounds()
        for _ in range(options.rounds):
            for verb in ("drift", "up"):
                cost = gpuprov(verb)
                cpu.add(verb, cost.controller)
                wall.add(verb, cost.wall)
                memory.add(verb, cost.memory)
        what = f"up, {options.nodes} nodes as declared"
        yield Result("up.converged", f"{what}, controller CPU", "drift", cpu.ratios("up", "drift"))
        yield Result("", f"{what}, wall time", "drift", wall.ratios("up", "drift"))
        rows = [
            (f"gpuprov {verb}", *(number(of.median(verb)) for of in (cpu, wall, memory)))
            for verb in ("drift", "up")
        ]
        head = ("command", "CPU s", "wall s", "peak MB")
        yield Table(f"{options.nodes} nodes as declared, medians", head, tuple(rows))
        yield _skipped_nothing(gpuprov, fleet.names[:_FULL])


def _skipped_nothing(gpuprov: Command, nodes: Sequence[str]) -> Result:
    """What the roles still change where `up` said that nothing is to be done."""
    gpuprov("up", "--full", "--check", "--no-canary", "--nodes", ",".join(nodes), "--json")
    document = json.loads(gpuprov.output)
    changed = float(sum(node["changed"] for node in document["nodes"].values()))
    return Result(
        "", f"tasks that changed something under `up --full` on {len(nodes)} of them", "", (changed,)
    )


if __name__ == "__main__":
    sys.exit(alone(measure, __doc__))
