"""All fault classes with their healthy look-alikes, and the mixes of the headline numbers.

A class that cannot be drawn yet is listed as not covered with its reason, and never left out.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from benchmarks.detection import (
    catalogue_fleet,
    catalogue_gpu,
    catalogue_host,
    catalogue_links,
    catalogue_network,
)
from benchmarks.detection.cases import Entry, draw_case, generator

CLASSES = range(1, 53)
ENTRIES: Mapping[str, Entry] = {
    entry.key: entry
    for entry in (
        *catalogue_links.ENTRIES,
        *catalogue_gpu.ENTRIES,
        *catalogue_network.ENTRIES,
        *catalogue_fleet.ENTRIES,
        *catalogue_host.ENTRIES,
    )
}

# The distribution of defects in new clusters: SuperBench, 24 k GPUs (arXiv 2402.06194), by the failing
# test. The distribution of production interruptions: Llama 3 (arXiv 2407.21783, table 5). Shares of each
# family in percent; within a family all covered classes weigh the same.
BUILD_OUT: Mapping[str, tuple[float, tuple[int, ...]]] = {
    "network loopback": (45, (30, 31, 32, 34, 35, 36, 37)),
    "host-device copies": (15, (3, 4, 6)),
    "CPU and host": (10, (41, 42, 43, 44, 45, 46)),
    "collectives": (10, (7, 8, 9, 10, 11)),
    "end to end": (15, (18, 19, 20, 40)),
    "compute": (5, (17, 18, 22)),
}
PRODUCTION: Mapping[str, tuple[float, tuple[int, ...]]] = {
    "GPU compute and memory": (55, (1, 2, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24)),
    "PCIe": (12, (3, 4, 5, 6)),
    "network": (13, (30, 31, 32, 33, 34, 35, 36, 37)),
    "NVLink": (6, (7, 8, 9, 10, 11)),
    "host": (10, (41, 42, 43, 44, 45, 46, 50)),
    "silent corruption": (4, (22,)),
}


@functools.cache
def not_covered(key: str) -> str:
    """Return why this class cannot be tried; empty if it can."""
    entry = ENTRIES[key]
    if entry.draw is None:
        return entry.missing or "the lab cannot inject it yet, or no check looks for it yet"
    known = _known_faults()
    for attempt in range(20):
        _, case = draw_case(entry, generator(key, attempt), graded=False)
        unknown = [words.split()[0] for words in case.faults if words.split()[0] not in known]
        if unknown:
            return f"the lab has no fault {unknown[0]} yet"
    return ""


@functools.cache
def _known_faults() -> frozenset[str]:
    """Return the fault names that the lab lists, plus the actions of a trial itself."""
    import json
    import subprocess
    import sys

    from benchmarks.detection.simulator import SILICON

    listing = [sys.executable, "-I", "-S", str(SILICON / "run.py"), "fault", "--list", "--json"]
    output = subprocess.run(listing, capture_output=True, check=True, text=True).stdout
    return frozenset({one["id"] for one in json.loads(output)} | {"reboot", "run"})


def covered(*, traps: bool) -> list[Entry]:
    """Return the classes (or the look-alikes) that can be tried, in order."""
    return [entry for entry in ENTRIES.values() if entry.trap is traps and not not_covered(entry.key)]
