"""The collectives over all GPUs of one node, each a check: all GPUs send large messages at once.

A slow group does not identify its culprit; `provision.checks.suspects.point_at_cause` attributes it to the
findings of other checks.
"""

from __future__ import annotations

from provision.checks.nccl.nccl_collective import Collective

# Each GPU sends the data once to add it up and once more to distribute the sums.
ALL_REDUCE = Collective(
    *("nccl_all_reduce", "all_reduce_perf", "all-reduce"),
    share=2.0,
    results="sums",
    FINDS="a collective below the SKU's reference (of a ring, where NVLink SHARP was not used), wrong "
    "results",
)
# Sharded training's most frequent collective. It adds nothing up, so NVLink SHARP saves no transfers: it
# measures the links themselves.
ALL_GATHER = Collective("nccl_all_gather", "all_gather_perf", "all-gather", FINDS="the same for all-gather")
# All GPUs add up, and each keeps its part of the sums: the other half of sharded training.
REDUCE_SCATTER = Collective(
    *("nccl_reduce_scatter", "reduce_scatter_perf", "reduce-scatter"),
    results="sums",
    FINDS="the same for reduce-scatter",
)
# The traffic of expert-parallel models. All pairs are busy at once, which reveals a link that lost its
# redundancy: alone, each pair is fast enough.
ALL_TO_ALL = Collective(
    *("nccl_alltoall", "alltoall_perf", "all-to-all"),
    FINDS="the same for all-to-all, which keeps all links busy at once: links that have lost their "
    "redundancy",
)
