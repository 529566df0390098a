"""The savings and costs of workers: `gpuprov drift` alone and behind two workers, in turns.

Controller, workers, their Receptors and the nodes share this machine, so CPU is counted separately for each;
the controller's is that of the command and its Receptor together. Wall time is compared on nodes that are
distant from workers, too. On a fleet of thousands the number of connections limits it; here the two cores
would do so long before. So each process gets few connections, which gives the nodes as many turns as LARGE
nodes have with the default number; that number is measured as well, for comparison.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import contenders
from benchmarks.bench_drift import converged, prepared, said, sees
from benchmarks.contenders import CONNECTIONS, FLOOR, Contender, Work
from benchmarks.expected import Expected
from benchmarks.nodes import FailedError, Nodes, fleet, light
from benchmarks.results import Options, Result, ratios
from benchmarks.worker_mesh import WORKERS, WorkerMesh, worker_mesh
from provision.remote.ssh.fanout import MOST
from provision.text import many
from tests.support.receptor import CONTROLLER

AWAY = 0.1  # seconds in each direction, from the controller and from the workers to the nodes
LARGE = 10_000  # nodes of the imitated fleet
TURNS = LARGE / MOST
FAR = 8  # connections of each process then: 16 for each of two workers nearly fill both cores
FLOOR_NODES = 200  # the cost of `ssh host true` per node does not depend on their number
LEAST = 1.0  # ms of CPU that a worker spends at least on a node that it observes
ALONE, BEHIND = "gpuprov drift", "gpuprov drift behind two workers"


def measure(options: Options) -> Iterator[Result]:
    with worker_mesh() as mesh:
        with fleet(options.nodes) as nodes, prepared(nodes) as expected:
            yield from _cpu(nodes, expected, mesh, options)
        if os.geteuid() == 0:
            connections = 1 if options.quick else FAR
            count = options.nodes if options.quick else round(TURNS * connections)
            with light(count, AWAY) as nodes, prepared(nodes) as expected:
                yield from _wall(nodes, expected, mesh, options, connections)


def both(mesh: WorkerMesh, connections: int | None) -> tuple[Contender, Contender]:
    """Return `drift` of a controller alone and of one with workers, as contenders.

    Each process that contacts nodes opens at most `connections` connections."""

    def alone(nodes: Nodes, expected: Sequence[Expected], folder: Path) -> Work:
        place = contenders.installed(folder, expected)
        inventory = nodes.inventory(folder, gpuprov_roles=[contenders.ROLE])
        return contenders.drift(nodes, place, inventory, folder, connections)

    def behind(nodes: Nodes, expected: Sequence[Expected], folder: Path) -> Work:
        place = contenders.installed(folder, expected)
        mesh.use(place)
        inventory = mesh.inventory(nodes, folder, gpuprov_roles=[contenders.ROLE])
        return contenders.drift(nodes, place, inventory, folder, connections)

    return Contender(ALONE, alone), Contender(BEHIND, behind)


@dataclass(frozen=True)
class Spent:
    """The seconds of one run: CPU of the command, the controller's Receptor and the workers; wall time."""

    command: float
    receptor: float
    workers: float
    wall: float

    @property
    def controller(self) -> float:
        return self.command + self.receptor

    @property
    def total(self) -> float:
        return self.controller + self.workers


Runs = Mapping[str, list[Spent]]


def spent_by(name: str, work: Work, nodes: Nodes, mesh: WorkerMesh | None) -> Spent:
    """Run `work`. Raises FailedError unless each node is as declared and every worker observed its share."""
    before = mesh.cpu() if mesh else {}
    cost = converged(name, work, nodes)
    after = mesh.cpu() if mesh else {}
    spent = {one: after[one] - before[one] for one in after}
    receptor = spent.pop(CONTROLLER, 0.0)
    share = len(nodes.names) // len(WORKERS)
    idle = [worker for worker, seconds in spent.items() if seconds * 1000 < LEAST * share]
    if idle:
        raise FailedError(f"{', '.join(idle)} asked no nodes: {spent}")
    return Spent(cost.controller, receptor, sum(spent.values()), cost.wall)


