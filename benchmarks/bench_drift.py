"""The cost of checking a node: `gpuprov drift` and floors on forty expectations, in turns.

Controller: CPU of the whole process tree, with startup and imports, against F, `xargs -P 32 ssh host true`
with curve25519 (the extra cost of a client's newer key exchange is not gpuprov's). Host keys are checked.
Node: CPU of sshd and everything it starts, against `python3 -I -S -c pass` over ssh. Wall time: against
`python3 -c pass` over ssh, and again on distant nodes, since near nodes share the controller's cores. Before
the rounds, differences of every kind are planted, and `drift` must report exactly those.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import expected as expectations
from benchmarks.contenders import BARE_PYTHON, FLOOR, OURS, PYTHON, Contender, Work
from benchmarks.costs import Cost, FailedError, cost_of
from benchmarks.expected import Expected
from benchmarks.nodes import Nodes, fleet, light
from benchmarks.results import Options, Result, ratios

FAR_ROUNDS = 3
AWAY = 0.1  # seconds in each direction to distant nodes
PLAIN, BARE = (f"`{each.name}`" for each in (PYTHON, BARE_PYTHON))
FLOORS = (FLOOR, PYTHON, BARE_PYTHON)
SEEN_ON = 2  # nodes on which it must report the planted differences


def measure(options: Options) -> Iterator[Result]:
    with fleet(options.nodes) as nodes, prepared(nodes) as expected:
        yield from _measured(nodes, expected, options)
    if os.geteuid() == 0:
        with light(options.nodes, AWAY) as nodes, prepared(nodes) as expected:
            yield _far(nodes, expected, options)


@contextmanager
def prepared(nodes: Nodes) -> Iterator[list[Expected]]:
    """Install the expected files on these nodes, yield the expectations, and remove the files."""
    folder = f"/tmp/gpuprov-benchmark-{nodes.port}-{nodes.names[0]}"  # noqa: S108 - on the nodes
    expected = expectations.prepared(nodes, folder)
    try:
        yield expected
    finally:
        expectations.removed(nodes, folder)


@dataclass
class Ready:
    """A contender ready to run: its command, its nodes, and its costs for each node in each round (ms)."""

    work: Work
    nodes: Nodes
    cpu: list[float] = field(default_factory=list)
    node: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def add(self, cost: Cost) -> None:
        count = len(self.nodes.names)
        spent = ((self.cpu, cost.controller), (self.node, cost.node), (self.wall, cost.wall))
        for costs, seconds in spent:
            costs.append(seconds / count * 1000)


def _measured(nodes: Nodes, expected: Sequence[Expected], options: Options) -> Iterator[Result]:
    ready = {
        each.name: _ready(each, nodes, expected, options, str(place))
        for place, each in enumerate((*FLOORS, OURS))
    }
    for turn in range(options.rounds):
        for name, one in ready.items():
            said(f"round {turn + 1} of {options.rounds}: {name}")
            one.add(converged(name, one.work, one.nodes))
    ours, floor, python, bare = (ready[each.name] for each in (OURS, *FLOORS))
    what = _what(expected, ours.nodes)
    yield Result(
        "drift.controller", what, "`ssh host true`", ratios(ours.cpu, floor.cpu), f"Nodes: {nodes.kind}."
    )
    yield Result("drift.node", what, BARE, ratios(ours.node, bare.node))
    note = "The nodes' own work is in it, for they share the controller's cores."
    yield Result("drift.wall", what, PLAIN, ratios(ours.wall, python.wall), note)


def _far(nodes: Nodes, expected: Sequence[Expected], options: Options) -> Result:
    """Measure wall time where latency dominates, not the cores that nodes and controller share here."""
    ours, python = (
        _ready(each, nodes, expected, options, f"far{place}") for place, each in enumerate((OURS, PYTHON))
    )
    for turn in range(min(options.rounds, FAR_ROUNDS)):
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
    """Prepare a contender. Raises FailedError when it misses the planted differences."""
    if contender not in FLOORS:
        sees(contender, nodes.first(SEEN_ON), expected, _new(options.folder, f"s{name}"))
    some = nodes.first(2) if options.quick else nodes
    return Ready(contender.make(some, expected, _new(options.folder, f"c{name}")), some)


def said(text: str) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)


def _new(folder: Path, name: str) -> Path:
    place = folder / name
    place.mkdir()
    return place


def sees(contender: Contender, nodes: Nodes, expected: Sequence[Expected], folder: Path) -> None:
    """Raises FailedError unless the contender reports one planted difference of each kind on each node."""
    wrong = expectations.with_differences(expected)
    work = contender.make(nodes, wrong, folder)
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
    with suppress(ValueError, KeyError, TypeError):  # unexpected output
        return dict(work.differences(cost))
    return {}


def converged(name: str, work: Work, nodes: Nodes) -> Cost:
    """Return the cost when nothing differs. Raises FailedError unless every node is reported as such."""
    cost = cost_of(work.command, nodes=nodes, environment=work.environment, folder=work.folder)
    found = _differences(work, cost)
    if found != dict.fromkeys(nodes.names, 0):
        odd = [node for node in nodes.names if found.get(node) != 0]
        raise FailedError(f"{name}: {len(odd)} of {len(nodes.names)} not as declared: {cost.last_words}")
    return cost
