"""Rounds of measurements between nodes, all pairs of a round at once, until no suspect is left.

Each round is stored before the next is chosen, so that an interrupted run can continue."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from provision.checks.check import Command
from provision.checks.judging.node_facts import NodeFacts
from provision.checks.pairs import groups, nccl_between, suspects, write_bw, write_lat
from provision.checks.pairs import perftest_ends as ends
from provision.checks.pairs.judge import Metric
from provision.checks.pairs.pairing import (
    Outcome,
    Pair,
    Result,
    Topology,
    exhaustive,
    exhaustive_rounds,
    topology,
)
from provision.desired import vendors
from provision.errors import ParseError
from provision.events import CheckEnded, OnEvent, Step
from provision.runs import fleet_pairs
from provision.runs.fleet_pairs import Team
from provision.runs.store import RunFolder
from provision.text import many
from provision.validate.pairs.nccl_pairs import NcclPairs, launcher
from provision.validate.plays.node_commands import Settings
from provision.validate.plays.pair_plays import Outputs, Plays

_NEIGHBOURS = 5  # rounds to compare the members of a bad group with their neighbours, and repeat the bad ones
_AGAIN = 2  # extra rounds for bad pairs after every pair was measured


class Tool(Protocol):
    """Interface of a tool that measures one metric between nodes."""

    metric: Metric

    def takes_part(self, node: str) -> bool:
        """Return whether a node has the parts to measure. Raises ParseError if that is unknown."""

    def prepare(self, members: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return each node's program version ("" if unknown), and each excluded node's reason."""

    def expected(self, fleet: Topology, nodes: Sequence[str]) -> list[tuple[str, float | None]]:
        """Return the rails to measure ("": all at once), with the expected value of each."""

    def programs(self, nodes: Sequence[str]) -> dict[str, list[Command]]:
        """Return the commands by node that measure these two (or a group) together. Raises InventoryError."""

    def results(
        self, nodes: Sequence[str], number: int, asked: Sequence[tuple[str, float | None]], outputs: Outputs
    ) -> list[Result]:
        """Parse the outputs into one result for each requested rail."""

    def after(self, found: Sequence[Result]) -> None:
        """End whatever a round's programs left running on the nodes."""

    def close(self) -> None:
        """Remove whatever `prepare` left on the nodes."""


