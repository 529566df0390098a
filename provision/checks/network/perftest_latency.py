"""What ib_write_lat of perftest prints → the latency of a small message, in microseconds.

Each of its numbers is half of a round trip: from one node's memory into the other's. Tables of before 2016
end with the median; since then the mean, the deviation and two percentiles follow.

     #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   …
     2       5000          1.79           5.41         1.87               1.88           0.18            …
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.checks.check import CheckNode
from provision.checks.network.perftest import number, size_of, table
from provision.errors import ParseError

SIZE = 2  # bytes; perftest's own size for latency, stated so that a version with another one changes nothing
_ITERATIONS = 5000  # fifty of them above the 99th percentile; a fiftieth of a second at 2 us
_SLOW = 100.0  # us, ten times the most that passes; Soft-RoCE takes two hundred

_COLUMN = re.compile(r"#\w+|t_\w+\[[^\]]*\]|[\d.]+% percentile\[[^\]]*\]|CPU_Util\[[^\]]*\]")
_MEDIAN = re.compile(r"t_typical\[usec\]")
_PERCENTILE = "99% percentile[usec]"
_LEAST = 0.01  # us; two decimals are printed, and 0.00 is the answer of a clock that stood still


def program(node: CheckNode) -> str:
    """Where it is."""
    return str(node.variables.get("validation_tools_ib_write_lat_path", "/usr/bin/ib_write_lat"))


def argv(node: CheckNode, device: str, port: str, tcp_port: int) -> tuple[str, ...]:
    """ib_write_lat as a server on this RDMA device and its port; a client's has the server's address behind
    it."""
    asked = ("-d", device, "-i", port, "-p", str(tcp_port), "-s", str(SIZE), "-n", str(_ITERATIONS), "-F")
    return (program(node), *asked)


def seconds() -> float:
    """How long the exchange of `argv` takes where it takes long."""
    return 2 * _ITERATIONS * _SLOW / 1e6


@dataclass(frozen=True)
class Result:
    """One run: the `median` latency and, where it is printed, the 99th `percentile`, in microseconds."""

    device: str
    size: int
    median: float
    percentile: float | None


def parse(text: str) -> Result:
    """A whole run of one size. Raises ParseError when it failed, was cut, or is not understood."""
    found = table(text, _COLUMN, _MEDIAN)
    if len(found.rows) != 1:
        raise ParseError(f"perftest: {len(found.rows)} rows where one was requested", "run the check again")
    (row,) = found.rows
    median = number(row, found.at, least=_LEAST)
    percentile = None
    if _PERCENTILE in found.columns:
        percentile = number(row, found.columns.index(_PERCENTILE), least=_LEAST)
    return Result(found.device, size_of(row), median, percentile)
