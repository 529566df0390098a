"""What `gpuprov watch` costs the controller, and how soon it acts on a fault among many nodes.

Light nodes (needs root), each with a new health result once a minute, are watched for ten minutes. CPU of the
watch and of all that it starts, minute by minute, against F, `xargs -P ssh host true`, taken before it and
after. Three nodes lose a GPU in that time: each must be drained, and a spare take its place, once.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator

from benchmarks.bench_replace import MOMENTS, Trial
from benchmarks.costs import FailedError, cost_of
from benchmarks.light_nodes import below, cpu_of, memory_of
from benchmarks.nodes import in_parallel
from benchmarks.peers.contender import CONNECTIONS
from benchmarks.results import Finding, Options, Result, Table, number, spread
from benchmarks.watched_fleet import NOTE, WatchedFleet, watched

MINUTE, MINUTES = 60.0, 10
QUICK = 10.0  # seconds that a minute has
FAULTS = (2, 5, 8)  # the minutes in which a node fails, at their beginning
LOOK = 0.5  # seconds between two looks at the memory of its processes
