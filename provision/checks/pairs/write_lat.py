"""The check pair_latency, ib_write_lat between two nodes: commands, latency limit, parsed result (pure).

In a fabric of two tiers a near pair passes one switch and a far one three, so of two healthy pairs one may
well be later. Twice as late it is only where one switch costs more than the cards and hosts at both ends:
those take most of 0.9 us (linux-rdma/perftest, issue 131), a switch 0.1 us (InfiniBand) to 0.6 us (Ethernet).
So a rate, which is one by the latency, may be half of what is usual.
"""

from __future__ import annotations

from collections.abc import Mapping

from provision.checks.check import CheckNode, Command, Output
from provision.checks.limits import limits
from provision.checks.network import perftest_latency
from provision.checks.network.rdma_port import Port
from provision.checks.pairs import perftest_ends as ends
from provision.checks.pairs.metric import Metric
from provision.checks.pairs.pairing import Pair, Topology
from provision.checks.pairs.results import Result
from provision.errors import ParseError
from provision.text import quantity

ID = "pair_latency"
SUMMARY = "RDMA latency between pairs of nodes, on each rail: names the bad nodes, links and switches"
FACTS = ends.FACTS
METRIC = Metric(
    *(ID, "latency", "us", "ib_write_lat", "rdma", ends.NO_PORT),
    direction="at_most",
    tolerance=0.5,
    bad="has a high latency",
    action="investigate",
)

program = perftest_latency.program


def commands(server: CheckNode, client: CheckNode, address: str) -> tuple[list[Command], list[Command]]:
    """What the server runs, and the client, which reaches the server at `address`; by rail, in one order."""
    return ends.commands(server, client, address, _argv, lambda rate: perftest_latency.seconds())  # noqa: ARG005


def _argv(node: CheckNode, port: Port, number: int, software: bool) -> tuple[str, ...]:  # noqa: ARG001
    return perftest_latency.argv(node, port.device, port.number, number)


def expected(fleet: Topology, pair: Pair, ports: tuple[Port, Port], oversubscription: float) -> float:  # noqa: ARG001
    """Microseconds that a message may take at most, wherever the two are: uplinks that carry less than all
    nodes could send are as quick."""
    return float(limits("port_limits")["pair_latency"]["limit"])


def results(
    pair: Pair,
    number: int,
    asked: ends.Asked,
    outputs: Mapping[str, Mapping[str, Output]],
) -> list[Result]:
    """One result per rail of `asked`: see `perftest_ends.results`."""
    return ends.results(METRIC, pair, number, asked, outputs, _measured)


def _measured(client: Output) -> tuple[float, str]:
    found = perftest_latency.parse(client.stdout)
    if found.size != perftest_latency.SIZE:
        raise ParseError("ib_write_lat: it measured something other than requested", "run it again")
    if found.percentile is None:
        return found.median, ""
    return found.median, f"99 % within {quantity(found.percentile, METRIC.unit)}"
