"""What `gpuprov status` costs the controller: once, and with `--watch`, which keeps its connections open.

CPU of the whole tree of processes against F, `xargs -P 32 ssh host true` with curve25519, in turns. A watch
is measured from one round to a later one, so that neither its start nor its logins count, but what its open
connections cost while nobody asks does. The nodes are light ones (needs root), with a health result as eight
GPUs have it; each round must find all of them healthy.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.costs import FailedError, cost_of, environment, gpuprov
from benchmarks.light_nodes import below, cpu_of
from benchmarks.nodes import Nodes, in_parallel, light
from benchmarks.peers.contender import CONNECTIONS
from benchmarks.results import Finding, Options, Result, Rounds, Table, number, spread
from provision import __version__

_RESULT = "/run/gpuprov/health.json"
_EVERY = 10  # seconds between rounds, as a user has it
_FIRST, _LAST = 1, 3  # the rounds between which a watch is measured: logins are in the first
_CHECKS = 18


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
    nodes.run(name, "mkdir -p -m 755 /run/gpuprov && cat > " + _RESULT, given=json.dumps(_result()))
    nodes.run(name, f"chmod 755 /run/gpuprov && chmod 644 {_RESULT}")


def _result() -> dict[str, Any]:
    """Healthy, with eight GPUs and a finding that does not count yet; 6 KB."""
    finding = {
        **dict.fromkeys(("unit", "limit", "source"), ""),
        **{
            "check": "network_ports",
            "verdict": "warn",
            "device": "mlx5_3",
            "metric": "link_downed",
            "value": 1,
        },
        **{
            "message": "mlx5_3 went down once in the last hour",
            "action": "watch",
            "evidence": ["link_downed 1"],
        },
        **{"state": "pending", "since": "2026-11-25T09:58:00Z", "seen": 1, "of": 5, "needs": 2},
        **{"clean": 0, "clear_after": 3},
    }
    gpus = [
        {
            "index": index,
            "name": "NVIDIA H100 80GB HBM3",
            "serial": f"165092300432{index}",
            "uuid": f"GPU-{index:08x}-2222-3333-4444-555555555555",
            "pci_address": f"00000000:{0x18 + index:02X}:00.0",
        }
        for index in range(8)
    ]
    return {
        **{"format": 1, "gpuprov": __version__, "node": "gpu-01", "error": ""},
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "uptime": time.clock_gettime(time.CLOCK_BOOTTIME),
        **{"started": "2026-11-25T10:00:00Z", "finished": "2026-11-25T10:00:02Z", "seconds": 1.9},
        **{"interval": 86400, "verdict": "pass", "measured": "warn", "gpus": gpus},
        "facts": {
            "os": "debian 13",
            "kernel": "6.12.57",
            "driver": "580.126.09",
            "sku": "h100-sxm",
            "gpus": 8,
        },
        "checks": [
            {"check": f"check_number_{number}", "verdict": "pass", "seconds": 0.1}
            for number in range(_CHECKS)
        ],
        "findings": [finding] * 4,
    }


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
        memory = max(map(_memory, tree))
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    (cpu, began), (later, ended) = spent[_FIRST - 1], spent[_LAST - 1]
    rounds = _LAST - _FIRST
    return (later - cpu) / rounds, (ended - began) / rounds, memory


def _memory(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024
