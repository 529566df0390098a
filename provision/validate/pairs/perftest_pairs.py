"""Measurement of pairs with a perftest program: a server on the first node, a client on the second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

from provision.checks.check import Command
from provision.checks.pairs import perftest_ends as ends
from provision.checks.pairs.judge import Metric
from provision.checks.pairs.pairing import Result, Topology
from provision.runs.node_facts import NodeFacts
from provision.validate.pairs.pair_plays import Outputs, Plays


class PerftestPairs:
    """`check`: write_bw or write_lat of provision.checks.pairs."""

    def __init__(self, check: ModuleType, plays: Plays, able: Mapping[str, NodeFacts]) -> None:
        self.metric: Metric = check.METRIC
        self._check, self._plays = check, plays
        self._nodes = {name: node.check_node for name, node in able.items()}

    def takes_part(self, node: str) -> bool:
        """Whether a node has a port to measure. Raises ParseError when that is not known."""
        return bool(ends.rails(self._nodes[node]))

    def prepare(self, members: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The version of each node's program ("" if it does not say), and why a node has none."""
        program = self._check.program
        todo = {name: [ends.version_command(program(self._nodes[name]))] for name in members}
        outputs, missing = self._plays.run("version", todo)
        found = {}
        for name, said in outputs.items():
            if name in missing:
                continue
            output = next(iter(said.values()))
            if output.not_started:
                missing[name] = (
                    f"{output.not_started}: the role {self.metric.installs} installs it, with perftest"
                )
            else:
                found[name] = ends.version(output)
        return found, missing

    def expected(self, fleet: Topology, nodes: Sequence[str]) -> list[tuple[str, float | None]]:
        """Each rail the two share, and what is expected on it."""
        oversubscription = max(ends.oversubscription(self._plays.variables[node]) for node in nodes)
        server, client = (self._nodes[node] for node in nodes)
        return [
            (ports[0].name, self._check.expected(fleet, nodes, ports, oversubscription))
            for ports in ends.shared(server, client)
        ]

    def programs(self, nodes: Sequence[str]) -> dict[str, list[Command]]:
        """What each of the two runs."""
        server, client = (self._nodes[node] for node in nodes)
        serving, asking = self._check.commands(server, client, self._plays.address(nodes[0]))
        return dict(zip(nodes, (serving, asking), strict=True))

    def results(self, nodes: Sequence[str], number: int, asked: ends.Asked, outputs: Outputs) -> list[Result]:
        found: list[Result] = self._check.results(nodes, number, asked, outputs)
        return found

    def after(self, found: Sequence[Result]) -> None:
        """Its programs end with the step that ran them."""

    def close(self) -> None:
        """It leaves nothing behind."""
