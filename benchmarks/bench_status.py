"""The controller's cost of `gpuprov status --watch`, which keeps its connections open.

CPU of the whole process tree against F, `xargs -P 32 ssh host true` with curve25519, in turns. A watch is
measured from one round to a later one, so that its start and logins do not count, but the cost of its idle
open connections does. The nodes are light ones (needs root), each with a health result of eight GPUs; each
round must report all of them as healthy.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contenders import CONNECTIONS
from benchmarks.costs import FailedError, cost_of, environment, gpuprov
from benchmarks.health_results import healthy
from benchmarks.light_nodes import below, cpu_of
from benchmarks.nodes import Nodes, in_parallel, light
from benchmarks.results import Options, Result, Rounds

_RESULT = "/run/gpuprov/health.json"
_EVERY = 10  # seconds between rounds, a user's default
_FIRST, _LAST = 1, 3  # a watch is measured between these rounds; the first includes the logins


def measure(options: Options) -> Iterator[Result]:
    with light(options.nodes) as nodes:
        _write(nodes)
        inventory = nodes.inventory(options.folder)
        costs = Rounds()
        for turn in range(options.rounds):
            print(f"    round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
            floor = cost_of(in_parallel(nodes, ["true"], CONNECTIONS, options.folder), nodes=nodes)
            if floor.code:
                raise FailedError(f"ssh host true ended with {floor.code}: {floor.last_words}")
            costs.add("floor", floor.controller)
            costs.add("watch", _watched(inventory, nodes, options))
    note = f"Nodes: {nodes.kind}. Every {_EVERY} s, connections kept open."
    yield Result(
        "status.watch",
        f"`gpuprov status` of {options.nodes:,} nodes, a round of `--watch`",
        "`ssh host true`",
        costs.ratios("watch", "floor"),
        note,
    )


def _patient() -> list[str]:
    """Return options with few connections and a long timeout, since all nodes share this machine."""
    return ["--connections", str(CONNECTIONS), "--timeout", "120"]


def _write(nodes: Nodes) -> None:
    """Write the health result of all nodes, which share one root."""
    name = nodes.names[0]
    place = "mkdir -p -m 755 /run/gpuprov && chmod 755 /run/gpuprov"
    new = f"{_RESULT}.new"
    into = f"cat > {new} && chmod 644 {new} && mv {new} {_RESULT}"
    nodes.run(name, f"{place} && {into}", given=json.dumps(healthy()))


def _healthy(text: str, nodes: Nodes) -> None:
    """Raises FailedError unless the output reports every node as healthy."""
    try:
        found = {node["node"]: node["verdict"] for node in json.loads(text)["nodes"]}
    except (ValueError, KeyError, TypeError):
        raise FailedError(f"gpuprov status printed no state: {text[-300:]}") from None
    if found != dict.fromkeys(nodes.names, "pass"):
        odd = [name for name in nodes.names if found.get(name) != "pass"]
        raise FailedError(f"{len(odd)} of {len(nodes.names)} nodes are not healthy: {odd[:3]}")


def _watched(inventory: Path, nodes: Nodes, options: Options) -> float:
    """Return the CPU seconds of one round of a watch."""
    every = "1" if options.quick else str(_EVERY)
    command = gpuprov("status", str(inventory), "--json", "--watch", every, *_patient())
    around = {**os.environ, **environment(options.folder)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=around)
    try:
        spent: list[float] = []
        for _ in range(_LAST):
            _healthy(process.stdout.readline() if process.stdout else "", nodes)
            spent.append(sum(map(cpu_of, below(process.pid))))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    return (spent[_LAST - 1] - spent[_FIRST - 1]) / (_LAST - _FIRST)
