"""What `gpuprov status` costs the controller: once, and with `--watch`, which keeps its connections open; and
what it costs to follow the nodes' results as they change.

CPU of the whole tree of processes against F, `xargs -P 32 ssh host true` with curve25519, in turns. A watch
is measured from one round to a later one, so that neither its start nor its logins count, but what its open
connections cost while nobody asks does. To follow is measured in the same way, over minutes in each of which
every node has a new result, all at the same moment, as no real fleet has them. The nodes are light ones
(needs root), with a health result as eight GPUs have it; each round must find all of them healthy.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.costs import FailedError, cost_of, environment, gpuprov
from benchmarks.health_results import healthy
from benchmarks.light_nodes import below, cpu_of, memory_of
from benchmarks.nodes import Nodes, in_parallel, light
from benchmarks.peers.contender import CONNECTIONS
from benchmarks.results import Finding, Options, Result, Rounds, Table, number, spread

_RESULT = "/run/gpuprov/health.json"
_EVERY = 10  # seconds between rounds, as a user has it
_FIRST, _LAST = 1, 3  # the rounds between which a watch is measured: logins are in the first
_FOLLOWER = Path(__file__).with_name("stream_follower.py")
_MINUTE, _MINUTES = 60.0, 2


def measure(options: Options) -> Iterator[Finding]:
    with light(options.nodes) as nodes:
        _write(nodes)
        inventory = nodes.inventory(options.folder)
        costs, wall = Rounds(), Rounds()
        memory = 0.0
        for turn in range(options.rounds):
            print(f"    round {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
            floor = cost_of(in_parallel(nodes, ["true"], CONNECTIONS, options.folder), nodes=nodes)
            if floor.code:
                raise FailedError(f"ssh host true ended with {floor.code}: {floor.last_words}")
            once = cost_of(
                gpuprov("status", str(inventory), "--json", *_patient()),
                nodes=nodes,
                environment=environment(options.folder),
            )
            _healthy(once.output, nodes)
            costs.add("floor", floor.controller)
            costs.add("once", once.controller)
            wall.add("once", once.wall)
            cpu, seconds, most = _watched(inventory, nodes, options)
            costs.add("watch", cpu)
            wall.add("watch", seconds)
            memory = max(memory, most)
            followed = _followed(inventory, nodes, options)
            costs.add("follow", followed.cpu)
            wall.add("follow", followed.seconds)
    count = options.nodes
    what = f"`gpuprov status` of {count:,} nodes"
    note = f"Nodes: {nodes.kind}. Every {_EVERY} s, connections kept open."
    yield Result(
        "status.watch",
        f"{what}, a round of `--watch`",
        "`ssh host true`",
        costs.ratios("watch", "floor"),
        note,
    )
    yield Result(
        "",
        f"the results of {count:,} nodes followed for a minute, each new once",
        "`ssh host true`",
        costs.ratios("follow", "floor"),
        f"{count:,} logins took {number(followed.start)} s. The last of all nodes' new results was here "
        f"{number(followed.late)} s after they were written. Memory: {number(followed.memory)} MB. "
        f"A node's program: {number(followed.node_cpu)} % of a core, "
        f"{number(followed.node_memory)} MB of its own.",
    )
    yield Result("", f"{what}, once", "`ssh host true`", costs.ratios("once", "floor"))
    yield Table(
        f"`gpuprov status` of {count:,} nodes, per node",
        ("", "controller ms", "wall ms"),
        tuple(
            (
                name,
                spread(tuple(value / count * 1000 for value in costs.costs[key])),
                number(wall.median(key) / count * 1000) if key in wall.costs else "",
            )
            for name, key in (
                ("ssh host true (F)", "floor"),
                ("once", "once"),
                ("a round of --watch", "watch"),
                ("a minute of following", "follow"),
            )
        ),
        (f"Memory of the largest process of a watch: {number(memory)} MB.",),
    )


def _patient() -> list[str]:
    """All nodes share the cores of this machine."""
    return ["--connections", str(CONNECTIONS), "--timeout", "120"]


def _write(nodes: Nodes) -> None:
    """The health result of all nodes, which share one root."""
    name = nodes.names[0]
    place = "mkdir -p -m 755 /run/gpuprov && chmod 755 /run/gpuprov"
    new = f"{_RESULT}.new"
    into = f"cat > {new} && chmod 644 {new} && mv {new} {_RESULT}"
    nodes.run(name, f"{place} && {into}", given=json.dumps(healthy()))


def _healthy(text: str, nodes: Nodes) -> None:
    """Raises FailedError unless it says of every node that it is healthy."""
    try:
        found = {node["node"]: node["verdict"] for node in json.loads(text)["nodes"]}
    except (ValueError, KeyError, TypeError):
        raise FailedError(f"gpuprov status printed no state: {text[-300:]}") from None
    if found != dict.fromkeys(nodes.names, "pass"):
        odd = [name for name in nodes.names if found.get(name) != "pass"]
        raise FailedError(f"{len(odd)} of {len(nodes.names)} nodes are not healthy: {odd[:3]}")


def _watched(inventory: Path, nodes: Nodes, options: Options) -> tuple[float, float, float]:
    """CPU and wall seconds of a round of a watch, and the memory of its largest process in MB."""
    every = "1" if options.quick else str(_EVERY)
    command = gpuprov("status", str(inventory), "--json", "--watch", every, *_patient())
    around = {**os.environ, **environment(options.folder)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=around)
    try:
        spent: list[tuple[float, float]] = []
        for _ in range(_LAST):
            _healthy(process.stdout.readline() if process.stdout else "", nodes)
            tree = below(process.pid)
            spent.append((sum(map(cpu_of, tree)), time.monotonic()))
        memory = max(map(memory_of, tree))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    (cpu, began), (later, ended) = spent[_FIRST - 1], spent[_LAST - 1]
    rounds = _LAST - _FIRST
    return (later - cpu) / rounds, (ended - began) / rounds, memory


@dataclass(frozen=True)
class _Followed:
    """`cpu`, `seconds`: of a minute, controller and wall. `start`: seconds until all nodes had told their
    result; `late`: until the last had told a new one. `memory` in MB. `node_cpu`: percent of a core that a
    node's program took, with its sshd; `node_memory`: MB that it had for itself."""

    cpu: float
    seconds: float
    start: float
    late: float
    memory: float
    node_cpu: float
    node_memory: float


