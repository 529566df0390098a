"""Every GPU of the node gathers what all others have: sharded training's most frequent collective.

Nothing is added up, so NVLink SHARP saves it nothing on the wire: it shows the links themselves.
"""

from __future__ import annotations

from provision.checks.nccl.nccl_collective import Collective

SUMMARY = "all-gather over all GPUs of the node: bus bandwidth at the largest size, and right results"
NEEDS: tuple[str, ...] = ("all_gather_perf",)

ID = "nccl_all_gather"

COLLECTIVE = Collective(ID, "all_gather_perf", "all-gather")

commands = COLLECTIVE.commands
parse = COLLECTIVE.parse
judge = COLLECTIVE.judge