class PerftestPairs:
    """Tool for perftest's write_bw or write_lat (`check`), the server on the first of two nodes."""

    def __init__(self, check: Any, plays: Plays, able: Mapping[str, NodeFacts]) -> None:
        self.metric: Metric = check.METRIC
        self._check, self._plays = check, plays
        self._nodes = {name: node.check_node for name, node in able.items()}

    def takes_part(self, node: str) -> bool:
        """Return whether a node has a port to measure. Raises ParseError if that is unknown."""
        return bool(ends.rails(self._nodes[node]))

    def prepare(self, members: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """Return each node's program version ("" if it prints none), and why others lack the program."""
        program = self._check.program
        todo = {name: [ends.version_command(program(self._nodes[name]))] for name in members}
        outputs, missing = self._plays.run("version", todo)
        versions = {}
        for name, outputs_of_node in outputs.items():
            if name in missing:
                continue
            output = next(iter(outputs_of_node.values()))
            if output.not_started:
                missing[name] = (
                    f"{output.not_started}: the role {self.metric.installs} installs it, with perftest"
                )
            else:
                versions[name] = ends.version(output)
        return versions, missing

    def expected(self, fleet: Topology, nodes: Sequence[str]) -> list[tuple[str, float | None]]:
        """Return the rails that both nodes share, with the value expected on each."""
        oversubscription = max(ends.oversubscription(self._plays.variables[node]) for node in nodes)
        server, client = (self._nodes[node] for node in nodes)
        return [
            (ports[0].name, self._check.expected(fleet, nodes, ports, oversubscription))
            for ports in ends.shared(server, client)
        ]

    def programs(self, nodes: Sequence[str]) -> dict[str, list[Command]]:
        """Return the command of each of the two nodes."""
        server, client = (self._nodes[node] for node in nodes)
        serving, asking = self._check.commands(server, client, self._plays.address(nodes[0]))
        return dict(zip(nodes, (serving, asking), strict=True))

    def results(self, nodes: Sequence[str], number: int, asked: ends.Asked, outputs: Outputs) -> list[Result]:
        parsed: list[Result] = self._check.results(nodes, number, asked, outputs)
        return parsed

    def after(self, found: Sequence[Result]) -> None:
        """Do nothing: perftest ends with the step that ran it."""

    def close(self) -> None:
        """Do nothing: perftest leaves nothing behind."""


TOOLS: Mapping[str, Callable[[Any, Plays, Mapping[str, NodeFacts]], Tool]] = {
    write_bw.ID: PerftestPairs,
    write_lat.ID: PerftestPairs,
    nccl_between.NCCL_PAIR.ID: NcclPairs,
    nccl_between.NCCL_GROUP.ID: NcclPairs,
}


def check_inventory(asked: Sequence[str], variables: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise InventoryError for settings that pair checks cannot use, before any node is touched."""
    if asked:
        topology(variables)
    if {nccl_between.NCCL_PAIR.ID, nccl_between.NCCL_GROUP.ID} & set(asked):
        launcher(variables, list(variables))


def measure(
    check: str,
    folder: RunFolder,
    able: Mapping[str, NodeFacts],
    variables: Mapping[str, Mapping[str, Any]],
    settings: Settings,
    on_event: OnEvent,
) -> None:
    """Measure pairs among these nodes, as far as they can take part.

    Raises InventoryError for an invalid rack, and KeyboardInterrupt with all rounds but the last stored."""
    plays = Plays(check, folder, variables, settings)
    teams, left_out = _who_takes_part(check, plays, able)
    if line := fleet_pairs.apart([team for team, _ in teams]):
        on_event(Step(f"{check}: {line}"))
    noted: dict[str, Any] = {"nodes": [], "left_out": left_out, "versions": {}}
    for team, tool in teams:
        _measure_team(team, tool, plays, able, noted, on_event)
    fleet_pairs.note(folder, check, noted)
    for name in able:
        on_event(CheckEnded(name, check, "", "measured" if name in noted["nodes"] else left_out[name]))


def _who_takes_part(
    check: str, plays: Plays, able: Mapping[str, NodeFacts]
) -> tuple[list[tuple[Team, Tool]], dict[str, str]]:
    """Return the teams of nodes to measure together, and the reason for each node left out."""
    every = fleet_pairs.teams(check, able, able)
    within = {name for team in every for name in team.nodes}
    left_out = {
        name: vendors.not_measured(node.gpuprov_node) for name, node in able.items() if name not in within
    }
    taking_part: list[tuple[Team, Tool]] = []
    for team in every:
        tool = TOOLS[check](team.check, plays, {name: able[name] for name in team.nodes})
        members: list[str] = []
        for name in team.nodes:
            try:
                if tool.takes_part(name):
                    members.append(name)
                else:
                    left_out[name] = tool.metric.no_part
            except ParseError as error:
                left_out[name] = f"its RDMA ports are not known: {error.what}"
        if members:
            taking_part.append((replace(team, nodes=tuple(members)), tool))
    if len(taking_part) > 1:
        left_out |= {team.nodes[0]: fleet_pairs.ALONE for team, _ in taking_part if len(team.nodes) == 1}
        taking_part = [(team, tool) for team, tool in taking_part if len(team.nodes) > 1]
    return taking_part, left_out


def _measure_team(
    team: Team,
    tool: Tool,
    plays: Plays,
    able: Mapping[str, NodeFacts],
    noted: dict[str, Any],
    on_event: OnEvent,
) -> None:
    """Measure one team of nodes and add its data to `noted`, which covers all teams so far."""
    check, members = plays.check, list(team.nodes)
    try:
        what = f"reading the version of {tool.metric.program} on {many(len(members), 'node')}"
        on_event(Step(f"{check}: {what}"))
        versions, without = tool.prepare(members)
        members = [name for name in members if name not in without]
        noted["nodes"] += members
        noted["left_out"] |= without
        noted["versions"] |= versions
        fleet_pairs.note(plays.folder, check, noted)
        _rounds(tool, plays, fleet_pairs.topology(members, able), noted, on_event)
    finally:
        tool.close()


def _rounds(tool: Tool, plays: Plays, fleet: Topology, noted: dict[str, Any], on_event: OnEvent) -> None:
    check, settings = plays.check, plays.settings
    kept = fleet_pairs.kept(plays.folder, check)
    results = [one for one in kept if not fleet.order.keys().isdisjoint(one.nodes)]
    most = exhaustive_rounds(len(fleet.nodes)) + _AGAIN if settings.every_pair else suspects.MOST_ROUNDS
    if tool.metric.group and len(fleet.nodes) > 2:
        if not groups.of_group(results):
            on_event(Step(f"{check}: all {many(len(fleet.nodes), 'node')} at once"))
            outputs, silent = plays.run("group", tool.programs(fleet.nodes))
            results_of_round = _results(tool, fleet, fleet.nodes, groups.ROUND, outputs, silent)
            fleet_pairs.keep(plays.folder, check, results_of_round)
            results += results_of_round
            tool.after(results_of_round)
        if groups.as_expected(results):
            return
        results = groups.pairs_of(results)
        most += _NEIGHBOURS
    while pairs := _next(tool.metric, fleet, results, settings, most):
        began, number = time.monotonic(), _done(results) + 1
        on_event(Step(f"{check}: round {number} of {most} at most, {many(len(pairs), 'pair')}"))
        results_of_round = _measured(tool, plays, fleet, pairs, number)
        noted["round_seconds"] = round(time.monotonic() - began, 1)
        fleet_pairs.note(plays.folder, check, noted)
        fleet_pairs.keep(plays.folder, check, results_of_round)
        results += results_of_round
        tool.after(results_of_round)


def _done(results: Sequence[Result]) -> int:
    """Return the number of rounds measured so far."""
    return max((result.round for result in results), default=0)


def _next(
    metric: Metric, fleet: Topology, results: Sequence[Result], settings: Settings, most: int
) -> tuple[Pair, ...]:
    """Return the pairs of the next round, if any; bad pairs are repeated after every pair was measured."""
    every = exhaustive(fleet.nodes) if settings.every_pair else iter(())
    planned = next(itertools.islice(every, _done(results), None), None)
    planned = planned or suspects.next_round(
        fleet, results, most=most, tolerance=metric.tolerance, direction=metric.direction
    )
    if metric.group and not planned and _done(results) < most:
        return groups.neighbours(fleet, results, metric)
    return planned


def _measured(tool: Tool, plays: Plays, fleet: Topology, pairs: Sequence[Pair], number: int) -> list[Result]:
    """Measure one round, both ends of each pair next to each other so that they start together."""
    programs: dict[str, list[Command]] = {}
    for pair in pairs:
        programs |= tool.programs(pair)
    outputs, silent = plays.run(f"round{number}", programs)
    return [result for pair in pairs for result in _results(tool, fleet, pair, number, outputs, silent)]


def _results(
    tool: Tool,
    fleet: Topology,
    nodes: tuple[str, ...],
    number: int,
    outputs: Outputs,
    silent: Mapping[str, str],
) -> list[Result]:
    rails = tool.expected(fleet, nodes)
    if not rails:
        return [Result(nodes, number, Outcome.NOT_RUN, said="they have no rail in common")]
    mute = [node for node in nodes if node in silent]
    if not mute:
        return tool.results(nodes, number, rails, outputs)
    end = mute[0] if len(mute) == 1 else ""
    said = "; ".join(f"{node}: {silent[node]}" for node in mute)
    unit = tool.metric.unit
    return [
        Result(nodes, number, Outcome.ERROR, None, rail, unit, expected, end, said=said)
        for rail, expected in rails
    ]