def _followed(inventory: Path, nodes: Nodes, options: Options) -> _Followed:
    minute = 5.0 if options.quick else _MINUTE
    command = [sys.executable, str(_FOLLOWER), str(inventory)]
    around = {**os.environ, **environment(options.folder)}
    _write(nodes)
    began = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=around)
    try:
        _next_of(process)
        start, late = time.monotonic() - began, 0.0
        time.sleep(2)  # the last logins have ended
        before, cpu, spent = time.monotonic(), cpu_of(process.pid), nodes.cpu()
        for number_of in range(_MINUTES):
            time.sleep(max(0.0, before + (number_of + 0.5) * minute - time.monotonic()))
            _write(nodes)
            late = max(late, _next_of(process))
        time.sleep(max(0.0, before + _MINUTES * minute - time.monotonic()))
        seconds = time.monotonic() - before
        cpu, spent = cpu_of(process.pid) - cpu, nodes.cpu() - spent
        memory, own = memory_of(process.pid), max(map(_own_memory, _programs()), default=0.0)
    finally:
        process.communicate(timeout=60)
    share = spent / seconds / len(nodes.names) * 100
    return _Followed(cpu / seconds * 60, 60.0, start, late, memory, share, own)


def _next_of(process: subprocess.Popen[str]) -> float:
    """How late the last of the nodes' next results was. Raises FailedError when they do not come."""
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise FailedError("who follows the health results has ended")
    return float(line)


def _programs() -> list[int]:
    """The programs that follow the result, of all nodes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().endswith(b"python3\0-I\0-S\0-\0"):
                found.append(int(path.parent.name))
    return found


def _own_memory(pid: int) -> float:
    """What a process has for itself, in MB."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(text.partition("RssAnon:")[2].split()[0]) / 1024
