"""How many nodes to ask at once when they are far away: a fixed number against the level that finds itself.

First a crew whose nodes only take their time (a way of so many round trips, and a few milliseconds of our
processor), then light nodes behind a delay, over real SSH (as root; there the nodes share our cores, so that
more than those carry is not to be had). Ratios of wall time in turns; above 1 the level is faster.

    python benchmarks/bench_connections.py [--nodes 2000] [--light 400] [--delay 0.15] [--repeats 3]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.light_nodes import light_nodes  # noqa: E402
from provision import inventory  # noqa: E402
from provision.crew import Crew  # noqa: E402
from provision.observe import observe  # noqa: E402
from provision.own_limits import MOST  # noqa: E402

FIXED = (16, 64)
TRIPS = 12  # round trips of a connection, login, program and answer, counted in a dump of one


def crew(nodes: int, way: float, cpu: float, threads: int) -> float:
    """Seconds for a crew whose nodes each take `way` seconds and `cpu` seconds of our processor."""

    def work(name: str) -> str:
        time.sleep(way)
        end = time.thread_time() + cpu
        while time.thread_time() < end:
            pass
        return name

    began = time.perf_counter()
    hands = Crew([f"n{number}" for number in range(nodes)], work, seconds=600, threads=threads)
    while hands.unfinished:
        for _ in hands.gather(wait=1.0):
            pass
    return time.perf_counter() - began


def compared(title: str, measure: Callable[[int], float], repeats: int) -> None:
    turns = [{threads: measure(threads) for threads in (*FIXED, MOST)} for _ in range(repeats)]
    for threads in FIXED:
        ratio = statistics.median(turn[threads] / turn[MOST] for turn in turns)
        seconds = statistics.median(turn[threads] for turn in turns)
        print(
            f"  {title}: {threads} at a time {seconds:6.1f} s, {ratio:.2f}x of the level that finds itself",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--light", type=int, default=400)
    parser.add_argument("--delay", type=float, default=0.15, help="seconds in each direction")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for way in (0.1, 1.5, 4.0):
        title = f"{options.nodes} nodes, {way} s on the way, 4 ms of ours"
        compared(title, lambda threads, way=way: crew(options.nodes, way, 0.004, threads), options.repeats)  # type: ignore[misc]
    if not options.light or os.geteuid() != 0:
        print("  light nodes: not measured")
        return
    with light_nodes(options.light, delay=options.delay) as fleet:
        nodes = list(inventory.load(fleet.inventory).nodes.values())

        def look(threads: int) -> float:
            began = time.perf_counter()
            found = observe(nodes, {}, connections=threads, timeout=300)
            assert not {seen.error for seen in found.values() if seen.error}
            return time.perf_counter() - began

        compared(f"{options.light} light nodes, {options.delay} s each way", look, options.repeats)


if __name__ == "__main__":
    main()
