"""Memory of `gpuprov drift` for 10,000 nodes, without a network.

Answers of an 8-GPU node are replayed through the whole command: inventory, parsing answers, comparison, the
fleet's majority, run folder and text, in a fresh process. Every node has its own serials, one in a hundred
drifts and one in a hundred is unreachable. bench_drift.py measures the cost of connections.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.costs import ROOT
from benchmarks.results import Options, Result
from provision import cli
from provision.desired import expectations, stack
from provision.fleet import Node
from provision.remote import protocol
from provision.remote.protocol import unreachable
from provision.remote.reach import observe
from provision.remote.reach.observe import Observation

KERNEL = "6.8.0-51-generic"
NAME = "@@@@@@@@"  # eight characters that each node replaces with its own
GPUS = [
    {
        "address": f"0000:{bus:02x}:00.0",
        "device_id": "10de:2330",
        "subsystem_id": "10de:16c1",
        "link_width": 16,
        "link_width_max": 16,
    }
    for bus in (0x1A, 0x40, 0x53, 0x66, 0x9C, 0xC0, 0xD2, 0xE4)
]
CARDS = [
    {"device": f"mlx5_{card}", "board_id": "MT_0000000838", "firmware": "28.39.1002", "link_width": "4X"}
    for card in range(10)
]
BASE: dict[str, Any] = {
    "os.id": "ubuntu",
    "os.version_id": "24.04",
    "os.codename": "noble",
    "os.family": "debian",
    "os.arch": "x86_64",
    "kernel.release": KERNEL,
    "kernel.boot_release": KERNEL,
    "boot.id": f"{NAME}-6f1c-4f6e-9a3e-1f0d3c2b4a59",
    "boot.required": False,
    "boot.reason": None,
    "gpu.count": 8,
    "gpu.nvswitch_count": 4,
    "gpu.pci": GPUS,
    "firmware.gpu_uuid": [f"GPU-{NAME}-0000-0000-0000-00000000000{gpu}" for gpu in range(8)],
    "firmware.gpu_vbios": ["96.00.89.00.01"] * 8,
    "firmware.gpu_gsp": ["580.126.09"] * 8,
    "firmware.bios_version": "2.21.1",
    "firmware.cpu_microcode": "0x2b000603",
    "firmware.rdma": CARDS,
}


def fulfilling(expectation: expectations.Expectation) -> Any:
    """Return some value that satisfies an expectation."""
    candidates = [expectation.value, [expectation.value], "manual\n", "auto\n"]
    if expectation.operator == "one_of":
        candidates = list(expectation.value)
    return next((each for each in candidates if expectation.holds(each)), expectation.value)


def recorded(node: Node, asked: Collection[str]) -> bytes:
    """Return the answer that such a node prints when everything is as declared."""
    names = {name.replace(expectations.KERNEL, KERNEL) for name in asked}
    known = expectations.of_node(stack.declared(node, {}), stack.describe_node(BASE))
    facts = dict.fromkeys(names) | {each.fact: fulfilling(each) for each in known if each.fact in names}
    body = json.dumps({"uid": 0, "facts": {**facts, **BASE}, "problems": {}}).encode()
    return protocol.BEGIN + b"%d\n%b\n" % (len(body), body) + protocol.END + b"\n"


class Replay:
    """Stands in for observe.observe and replays answers from memory instead of the network."""

    def __init__(self) -> None:
        self._recorded: dict[frozenset[str], bytes] = {}

    def observe(
        self,
        nodes: Collection[Node],
        ask: Mapping[str, Collection[str]],
        *,
        timeout: float = 60.0,
        on_done: Callable[[Observation], None] | None = None,
        **_options: Any,
    ) -> dict[str, Observation]:
        answers = observe._Answers(ask, timeout, on_done)
        for place, node in enumerate(nodes):
            if place % 100 == 99:
                answers.take(node.name, unreachable("10.0.0.1 did not answer within 10 s"), 10.0)
                continue
            requested = frozenset(ask[node.name])
            if requested not in self._recorded:
                self._recorded[requested] = recorded(node, requested)
            output = self._recorded[requested].replace(NAME.encode(), b"%08d" % place)
            if place % 100 == 50:
                output = output.replace(b'"2.21.1"', b'"2.20.9"').replace(b'0", "', b'1", "', 1)
            answers.take(node.name, output, 0.1)
        return {node.name: answers.found[node.name] for node in nodes}


def peak() -> float:
    """Return the peak MB of this process; getrusage would include the parent's memory before `exec`."""
    kilobytes = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    return int(kilobytes) / 1024


def one_size(nodes: int) -> float:
    """Run the command on `nodes` nodes in this process and return its peak MB."""
    from provision.remote.ssh.client import Ssh

    Ssh()  # load its libraries, which are part of a real observation's cost
    replay = Replay()
    with tempfile.TemporaryDirectory() as name:
        inventory = Path(name, "inventory.json")
        hosts = {
            f"gpu-{place:05}": {"ansible_host": f"10.1.{place // 250}.{place % 250}"}
            for place in range(nodes)
        }
        inventory.write_text(json.dumps({"all": {"hosts": hosts}}))
        os.environ.update(GPUPROV_RUNS=f"{name}/runs", XDG_STATE_HOME=f"{name}/state")
        with mock.patch.object(observe, "observe", replay.observe), redirect_stdout(io.StringIO()):
            cli.main(["drift", str(inventory)])
    return peak()


def measure(options: Options) -> Iterator[Result]:
    """Measure the memory that 10,000 replayed nodes take in a fresh process."""
    size = 100 if options.quick else 10_000
    program = f"from {__name__} import one_size; print(one_size({size}))"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=1800)
    goal = "" if options.quick else "drift.memory"
    yield Result(goal, f"{size:,} replayed nodes", "", (float(done.stdout),))
