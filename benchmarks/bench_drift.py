"""What looking at a node costs: `gpuprov drift`, floors and peers on forty expectations, in turns.

Controller: CPU of the whole tree of processes, start and imports too, against F, `xargs -P 32 ssh host true`
with curve25519 (what a client pays for a newer exchange is not ours to count). Host keys are checked. Node:
CPU of sshd and all it runs, against `python3 -I -S -c pass` over ssh. Wall: against `python3 -c pass` over
ssh, and once more on nodes that are far away: near ones share our cores, and there it takes longer to look at
more. Before the rounds, differences of every kind are planted, and each contender must report exactly
those: one that does not look is no peer.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import expected as expectations
from benchmarks.costs import Cost, FailedError, cost_of
from benchmarks.expected import Expected
from benchmarks.nodes import Nodes, fleet, light
from benchmarks.peers import ansible_module, ansible_playbook, gpuprov, pyinfra, testinfra
from benchmarks.peers.contender import Contender, Work
from benchmarks.peers.plain_ssh import BARE_PYTHON, FLOOR, PYTHON
from benchmarks.results import Finding, Options, Result, Table, number, ratios, spread

OURS = gpuprov.CONTENDERS[0]
PEERS = (
    *ansible_module.CONTENDERS,
    *pyinfra.CONTENDERS,
    *testinfra.CONTENDERS,
    *ansible_playbook.CONTENDERS,
)
SLOW = 20  # who is measured on fewer nodes than this takes part in a few rounds only
SLOW_ROUNDS = 3
AWAY = 0.1  # seconds in each direction to nodes that are far away
PLAIN, BARE = (f"`{each.name}`" for each in (PYTHON, BARE_PYTHON))
FLOORS = (FLOOR, PYTHON, BARE_PYTHON)
SEEN_ON = 2  # nodes on which a fast contender is tried whether it sees what was planted; a slow one on 1


def measure(options: Options, peers: Sequence[Contender] = PEERS) -> Iterator[Finding]:
    with fleet(options.nodes) as nodes, prepared(nodes) as expected:
        yield from _measured(nodes, expected, options, peers)
    if os.geteuid() == 0:
        with light(options.nodes, AWAY) as nodes, prepared(nodes) as expected:
            yield _far(nodes, expected, options)


@contextmanager
def prepared(nodes: Nodes) -> Iterator[list[Expected]]:
    """What is expected of these nodes, with its files on them meanwhile."""
    folder = f"/tmp/gpuprov-benchmark-{nodes.port}-{nodes.names[0]}"  # noqa: S108 - on the nodes
    expected = expectations.prepared(nodes, folder)
    try:
        yield expected
    finally:
        expectations.removed(nodes, folder)


@dataclass
class Ready:
    """A contender that saw what was planted: what it runs, on which nodes, what that cost for each (ms)."""

    work: Work
    nodes: Nodes
    cpu: list[float] = field(default_factory=list)
    node: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    memory: float = 0.0

    def add(self, cost: Cost) -> None:
        count = len(self.nodes.names)
        spent = ((self.cpu, cost.controller), (self.node, cost.node), (self.wall, cost.wall))
        for costs, seconds in spent:
            costs.append(seconds / count * 1000)
        self.memory = max(self.memory, cost.memory)


def _measured(
    nodes: Nodes, expected: Sequence[Expected], options: Options, peers: Sequence[Contender]
) -> Iterator[Finding]:
    words = options.peers.split(",")
    asked = [peer for peer in peers if words == ["all"] or any(word in peer.name for word in words)]
    notes = {peer.name: "not asked for in this run" for peer in peers if peer not in asked}
    ready: dict[str, Ready] = {}
    for place, contender in enumerate((*FLOORS, OURS, *asked)):
        said(f"does {contender.name} see what differs?")
        with dropped(contender.name, notes):
            ready[contender.name] = _ready(contender, nodes, expected, options, str(place))
            notes[contender.name] = contender.note
    for turn in range(options.rounds):
        for name, one in list(ready.items()):
            if turn < SLOW_ROUNDS or len(one.nodes.names) >= min(SLOW, len(nodes.names)):
                said(f"round {turn + 1} of {options.rounds}: {name}")
                with dropped(name, notes):
                    one.add(converged(name, one.work, one.nodes))
                    continue
                del ready[name]
    ours, floor, python, bare = (ready[each.name] for each in (OURS, *FLOORS))
    what = _what(expected, ours.nodes)
    yield Result(
        "drift.controller", what, "`ssh host true`", ratios(ours.cpu, floor.cpu), f"Nodes: {nodes.kind}."
    )
    yield Result("drift.node", what, BARE, ratios(ours.node, bare.node))
    note = "The nodes' own work is in it, for they share the controller's cores."
    yield Result("drift.wall", what, PLAIN, ratios(ours.wall, python.wall), note)
    yield Result("", f"{what}, wall time", BARE, ratios(ours.wall, bare.wall), note)
    yield _table(len(expected), ready, notes)


def _far(nodes: Nodes, expected: Sequence[Expected], options: Options) -> Result:
    """Wall time where the way decides, and not the cores that nodes share with the controller here."""
    ours, python = (
        _ready(each, nodes, expected, options, f"far{place}") for place, each in enumerate((OURS, PYTHON))
    )
    for turn in range(min(options.rounds, SLOW_ROUNDS)):
        said(f"round {turn + 1}, far away")
        for name, one in ((PYTHON.name, python), (OURS.name, ours)):
            one.add(converged(name, one.work, one.nodes))
    what = f"{_what(expected, ours.nodes)} that are far away, {AWAY} s in each direction"
    return Result("drift.wall", what, PLAIN, ratios(ours.wall, python.wall))


def _what(expected: Sequence[Expected], nodes: Nodes) -> str:
    return f"`gpuprov drift` of {len(expected)} expectations on {len(nodes.names)} nodes"


def _ready(
    contender: Contender, nodes: Nodes, expected: Sequence[Expected], options: Options, name: str
) -> Ready:
    """Raises FailedError when it does not see what was planted."""
    if contender not in FLOORS:
        few = nodes.first(SEEN_ON if contender.most >= SLOW else 1)
        sees(contender, few, expected, _new(options.folder, f"s{name}"))
    some = nodes.first(min(contender.most, 2) if options.quick else contender.most)
    return Ready(contender.make(some, expected, _new(options.folder, f"c{name}"), False), some)


@contextmanager
def dropped(name: str, notes: dict[str, str]) -> Iterator[None]:
    """A peer that fails is noted, and the others are measured; gpuprov and the floors must not fail."""
    try:
        yield
    except FailedError as error:
        if name in {each.name for each in (*FLOORS, OURS)}:
            raise
        notes[name] = f"not measured: {error}"


def said(text: str) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)


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


def _table(asked: int, ready: Mapping[str, Ready], notes: Mapping[str, str]) -> Table:
    floor, ours = (statistics.median(ready[each.name].cpu) for each in (FLOOR, OURS))
    rows = []
    for name, one in ready.items():
        cpu = statistics.median(one.cpu)
        rows.append(
            (
                name,
                str(len(one.nodes.names)),
                str(len(one.cpu)),
                spread(tuple(one.cpu)),
                f"{number(cpu / floor)}x",
                f"{number(cpu / ours)}x",
                number(statistics.median(one.node)),
                number(statistics.median(one.wall)),
                number(one.memory),
            )
        )
    head = ("", "nodes", "rounds", "controller ms", "of F", "of gpuprov", "node ms", "wall ms", "memory MB")
    return Table(
        f"{asked} expectations of a converged node: what it costs to look, per node",
        head,
        tuple(rows),
        tuple(f"{name}: {note}." for name, note in notes.items() if note),
    )
