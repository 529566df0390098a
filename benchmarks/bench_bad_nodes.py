"""What a few bad nodes cost a large fleet: `gpuprov drift` and a converged `gpuprov up` on 1,000 light nodes.

Of each thousand 20 are dead (their packets vanish), 10 accept and then say nothing, 5 answer garbage and
5 print 50 MB. Each run must end with exit 5, name exactly those, each with what it did, and know all others
as declared, or the part fails. They are compared with drift on the good nodes alone, in turns. Needs root.

    sudo python -m benchmarks.bench_bad_nodes [--nodes 100] [--rounds 3]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.bench_converged import declared
from benchmarks.costs import Cost, FailedError, cost_of
from benchmarks.light_nodes import LightFleet, light_nodes
from benchmarks.results import Finding, Options, Result, Rounds, Table, alone, number, spread

ROOT = Path(__file__).resolve().parent.parent
TIMES = 10  # as many nodes as the other parts are asked to take: 1,000 instead of 100
BAD = {"dead": 20, "hang": 10, "garbage": 5, "flood": 5}  # of a thousand
DID = {
    "dead": "did not answer within",
    "hang": "accepted the connection and then sent nothing",
    "garbage": "it answered something else",
    "flood": "it printed more than 4 MiB",
}
GOOD, DRIFT, UP = "drift, good nodes alone", "drift, bad ones among them", "up, bad ones among them"


def measure(options: Options) -> Iterator[Finding]:
    count = 2 * len(BAD) if options.quick else TIMES * options.nodes
    bad = {kind: max(1, many * count // 1000) for kind, many in BAD.items()}
    cpu, wall, memory = Rounds(), Rounds(), Rounds()
    with light_nodes(count, bad, variables=declared()) as fleet:
        good = _good_alone(fleet, options.folder)
        _gpuprov(
            options.folder, "up", good, "--nodes", fleet.good[0], "--json"
        )  # they share one root: one is all
        for _ in range(min(options.rounds, 3)):
            for name, verb, inventory in (
                (GOOD, "drift", good),
                (DRIFT, "drift", fleet.inventory),
                (UP, "up", fleet.inventory),
            ):
                cost = _gpuprov(options.folder, verb, inventory, "--json")
                _knows(name, cost, fleet, {} if name == GOOD else fleet.bad)
                cpu.add(name, cost.controller)
                wall.add(name, cost.wall)
                memory.add(name, cost.memory)
    what = f"{len(fleet.names):,} nodes, {len(fleet.bad)} of them bad, all of these named"
    yield Result("", f"drift, {what}: CPU", GOOD, cpu.ratios(DRIFT, GOOD))
    yield Result("", f"drift, {what}: wall time", GOOD, wall.ratios(DRIFT, GOOD))
    yield Result("up.converged", f"up, {what}, CPU", DRIFT, cpu.ratios(UP, DRIFT))
    rows = [
        (name, spread(tuple(cpu.costs[name])), number(wall.median(name)), number(memory.median(name)))
        for name in (GOOD, DRIFT, UP)
    ]
    said = ", ".join(f"{many} {kind}" for kind, many in bad.items())
    head = ("command", "CPU s", "wall s", "peak MB")
    yield Table(f"{len(fleet.names):,} nodes with bad ones among them ({said}), medians", head, tuple(rows))


def _good_alone(fleet: LightFleet, folder: Path) -> Path:
    """An inventory of the good nodes."""
    inventory = json.loads(fleet.inventory.read_text())
    hosts = inventory["all"]["hosts"]
    inventory["all"]["hosts"] = {name: hosts[name] for name in fleet.good}
    path = folder / "good.json"
    path.write_text(json.dumps(inventory))
    return path


def _gpuprov(folder: Path, verb: str, inventory: Path, *words: str) -> Cost:
    line = [sys.executable, "-m", "provision.cli", verb, str(inventory), *words]
    environment = {"PYTHONPATH": str(ROOT), "GPUPROV_RUNS": str(folder / "runs")}
    cost = cost_of(line, environment={**os.environ, **environment})
    if cost.code not in (0, 5):
        raise FailedError(f"gpuprov {verb} ended with {cost.code}: {cost.last_words}")
    return cost


def _knows(name: str, cost: Cost, fleet: LightFleet, bad: Mapping[str, str]) -> None:
    """Raises FailedError unless the run named each bad node with what it did, and no other."""
    named, converged = _told(json.loads(cost.output))
    wrong = {node for node, kind in bad.items() if DID[kind] not in named.get(node, "")}
    wrong |= named.keys() - bad.keys()
    if wrong:
        example = sorted(wrong)[0]
        told = named.get(example, "not named")
        raise FailedError(f"{name}: {len(wrong)} nodes wrongly told, {example} as: {told}")
    if converged != len(fleet.good) or cost.code != (5 if bad else 0):
        raise FailedError(f"{name}: {converged} of {len(fleet.good)} as declared, exit {cost.code}")


def _told(said: Mapping[str, Any]) -> tuple[dict[str, str], int]:
    """From the document of `drift --json` or `up --json`: what is said of each node that did not answer,
    and how many are as declared."""
    if "as_declared" in said:
        return said["unreachable"], said["as_declared"]
    ended = [(node["node"], node["status"], node["message"]) for node in said["nodes"].values()]
    converged = sum(status == "as declared" for _, status, _ in ended)
    return {node: message for node, status, message in ended if status != "as declared"}, converged


if __name__ == "__main__":
    sys.exit(alone(measure, __doc__ or ""))
