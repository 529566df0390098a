"""How many rounds it takes to name what is bad across nodes, and what planning and judging cost.

Random fleets in racks of 8 with 3 bad nodes and a bad uplink, noise of 0.1 to 2 %, each with its own seed;
then large fleets in which one node of 40 is bad. Nothing is measured on nodes: a fabric with planted faults
answers (tests/support/fabric.py). Exits 1 when a fault is not named or somebody else is.

    python -m benchmarks.bench_suspects [--cases 1000] [--nodes 64]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.results import Finding, Options, Result
from provision.checks.pairs.pairing import exhaustive_rounds, minutes
from tests.support.fabric import Fabric, named, racked

SECONDS = 20  # of one round of pairs, for the price of the exhaustive schedule


def run(seed: int, nodes: int, bad: int) -> tuple[int, bool]:
    """How many rounds one case took, and whether exactly what was planted is named."""
    chance = random.Random(seed)  # noqa: S311 - a seed reproduces it
    fleet = racked(nodes, 8)
    uplink = chance.choice(sorted(fleet.members))
    faults: dict[tuple[str, ...], float | None] = {("uplink", uplink): chance.uniform(0.2, 0.85)}
    for node in chance.sample(fleet.nodes, bad):
        faults["node", node] = chance.choice((0.3, 0.5, 0.8, None))
    fabric = Fabric(fleet, faults, noise=chance.uniform(0.001, 0.02), seed=seed)
    wanted = {name if kind == "node" else f"uplink of rack {name}" for kind, name in faults}
    right = named(fabric.run()) == wanted
    return fabric.rounds, right


def measure(options: Options) -> Iterator[Finding]:
    """The most rounds that any of some fleets took; fails when somebody is not named, or wrongly."""
    cases = 5 if options.quick else 100
    taken = [run(seed, 64, 3) for seed in range(cases)]
    wrong = [seed for seed, (_, right) in enumerate(taken) if not right]
    if wrong:
        raise RuntimeError(f"not named, or somebody else: seeds {wrong}")
    what = f"the most of {cases} fleets of 64 simulated nodes, 3 of them and an uplink bad; all were named"
    yield Result("pairs.rounds", what, "", (float(max(rounds for rounds, _ in taken)),))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=64)
    options = parser.parse_args()
    rounds: Counter[int] = Counter()
    wrong = []
    for seed in range(options.cases):
        taken, right = run(seed, options.nodes, 3)
        rounds[taken] += 1
        wrong += [] if right else [seed]
    print(f"{options.cases} fleets of {options.nodes} nodes, 3 of them and an uplink bad")
    print(f"  not named, or somebody else: {wrong or 'none'}")
    for taken, count in sorted(rounds.items()):
        print(f"  {taken} rounds: {count:5}  {'#' * (60 * count // options.cases)}")
    for nodes in (512, 1024):
        begin = time.process_time()
        taken, right = run(nodes, nodes, nodes // 40)
        wrong += [] if right else [nodes]
        spent = time.process_time() - begin
        price = minutes(exhaustive_rounds(nodes), SECONDS)
        print(f"{nodes} nodes, {nodes // 40} bad: {taken} rounds, {spent:.1f} s of CPU", end="")
        print(f"; the exhaustive schedule would take {price:.0f} minutes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
