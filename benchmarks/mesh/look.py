"""One observation of a simulated fleet behind workers: the product's `observe` in virtual time.

Real: everything that gpuprov does on the controller, from the Links of nodes through assignment, units, their
streams, silence and reassignment to the facts of each node. Simulated: Receptor, the network, the workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.bench_scale import BASE, NAME
from benchmarks.mesh.network import FOR_GOOD, Line, Region, drawn_regions
from benchmarks.mesh.receptor import Receptor, instead_of_socket
from benchmarks.mesh.virtual_threads import World, instead_of
from benchmarks.mesh.worker import RATE, SLOW, Process, Worker
from provision.fleet import Fleet, Node
from provision.remote import protocol, workers
from provision.remote.ansible import handover
from provision.remote.reach import observe
from provision.remote.reach.observe import Observation
from provision.remote.worker_program import worker_entry
from provision.remote.workers import leftovers, mesh, register, sealed

REGIONS, EACH = 8, 5  # number of regions, and of workers in each
SLOW_ONES = 4  # number of slow workers
DARK = 600.0  # seconds
DEAD = 1000  # one in this many nodes does not answer
PACKAGES = 40  # requested package facts
POINTS = 60  # approximate number of points of a curve
SEED = 23


@dataclass(frozen=True)
class Scenario:
    """One simulated situation.
    `dark`: a region is unreachable for ten minutes, once its first worker has observed half of its nodes.
    `both`: nodes name the next region's workers, too. `dies`: a worker dies for good at half of its nodes."""

    nodes: int
    dark: bool = False
    both: bool = True
    dies: bool = False
    seed: int = SEED


@dataclass(frozen=True)
class Looked:
    """The outcome. Times are virtual seconds, except `cpu`: CPU of the controller's own code.

    `unreached`: nodes without a reachable worker at first; they are observed again when the region is back.
    `lost`: nodes without a true result in the end. `twice`: nodes that two units observed. `together`: nodes
    that two units worked on at the same time. `left`: units that Receptor still has, except those of dead
    workers. `curve`: (seconds, nodes with a result)."""

    seconds: float
    cpu: float
    messages: int
    bytes: int
    unreached: int
    lost: int
    twice: int
    together: int
    left: int
    curve: tuple[tuple[float, int], ...]


class Surroundings:
    """The regions with their workers and nodes, and the events that hit them."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World()
        drawn = random.Random(scenario.seed)  # noqa: S311 - latencies and moments, no secrets
        self._drawn = drawn
        self.regions = drawn_regions(REGIONS, drawn)
        names = [f"worker-{number:02}" for number in range(1, REGIONS * EACH + 1)]
        slow = set(drawn.sample(names, SLOW_ONES))
        self.dying = drawn.choice([name for name in names if name not in slow])
        self.dark = drawn.choice(self.regions[1:])  # the first region is the controller's own
        self.dark_from = 0.0
        self._fated = {"dark": scenario.dark, "dies": scenario.dies}
        self.workers = {
            name: self._worker(name, self.regions[number // EACH], RATE * (SLOW if name in slow else 1))
            for number, name in enumerate(names)
        }
        self.receptor = Receptor(self.world, self.workers)

    def _worker(self, name: str, region: Region, rate: float) -> Worker:
        drawn = random.Random(self._drawn.random())  # noqa: S311
        line = Line(region, drawn)

        def distance(node: str) -> float:
            there = self.region_of(node)
            return 0.0005 if there is region else there.latency + region.latency

        return Worker(name, line, rate, distance, self.output, drawn, begun=self._begun)

    def region_of(self, node: str) -> Region:
        return self.regions[number_of(node) % REGIONS]

    def output(self, node: str) -> bytes | None:
        """Return the output of this node; None if it is dead."""
        number = number_of(node)
        return None if number % DEAD == DEAD - 1 else TEMPLATE.replace(NAME.encode(), b"%08d" % number)

    def _begun(self, process: Process) -> None:
        """Schedule the planned events, now that a worker has begun to observe."""
        half = process.nodes[len(process.nodes) // 2][0]
        worker = process.worker
        if self._fated["dark"] and worker.line.region is self.dark:
            self._fated["dark"] = False
            self.world.at(half, self._darken)
        if self._fated["dies"] and worker.name == self.dying:
            self._fated["dies"] = False
            self.world.at(half, lambda: self._die(worker))

    def _darken(self) -> None:
        self.dark_from = self.world.now
        for worker in self.workers.values():
            if worker.line.region is self.dark:
                self._cut(worker, DARK)

    def _die(self, worker: Worker) -> None:
        for process in worker.units:
            process.die(self.world.now)
        worker.line.cut(FOR_GOOD, self.world.now)

    def _cut(self, worker: Worker, seconds: float) -> None:
        """Cut a worker off; its units end when their lease expires, as in worker_entry.py."""
        cut = worker.line.cut(seconds, self.world.now)
        for process in worker.units:
            if process.lease is not None:
                end = cut.there + process.lease + self._drawn.random() * worker_entry._LOOK
                self.world.at(end, lambda process=process: process.stop(self.world.now))  # type: ignore[misc]

    def links(self, node: str) -> list[str]:
        """Return the workers that a node names."""
        first = number_of(node) % REGIONS * EACH
        names = list(self.workers)
        return [
            names[(first + place) % len(names)] for place in range(EACH * (2 if self.scenario.both else 1))
        ]

    def fleet(self) -> Fleet:
        nodes = {
            name: Node(
                name,
                (),
                {
                    "ansible_host": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
                    "ansible_user": "ubuntu",
                    "gpuprov_sku": "h100-sxm",
                    workers.VARIABLE: self.links(name),
                },
            )
            for number, name in ((number, f"gpu-{number:06}") for number in range(self.scenario.nodes))
        }
        there = {name: Node(name, (workers.GROUP,), {}) for name in self.workers}
        groups = {"all": (*nodes, *there), "gpu_nodes": tuple(nodes), workers.GROUP: tuple(there)}
        return Fleet(Path("inventory.yml"), {**nodes, **there}, groups)


def number_of(node: str) -> int:
    return int(node.rpartition("-")[2])


ASKED = sorted(
    {*BASE, *(f"package.lib-{number:02}.version" for number in range(PACKAGES))} - protocol.BASE_FACTS
)
_BODY = json.dumps(
    {"uid": 0, "facts": {**dict.fromkeys(ASKED, "580.126.09-0ubuntu1"), **BASE}, "problems": {}}
)
TEMPLATE = protocol.BEGIN + b"%d\n%b\n" % (len(_BODY), _BODY.encode()) + protocol.END + b"\n"


@contextlib.contextmanager
def in_virtual_time(around: Surroundings, folder: Path) -> Iterator[None]:
    """Run gpuprov's worker code in virtual time with the simulated Receptor."""
    stand_ins = {**instead_of(around.world), "socket": instead_of_socket(around.receptor)}
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{workers.__name__}.") and module is not worker_entry:
                for attribute in stand_ins.keys() & vars(module).keys():
                    stack.enter_context(mock.patch.object(module, attribute, stand_ins[attribute]))
        stack.enter_context(mock.patch.dict("os.environ", XDG_STATE_HOME=str(folder / "state")))
        for place, attribute, value in (
            (handover, "memory_folder", lambda: folder),
            (sealed, "keep", _kept_always_the_same),
            (mesh, "_meshes", {}),
            (register, "_current", []),
            (leftovers, "_swept", set()),
        ):
            stack.enter_context(mock.patch.object(place, attribute, value))
        yield


