"""All GPUs of the node add up, and each keeps its part of the sums: the other half of sharded training."""

from __future__ import annotations

from provision.checks.nccl.nccl_collective import Collective

SUMMARY = "reduce-scatter over all GPUs of the node: bus bandwidth at the largest size, and right sums"
NEEDS: tuple[str, ...] = ("reduce_scatter_perf",)

ID = "nccl_reduce_scatter"

COLLECTIVE = Collective(ID, "reduce_scatter_perf", "reduce-scatter")

commands = COLLECTIVE.commands
parse = COLLECTIVE.parse
judge = COLLECTIVE.judge
