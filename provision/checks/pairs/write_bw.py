"""The check pair_bandwidth, ib_write_bw between nodes: commands, expected bandwidth, parser (pure)."""

from __future__ import annotations

from functools import partial

from provision.checks.check import CheckNode, Output
from provision.checks.network import perftest
from provision.checks.network.rdma_port import Port
from provision.checks.pairs import perftest_ends as ends
from provision.checks.pairs.judge import Metric
from provision.checks.pairs.pairing import Pair, Topology
from provision.checks.thresholds import limits
from provision.errors import ParseError

ID = "pair_bandwidth"
SUMMARY = "RDMA bandwidth between pairs of nodes, on each rail: names the bad nodes, links and switches"
FINDS = (
    "RDMA between nodes, on each rail: nodes, rails, links, leaf switches and uplinks that are slow or hang"
)
FACTS = ends.FACTS
METRIC = Metric(ID, "bandwidth", "Gb/s", "ib_write_bw", "rdma", ends.NO_PORT)


def program(node: CheckNode) -> str:
    """Return the path of ib_write_bw."""
    return str(node.variables.get("validation_tools_ib_write_bw_path", "/usr/bin/ib_write_bw"))


def _argv(node: CheckNode, port: Port, number: int, software: bool) -> tuple[str, ...]:
    return perftest.argv(node, port.device, port.number, number, software=software)


def expected(fleet: Topology, pair: Pair, ports: tuple[Port, Port], oversubscription: float) -> float:
    """Return the least Gb/s that this rail should carry: a share of the slower port's rate.

    Between racks it is divided by the oversubscription of the uplinks."""
    least = ends.slower(ports) * float(limits("port_limits")["pair_share"]["limit"]) / 100
    return least / oversubscription if fleet.spans(pair) is not False else least


def _measured(client: Output) -> tuple[float, str]:
    parsed = perftest.parse(client.stdout)
    size = perftest.size_asked(client.argv)
    if parsed.queue_pairs != perftest.QUEUE_PAIRS or size not in parsed.average:
        raise ParseError("ib_write_bw: it measured something other than requested", "run it again")
    return parsed.average[size], ""


# Commands of the server and the client by rail, and one result per rail: see `perftest_ends`.
commands = partial(ends.commands, argv=_argv, seconds=perftest.seconds)
results = partial(ends.results, METRIC, read=_measured)
