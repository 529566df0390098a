"""Every GPU of the node sends a different part to every other: the traffic of expert-parallel models.

All pairs are busy at once, which shows a link that has lost its redundancy: alone, each pair looks fine.
"""

from __future__ import annotations

from provision.checks.nccl.nccl_collective import Collective

SUMMARY = "all-to-all over all GPUs of the node: bus bandwidth at the largest size, and right results"
NEEDS: tuple[str, ...] = ("alltoall_perf",)

ID = "nccl_alltoall"

COLLECTIVE = Collective(ID, "alltoall_perf", "all-to-all")

commands = COLLECTIVE.commands
parse = COLLECTIVE.parse
judge = COLLECTIVE.judge
