"""Which GPUs are partitioned (MIG): CUDA shows slices in their place, and a slice has a part of its GPU."""

from __future__ import annotations

from collections.abc import Mapping

from provision.checks.check import CheckNode, Command, Measurement, Output, completed, last_words
from provision.errors import ParseError

NAME = "mig"


def command() -> Command:
    """Asks each GPU for its mode."""
    return Command(NAME, ("nvidia-smi", "--query-gpu=mig.mode.current", "--format=csv,noheader"), 60.0)


def measure(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """`mig` for each GPU that is partitioned, none for the others. Raises ParseError."""
    output = completed(outputs, NAME)
    modes = [line.strip() for line in output.stdout.splitlines() if line.strip()]
    if len(modes) != node.gpu_count or not set(modes) <= {"Enabled", "Disabled", "[N/A]", "N/A"}:
        raise ParseError(
            f"nvidia-smi did not report the MIG mode of {node.gpu_count} GPUs: {last_words(output)}",
            "look at the gpu_inventory check",
        )
    return [
        Measurement("mig", True, "", f"gpu{index}") for index, mode in enumerate(modes) if mode == "Enabled"
    ]
