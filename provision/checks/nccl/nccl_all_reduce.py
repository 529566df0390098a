"""All GPUs of the node add up large messages together: the bandwidth of the group, and whether the sums are
right.

A slow group does not name its culprit; `provision.checks.suspects.point_at_cause` lets it point at what
other checks
found.
"""

from __future__ import annotations

from provision.checks.nccl.nccl_collective import Collective

SUMMARY = "all-reduce over all GPUs of the node: bus bandwidth at the largest size, and right sums"
NEEDS: tuple[str, ...] = ("all_reduce_perf",)

ID = "nccl_all_reduce"

# Each GPU sends the data once to add it up and once more to hand the sums out.
COLLECTIVE = Collective(ID, "all_reduce_perf", "all-reduce", share=2.0)

commands = COLLECTIVE.commands
parse = COLLECTIVE.parse
judge = COLLECTIVE.judge
