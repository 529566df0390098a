"""The check pair_latency, ib_write_lat between two nodes: commands, limit, parsed result (pure).

In a fabric of two tiers a near pair passes one switch and a far one three, so healthy pairs differ. A far
pair takes twice as long only if one switch costs more than the cards and hosts at both ends: those take most
of 0.9 us (linux-rdma/perftest, issue 131), a switch 0.1 us (InfiniBand) to 0.6 us (Ethernet). So the rate,
the inverse of the latency, may be half of the usual one.

ib_write_lat prints half of a round trip: from one node's memory to the other's. Tables of before 2016 end
with the median; since then the mean, the deviation and two percentiles follow.

     #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   …
     2       5000          1.79           5.41         1.87               1.88           0.18            …
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from provision.checks.check import CheckNode, Output
from provision.checks.network.perftest import number, size_of, table
from provision.checks.network.rdma_port import Port
from provision.checks.pairs import perftest_ends as ends
from provision.checks.pairs.judge import Metric
from provision.checks.pairs.pairing import Pair, Topology
from provision.checks.thresholds import limits
from provision.errors import ParseError
from provision.text import quantity

ID = "pair_latency"
SUMMARY = "RDMA latency between pairs of nodes, on each rail: names the bad nodes, links and switches"
FINDS = "the same for latency, which a detour, retransmissions or a busy host raise while bandwidth stays"
FACTS = ends.FACTS
METRIC = Metric(
    *(ID, "latency", "us", "ib_write_lat", "rdma", ends.NO_PORT),
    direction="at_most",
    tolerance=0.5,
    bad="has a high latency",
    action="investigate",
)


def _argv(node: CheckNode, port: Port, number: int, software: bool) -> tuple[str, ...]:  # noqa: ARG001
    return argv(node, port.device, port.number, number)


def expected(fleet: Topology, pair: Pair, ports: tuple[Port, Port], oversubscription: float) -> float:  # noqa: ARG001
    """Return the most microseconds that a message may take, wherever its nodes are.

    Uplinks with less bandwidth than their nodes are as quick as others."""
    return float(limits("port_limits")["pair_latency"]["limit"])


def _measured(client: Output) -> tuple[float, str]:
    parsed = parse(client.stdout)
    if parsed.size != SIZE:
        raise ParseError("ib_write_lat: it measured something other than requested", "run it again")
    if parsed.percentile is None:
        return parsed.median, ""
    return parsed.median, f"99 % within {quantity(parsed.percentile, METRIC.unit)}"


# Commands of the server and the client by rail, and one result per rail: see `perftest_ends`.
commands = partial(ends.commands, argv=_argv, seconds=lambda _rate: seconds())
results = partial(ends.results, METRIC, read=_measured)


# --- ib_write_lat: the latency of a small message, in microseconds


SIZE = 2  # bytes; perftest's default for latency, stated so that a new default changes nothing
_ITERATIONS = 5000  # fifty of them lie above the 99th percentile; they take a fiftieth of a second at 2 us
_SLOW = 100.0  # us, ten times the highest latency that passes; Soft-RoCE takes two hundred

_COLUMN = re.compile(r"#\w+|t_\w{1,20}\[[^\[\]]*\]|[\d.]{1,9}% percentile\[[^\[\]]*\]|CPU_Util\[[^\[\]]*\]")
_MEDIAN = re.compile(r"t_typical\[usec\]")
_PERCENTILE = "99% percentile[usec]"
_LEAST = 0.01  # us; two decimals are printed, and 0.00 comes from a clock that stood still


def program(node: CheckNode) -> str:
    """Return the path of ib_write_lat."""
    return str(node.variables.get("validation_tools_ib_write_lat_path", "/usr/bin/ib_write_lat"))


def argv(node: CheckNode, device: str, port: str, tcp_port: int) -> tuple[str, ...]:
    """Return ib_write_lat as a server on this RDMA device and port; a client adds the server's address."""
    arguments = ("-d", device, "-i", port, "-p", str(tcp_port), "-s", str(SIZE), "-n", str(_ITERATIONS), "-F")
    return (program(node), *arguments)


def seconds() -> float:
    """Return the seconds that the exchange of `argv` takes at the latency `_SLOW`."""
    return 2 * _ITERATIONS * _SLOW / 1e6


@dataclass(frozen=True)
class Latency:
    """One run: the `median` latency and, if printed, the 99th `percentile`, in microseconds."""

    device: str
    size: int
    median: float
    percentile: float | None


def parse(text: str) -> Latency:
    """Parse a whole run of one size. Raises ParseError if it failed, was cut or is not understood."""
    parsed = table(text, _COLUMN, _MEDIAN)
    if len(parsed.rows) != 1:
        raise ParseError(f"perftest: {len(parsed.rows)} rows where one was requested", "run the check again")
    (row,) = parsed.rows
    median = number(row, parsed.at, least=_LEAST)
    percentile = None
    if _PERCENTILE in parsed.columns:
        percentile = number(row, parsed.columns.index(_PERCENTILE), least=_LEAST)
    return Latency(parsed.device, size_of(row), median, percentile)