def _in_turns(
    nodes: Nodes,
    expected: Sequence[Expected],
    mesh: WorkerMesh,
    folder: Path,
    rounds: int,
    connections: int | None,
    before: Callable[[], None] = lambda: None,
) -> Runs:
    """Run both contenders once per round. `before`: called at the start of each round."""
    alone, behind = both(mesh, connections)
    works = {each: each.make(nodes, expected, _new(folder, each.name)) for each in (alone, behind)}
    runs: dict[str, list[Spent]] = {alone.name: [], behind.name: []}
    for turn in range(rounds):
        before()
        for each, work in works.items():
            said(f"round {turn + 1} of {rounds}: {each.name}, {many(len(nodes.names), 'node')}")
            through = mesh if each is behind else None
            runs[each.name].append(spent_by(each.name, work, nodes, through))
    return runs


def _sees(nodes: Nodes, expected: Sequence[Expected], mesh: WorkerMesh, folder: Path) -> None:
    _, behind = both(mesh, CONNECTIONS)
    said(f"does {behind.name} see what differs?")
    sees(behind, nodes.first(len(WORKERS)), expected, folder)


def _cpu(nodes: Nodes, expected: Sequence[Expected], mesh: WorkerMesh, options: Options) -> Iterator[Result]:
    folder = _new(options.folder, "near")
    _sees(nodes, expected, mesh, _new(folder, "seen"))
    some = nodes.first(FLOOR_NODES)
    floor = FLOOR.make(some, expected, _new(folder, "floor"))
    floors: list[float] = []  # seconds per node

    def measure_floor() -> None:
        said(f"{FLOOR.name}, {many(len(some.names), 'node')}")
        floors.append(converged(FLOOR.name, floor, some).controller / len(some.names))

    runs = _in_turns(nodes, expected, mesh, folder, options.rounds, CONNECTIONS, measure_floor)
    alone, behind = runs[ALONE], runs[BEHIND]
    count = len(nodes.names)
    what = f"{_what(expected, nodes)} behind two workers"
    yield Result(
        "workers.controller",
        what,
        "`ssh host true`",
        ratios([one.controller / count for one in behind], floors),
        f"The command and the controller's Receptor together. Nodes: {nodes.kind}.",
    )
    yield Result(
        "workers.total",
        f"{what}: controller, workers and their Receptors",
        "`gpuprov drift` without workers",
        ratios([one.total for one in behind], [one.total for one in alone]),
    )


def _wall(
    nodes: Nodes, expected: Sequence[Expected], mesh: WorkerMesh, options: Options, connections: int
) -> Iterator[Result]:
    folder = _new(options.folder, "far")
    _sees(nodes, expected, mesh, _new(folder, "seen"))
    few = _in_turns(nodes, expected, mesh, _new(folder, "few"), options.rounds, connections)
    away = f"{_what(expected, nodes)} that are far away, {AWAY} s in each direction"
    yield Result(
        "workers.wall",
        f"{away}; the controller, or each of two workers, opens {many(connections, 'connection')} at a time",
        "`gpuprov drift` without workers",
        _wall_ratios(few),
        f"So nodes take as many turns as {LARGE:,} with the usual {MOST} connections.",
    )


def _wall_ratios(runs: Runs) -> tuple[float, ...]:
    return ratios([one.wall for one in runs[BEHIND]], [one.wall for one in runs[ALONE]])


def _what(expected: Sequence[Expected], nodes: Nodes) -> str:
    return f"`gpuprov drift` of {len(expected)} expectations on {len(nodes.names):,} nodes"


def _new(folder: Path, name: str) -> Path:
    place = folder / name.replace(" ", "-")
    place.mkdir()
    return place
