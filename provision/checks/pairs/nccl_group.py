"""The check nccl_group: see nccl_between.py."""

from __future__ import annotations

from provision.checks.pairs import nccl_between
from provision.checks.pairs.judge import Metric

ID = "nccl_group"
SUMMARY = "NCCL all-reduce over all nodes at once, and over pairs of them to find the bad node"
FACTS = nccl_between.FACTS
COLLECTIVE = nccl_between.COLLECTIVE
_INSTALLS = nccl_between.installs(COLLECTIVE.suite)
METRIC = Metric(ID, "busbw", nccl_between.UNIT, "all_reduce_perf", _INSTALLS, nccl_between.NO_GPU, group=True)