def _kept_always_the_same(name: str, _key: bytes, keep: Callable[[str, bytes], bytes] = sealed.keep) -> bytes:
    """Return a key derived from the unit's number.
    A random key would compress to another size in each run and so change the transfer time."""
    return keep(name, hashlib.sha256(name.rpartition("-")[2].encode()).digest())


def look(scenario: Scenario, folder: Path) -> Looked:
    around = Surroundings(scenario)
    world, receptor = around.world, around.receptor
    whole = around.fleet()
    with in_virtual_time(around, folder):
        times: list[float] = []
        world.back()
        nodes, apart = workers.apart(whole)
        fleet = workers.linked(nodes, apart, {})
        found = _observed(fleet.nodes.values(), times, world)
        world.leave()
        cpu, ended = world.cpu, world.now
        unreached = [name for name, one in found.items() if one.error and "worker" in one.error]
        if scenario.dark:
            world.pass_until(around.dark_from + DARK + 60.0)
        if unreached:
            found |= _observed([fleet.nodes[name] for name in unreached], times, world)
        world.pass_until(world.now + 60.0)
    lines = [worker.line for worker in around.workers.values()]
    work = [process for worker in around.workers.values() for process in worker.units if process.nodes]
    looked = Counter(name for process in work for name in process.looked())
    gone = {name for name, worker in around.workers.items() if worker.line.broken(world.now)}
    return Looked(
        seconds=ended - world.began,
        cpu=cpu,
        messages=sum(line.messages for line in lines),
        bytes=sum(line.bytes for line in lines),
        unreached=len(unreached),
        lost=sum(not _true(around, name, found.get(name)) for name in fleet.nodes),
        twice=sum(count > 1 for count in looked.values()),
        together=_together(work),
        left=sum(unit.worker.name not in gone for unit in receptor.units.values()),
        curve=_curve(times, world.began),
    )


def _observed(nodes: Collection[Node], times: list[float], world: World) -> dict[str, Observation]:
    return observe.observe(
        nodes,
        {node.name: ASKED for node in nodes},
        on_done=lambda one: times.append(world.now) if not (one.error and "worker" in one.error) else None,
    )


def _true(around: Surroundings, name: str, said: Observation | None) -> bool:
    """Whether the result equals the node's output, or reports a dead node as dead."""
    if said is None:
        return False
    output = around.output(name)
    if output is None:
        return said.unreachable and f"{name} did not answer" in str(said.error)
    facts = json.loads(protocol.unframed(output))["facts"]
    return said.error is None and not said.problems and dict(said.facts) == facts


def _together(work: Collection[Process]) -> int:
    """Count the nodes that two units worked on at the same time."""
    spans = [(one.begun, one.over, {name for _, name in one.nodes}) for one in work]
    both: set[str] = set()
    for (begun, over, nodes), (other_begun, other_over, others) in combinations(spans, 2):
        if begun < other_over and other_begun < over:
            both |= nodes & others
    return len(both)


def _curve(times: list[float], began: float) -> tuple[tuple[float, int], ...]:
    """Return (seconds, number of results until then)."""
    step = max(1, len(times) // POINTS)
    places = sorted({*range(0, len(times), step), len(times) - 1}) if times else []
    return tuple((round(times[place] - began, 1), place + 1) for place in places)


def main(arguments: Mapping[str, Any], folder: str) -> None:
    """Observe once, in a separate process, and print the outcome as JSON."""
    print(json.dumps(asdict(look(Scenario(**arguments), Path(folder)))))
