"""ib_write_bw of perftest, in the form of its source (linux-rdma/perftest)."""

import sys

import bandwidth
import nics
import noise

from perftest import output as perftest_output
from perftest import program as perftest_program

NAME = "ib_write_bw"
DEFAULTS = {"size": "65536", "iters": "5000"}
KEY = "rate"  # Gb/s
head, table = perftest_output.head, perftest_output.table


def ib_write_bw(node, arguments: list) -> int:
    """Run ib_write_bw and return its exit status."""
    return perftest_program.run(node, sys.modules[__name__], arguments)


def refusal(options: dict) -> None:
    """Do nothing: all options can be combined."""


def row(options: dict, rate: float) -> list:
    return [options["size"], options["iters"] * options["qps"], rate * 1.0005, rate]


def seconds(row: list) -> float:
    size, sent, _, rate = row
    return 0.4 + size * 8.0 * sent / (rate * 1e9)


def between(node, options: dict, card: dict) -> float:
    """Return the Gb/s that this end supports."""
    return alone(node, options, card, None)


def alone(node, options: dict, card: dict, gpu) -> float:
    """Return the Gb/s of a card in loopback."""
    number = card["number"]
    lanes = node.given("nic_pcie_width", "width", 16, nic=number)
    generation = 5 if card["speed"] == "NDR" else 4
    slot = 31.5 * 2.0 ** (generation - 4) * 8 * 0.92 * (lanes / 16.0)
    rate = min(nics.rate_of(node, card) * 0.984, slot)
    rate *= node.factor("nic_slow", nic=number)
    rate *= node.factor("one_queue_pair_slow") if options["qps"] == 1 else 1.0
    if gpu is not None:
        rate = min(rate, node.sku["h2d"] * 8 * 0.95 * bandwidth.pcie_factor(node, gpu))
        rate *= node.factor("gpudirect_slow", nic=number)
        rate *= 0.45 if node.fault("acs_on") else 1.0
    # 99.96 % repeatability (SuperBench, HCA loopback)
    return rate * noise.jitter(node, "loopback", "{}{}".format(number, "" if gpu is None else "gpu"), 0.0004)
