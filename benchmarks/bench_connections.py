"""How many nodes to ask at once when they are far away: a fixed number against the level that finds itself.

First a crew whose nodes only take their time (a way of so many round trips, and a few milliseconds of our
processor), then light nodes behind a delay, over real SSH (as root; there the nodes share our cores, so that
more than those carry is not to be had). Ratios of wall time, in turns; below 1 the level is faster.

    python -m benchmarks.bench_connections [--nodes 100] [--rounds 3]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.light_nodes import light_nodes
from benchmarks.nodes import FailedError
from benchmarks.results import Finding, Options, Result, Rounds, alone, number
from provision.desired import inventory
from provision.remote.observe import observe
from provision.remote.ssh.fanout import MOST, VARIABLE
from provision.remote.ssh.pool import Crew

FIXED = 64  # at a time
TIMES = 5  # as many nodes as the other parts are asked to take: 500 instead of 100
ROUNDS = 3
WAYS = (0.1, 1.5, 4.0)  # seconds for all round trips of a connection, login, program and answer
OURS = 0.004  # seconds of our processor for a node
DELAY = 0.15  # seconds in each direction of the light nodes


def measure(options: Options) -> Iterator[Finding]:
    count = options.nodes if options.quick else TIMES * options.nodes
    for way in WAYS[:1] if options.quick else WAYS:
        what = f"{count} nodes that are {way} s away"
        yield _compared(options, what, lambda most, way=way: crew(count, way, most))  # type: ignore[misc]
    if os.geteuid() != 0:
        return
    with light_nodes(count, delay=DELAY) as fleet, mock.patch.dict(os.environ, {VARIABLE: "1"}):
        nodes = list(inventory.load(fleet.inventory).nodes.values())

        def look(most: int) -> None:
            found = observe(nodes, {}, connections=most, timeout=300)
            if silent := [name for name, seen in found.items() if seen.error]:
                raise FailedError(f"{len(silent)} nodes did not answer: {found[silent[0]].error}")

        yield _compared(options, f"{count} light nodes, {DELAY} s in each direction", look)


def crew(nodes: int, way: float, most: int) -> None:
    """Ask nodes that each take `way` seconds, and of our processor what an answer takes."""

    def work(name: str) -> str:
        time.sleep(way)
        end = time.thread_time() + OURS
        while time.thread_time() < end:
            pass
        return name

    hands = Crew([f"n{place}" for place in range(nodes)], work, seconds=600, threads=most)
    while hands.unfinished:
        for _ in hands.gather(wait=1.0):
            pass


def _compared(options: Options, what: str, ask: Callable[[int], None]) -> Result:
    wall = Rounds()
    for _ in range(min(options.rounds, ROUNDS)):
        for name, most in (("fixed", FIXED), ("level", MOST)):
            began = time.perf_counter()
            ask(most)
            wall.add(name, time.perf_counter() - began)
    note = f"{number(wall.median('level'))} s; the level may rise to {MOST}"
    what = f"asking {what}, wall time with the level that finds itself"
    return Result("", what, f"{FIXED} at a time", wall.ratios("level", "fixed"), note)


if __name__ == "__main__":
    sys.exit(alone(measure, __doc__ or ""))
