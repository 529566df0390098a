"""ib_write_lat of perftest, in the form of its source (linux-rdma/perftest)."""

import sys
from functools import partial

import nics
import noise

from perftest import output as perftest_output
from perftest import program as perftest_program
from perftest.options import RefusedError

NAME = "ib_write_lat"
DEFAULTS = {"size": "2", "iters": "1000"}
KEY = "latency"  # us, the median
# Published medians: 1.87 over InfiniBand at 400 Gb/s, 0.9 without a switch.
_BETWEEN = {"ib": 1.87, "roce": 2.6}
_ALONE = 0.9
head, table = partial(perftest_output.head, latency=True), perftest_output.latency_table


def ib_write_lat(node, arguments: list) -> int:
    """Run ib_write_lat and return its exit status."""
    return perftest_program.run(node, sys.modules[__name__], arguments)


def refusal(options: dict) -> None:
    """Raises RefusedError for options that a latency test does not support."""
    if options["qps"] > 1:
        raise RefusedError(" Multiple QPs only available on bw tests")
    if options.get("both"):
        raise RefusedError(" Bidirectional is only available in BW test")
    if options.get("no_peak"):
        raise RefusedError(" NoPeak only valid for BW tests")
    if "cuda" in options or "rocm" in options:
        what = "device memory latency test with write (without immediate) verb; use --write_with_imm"
        raise RefusedError(f"Perftest doesn't support {what}")


def row(options: dict, median: float) -> list:
    """Return size, iterations; min, max, median, mean, deviation, 99th and 99.9th percentile (us).

    Their ratios to the median come from an output for 1,000 messages between two nodes with ConnectX-7.
    """
    shape = (0.957, 2.893, 1.0, 1.005, 0.096, 1.086, 1.47)
    return [options["size"], options["iters"], *[median * factor for factor in shape]]


def seconds(row: list) -> float:
    return 0.4 + 2e-6 * row[1] * row[4]


def between(node, options: dict, card: dict) -> float:
    """Return the microseconds to another node's card, as far as this end determines them."""
    return _with_payload(node, options, card, _BETWEEN[card["layer"]])


def alone(node, options: dict, card: dict, _gpu) -> float:
    """Return the microseconds in loopback."""
    return _with_payload(node, options, card, _ALONE)


def _with_payload(node, options: dict, card: dict, latency: float) -> float:
    latency += options["size"] * 8 / (nics.rate_of(node, card) * 1e3)
    return latency * noise.jitter(node, "latency", card["number"], 0.01)
