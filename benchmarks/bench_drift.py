"""What looking at a node costs: `gpuprov drift`, floors and peers on forty expectations, in turns.

Controller: CPU of the whole tree of processes, start and imports too, against F, `xargs -P 32 ssh host true`
with curve25519 (what a client pays for a newer exchange is not ours to count). Host keys are checked. Node:
CPU of sshd and all it runs, against `python3 -I -S -c pass` over ssh; wall: too. Before the rounds,
differences of every kind are planted, and each contender must report exactly those: one that does not look is
no peer.

    python -m benchmarks.bench_drift [--nodes 100] [--rounds 5]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import expected as expectations
from benchmarks.costs import Cost, FailedError, cost_of
from benchmarks.expected import Expected
from benchmarks.nodes import Nodes, fleet
from benchmarks.peers import ansible_module, ansible_playbook, gpuprov, pyinfra, testinfra
from benchmarks.peers.contender import Contender, Work
from benchmarks.peers.plain_ssh import FLOOR, PYTHON
from benchmarks.results import Finding, Options, Result, Rounds, Table, alone, number, spread

OURS = gpuprov.CONTENDERS[0]
PEERS = (
    *ansible_module.CONTENDERS,
    *pyinfra.CONTENDERS,
    *testinfra.CONTENDERS,
    *ansible_playbook.CONTENDERS,
)
SLOW = 20  # a contender that is measured on fewer nodes than this takes part in three rounds only
SEEN_ON = 2  # nodes on which a fast contender is tried whether it sees what was planted; a slow one on 1


def measure(options: Options, peers: Sequence[Contender] = PEERS) -> Iterator[Finding]:
    with fleet(options.nodes) as nodes:
        folder = f"/tmp/gpuprov-benchmark-{nodes.port}-{nodes.names[0]}"  # noqa: S108 - on the nodes
        expected = expectations.prepared(nodes, folder)
        try:
            yield from _measured(nodes, expected, options, peers)
        finally:
            expectations.removed(nodes, folder)


def _measured(
    nodes: Nodes, expected: Sequence[Expected], options: Options, peers: Sequence[Contender]
) -> Iterator[Finding]:
    words = options.peers.split(",")
    asked = [peer for peer in peers if words == ["all"] or any(word in peer.name for word in words)]
    contenders = [FLOOR, PYTHON, OURS, *asked]
    notes = {peer.name: "not asked for in this run" for peer in peers if peer not in asked}
    works: dict[str, tuple[Work, Nodes]] = {}
    for number_, contender in enumerate(contenders):
        some = nodes.first(min(contender.most, 2 if options.quick else contender.most))
        try:
            if contender not in (FLOOR, PYTHON):
                few = nodes.first(SEEN_ON if contender.most >= SLOW else 1)
                sees(contender, few, expected, _new(options.folder, f"s{number_}"))
            works[contender.name] = (
                contender.make(some, expected, _new(options.folder, f"c{number_}"), False),
                some,
            )
            notes[contender.name] = contender.note
        except FailedError as error:
            if contender is OURS:
                raise
            notes[contender.name] = f"not measured: {error}"
    cpu, node, wall = Rounds(), Rounds(), Rounds()
    memory: dict[str, float] = {}
    for turn in range(options.rounds):
        for name, (work, some) in list(works.items()):
            if turn >= 3 and len(some.names) < min(SLOW, len(nodes.names)):
                continue
            try:
                cost = converged(name, work, some)
            except FailedError as error:
                if name in (FLOOR.name, PYTHON.name, OURS.name):
                    raise
                notes[name] = f"not measured: {error}"
                works.pop(name)
                continue
            for rounds, spent in ((cpu, cost.controller), (node, cost.node), (wall, cost.wall)):
                rounds.add(name, spent / len(some.names) * 1000)
            memory[name] = max(memory.get(name, 0), cost.memory)
    what = f"`gpuprov drift` of {len(expected)} expectations on {len(nodes.names)} nodes"
    note = f"nodes: {nodes.kind}"
    yield Result("drift.controller", what, "`ssh host true`", cpu.ratios(OURS.name, FLOOR.name), note)
    yield Result("drift.node", what, "`ssh host python3 -I -S -c pass`", node.ratios(OURS.name, PYTHON.name))
    yield Result("drift.wall", what, "`ssh host python3 -I -S -c pass`", wall.ratios(OURS.name, PYTHON.name))
    yield _table(len(expected), works, notes, (cpu, node, wall), memory)


def _new(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir()
    return place


def sees(contender: Contender, nodes: Nodes, expected: Sequence[Expected], folder: Path) -> None:
    """Raises FailedError unless it reports the planted differences, one of each kind, on each node."""
    wrong = expectations.with_differences(expected)
    work = contender.make(nodes, wrong, folder, True)
    expectations.plant(nodes, expected)
    try:
        cost = cost_of(work.command, nodes=nodes, environment=work.environment, folder=work.folder)
        found = _differences(work, cost)
    finally:
        expectations.heal(nodes, expected)
    kinds = len(expectations.WANTED)
    if found != dict.fromkeys(nodes.names, kinds):
        raise FailedError(f"it reports {found}, not {kinds} on each node: {cost.last_words}")


def _differences(work: Work, cost: Cost) -> Mapping[str, int]:
    with suppress(ValueError, KeyError, TypeError):  # it printed something else
        return dict(work.differences(cost))
    return {}


def converged(name: str, work: Work, nodes: Nodes) -> Cost:
    """What it costs where nothing differs. Raises FailedError unless it says so of each node."""
    cost = cost_of(work.command, nodes=nodes, environment=work.environment, folder=work.folder)
    found = _differences(work, cost)
    if found != dict.fromkeys(nodes.names, 0):
        odd = [node for node in nodes.names if found.get(node) != 0]
        raise FailedError(f"{name}: {len(odd)} of {len(nodes.names)} not as declared: {cost.last_words}")
    return cost


def _table(
    asked: int,
    works: Mapping[str, tuple[Work, Nodes]],
    notes: Mapping[str, str],
    costs: tuple[Rounds, Rounds, Rounds],
    memory: Mapping[str, float],
) -> Table:
    cpu, node, wall = costs
    rows = []
    for name, (_, some) in works.items():
        spent = tuple(cpu.costs[name])
        rows.append(
            (
                name,
                str(len(some.names)),
                spread(spent),
                f"{number(cpu.median(name) / cpu.median(FLOOR.name))}x",
                f"{number(cpu.median(name) / cpu.median(OURS.name))}x",
                number(node.median(name)),
                number(wall.median(name)),
                number(memory[name]),
            )
        )
    head = ("", "nodes", "controller ms", "of F", "of gpuprov", "node ms", "wall ms", "memory MB")
    return Table(
        f"{asked} expectations of a converged node: what it costs to look, per node",
        head,
        tuple(rows),
        tuple(f"{name}: {note}." for name, note in notes.items() if note),
    )


if __name__ == "__main__":
    sys.exit(alone(measure, __doc__ or ""))
