"""What looking at a node costs, as ratios to plain ssh in the same run, host keys checked on both sides.

The nodes are one real sshd on a loopback address, asked once per node. Controller: CPU of the client side
for one node, against F, `xargs -P ssh host true` with curve25519 (what a client pays for a newer exchange is
not ours to count). Node: CPU of sshd and all it runs, against `python3 -I -S -c pass` over ssh. Wall: too.
Goals: controller at most 0.9 F, node at most 2.5x, wall at most 1.3x.

    python benchmarks/bench_drift.py [--nodes 100] [--connections 16] [--repeats 5]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from provision import diagnosis, drift_report  # noqa: E402
from provision.inventory import Node  # noqa: E402
from provision.observe import observe  # noqa: E402

# About what the shipped roles ask for; tools that cost the node a process are asked where they answer.
PACKAGES = (
    "openssh-server",
    "python3",
    "bash",
    "nvidia-open",
    "cuda-toolkit-12-9",
    "libnccl2",
    "datacenter-gpu",
)
FILES = (
    "/etc/os-release",
    "/etc/ssh/sshd_config",
    "/etc/modprobe.d/nvidia.conf",
    "/etc/modprobe.d/nouveau.conf",
)
FACTS = frozenset(
    [f"package.{name}.{what}" for name in PACKAGES for what in ("version", "held")]
    + [f"file.{path}.content" for path in FILES]
    + [f"module.{name}.loaded" for name in ("nvidia", "nvidia_uvm", "nouveau", "nvidia_peermem")]
    + ["driver.loaded_version", "driver.flavour", "driver.userspace_version"]
    + [f"sysctl.{key}.value" for key in ("vm.swappiness", "vm.nr_hugepages", "kernel.numa_balancing")]
)
# What drift asks beside the promises: the fleet's majority, fingerprints, causes. (modinfo is asked anyway.)
BESIDE = (drift_report.FACTS | diagnosis.FACTS) - {"driver.installed_version"}


@dataclass(frozen=True)
class Cost:
    """Milliseconds per node."""

    controller: float
    node: float
    wall: float


def children_cpu(pid: int) -> float:
    """CPU seconds of the finished children of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def settled(pid: int) -> None:
    """Wait until the sshd has reaped every session."""
    for _ in range(200):
        if not Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return
        time.sleep(0.05)


def cost_of(work: Callable[[], Any], sshd: Any, number: int) -> Cost:
    before_cpu, before_node, before = os.times(), children_cpu(sshd.process.pid), time.perf_counter()
    work()
    wall = time.perf_counter() - before
    cpu = sum(os.times()[:4]) - sum(before_cpu[:4])
    settled(sshd.process.pid)
    node = children_cpu(sshd.process.pid) - before_node
    return Cost(cpu / number * 1000, node / number * 1000, wall / number * 1000)


def plain_ssh(sshd: Any, number: int, connections: int, *command: str) -> None:
    options = ["-F", "none", "-o", "BatchMode=yes", "-o", "KexAlgorithms=curve25519-sha256"]
    options += ["-o", f"UserKnownHostsFile={sshd.known_hosts}", "-o", "StrictHostKeyChecking=yes"]
    options += ["-i", str(sshd.key_file), "-p", str(sshd.port), "-l", sshd.user]
    subprocess.run(
        ["xargs", "-P", str(connections), "-I", "{}", "ssh", "-n", *options, "{}", *command],
        input="127.0.0.1\n" * number,
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=600,
    )


def look(nodes: Collection[Node], ask: Mapping[str, Collection[str]], connections: int) -> None:
    found = observe(nodes, ask, connections=connections)
    wrong = {seen.error for seen in found.values() if seen.error}
    assert not wrong, wrong


def measure(sshd: Any, number: int, connections: int, repeats: int) -> None:
    nodes = [sshd.node(f"node-{i:05}", ansible_become=False) for i in range(number)]
    ask = dict.fromkeys((node.name for node in nodes), FACTS)
    more = dict.fromkeys((node.name for node in nodes), FACTS | BESIDE)
    works = {
        "ssh host true (F)": lambda: plain_ssh(sshd, number, connections, "true"),
        "ssh host python3 -I -S -c pass": lambda: plain_ssh(
            sshd, number, connections, "python3", "-I", "-S", "-c", "pass"
        ),
        f"observe, {len(FACTS)} facts": lambda: look(nodes, ask, connections),
        f"the same and {len(BESIDE - FACTS)} undeclared facts": lambda: look(nodes, more, connections),
    }
    look(nodes[:connections], ask, connections)  # imports are paid once, whatever the fleet
    rounds = [[cost_of(work, sshd, number) for work in works.values()] for _ in range(repeats)]
    median = [
        Cost(
            *(
                statistics.median(getattr(turn[i], name) for turn in rounds)
                for name in ("controller", "node", "wall")
            )
        )
        for i in range(len(works))
    ]
    print(f"{number} nodes, {connections} at a time, median of {repeats}; milliseconds per node")
    for name, cost in zip(works, median, strict=True):
        print(
            f"  {name:34} controller {cost.controller:6.1f}   node {cost.node:6.1f}   wall {cost.wall:6.1f}"
        )
    floor, python, ours, whole = median
    print(f"controller  {ours.controller / floor.controller:.2f} F    (goal 0.9)")
    print(f"node        {ours.node / python.node:.2f}x    (goal 2.5)")
    print(f"wall        {ours.wall / python.wall:.2f}x    (goal 1.3)")
    print(
        f"undeclared facts: controller {whole.controller / ours.controller:.2f}x, "
        f"node {whole.node / ours.node:.2f}x, wall {whole.wall / ours.wall:.2f}x of the same without"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    spec = importlib.util.spec_from_file_location("test_sshd", ROOT / "tests" / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    program = shutil.which("sshd", path=f"/usr/sbin:{os.environ.get('PATH', '')}")
    assert program, "apt install openssh-server"
    with tempfile.TemporaryDirectory() as folder:
        sshd = module.Sshd(Path(folder), program)
        try:
            measure(sshd, options.nodes, options.connections, options.repeats)
        finally:
            sshd.stop()


if __name__ == "__main__":
    main()
