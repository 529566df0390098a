"""memory_bandwidth of AMD's GPUs: each copies within its own memory, by TransferBench.

Only the diagonal of the GPU matrix is read. The rate counts each byte once, though it is read and written. 64
MiB, TransferBench's default, would stay in the 256 MiB cache of a CDNA 3 GPU; with 512 MiB, half a gigabyte
is read and as much written each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output
from provision.checks.gpu.memory_bandwidth import ID as ID
from provision.checks.gpu.memory_bandwidth import judge_copies
from provision.checks.judge import Finding
from provision.checks.thresholds import Threshold
from provision.checks.vendors.amd import devices, transferbench

SUMMARY = "copy bandwidth within each GPU's memory; the GPU with slow memory is named"
NEEDS: tuple[str, ...] = transferbench.NEEDS
FACTS: tuple[str, ...] = ("amdgpu.devices", "amdgpu.rocm")

_RUN, _SIZE = "transferbench_local", "512M"


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    if devices.partitioned(node):
        return []
    # The CPU fills and compares the buffers of each pair; 8 GPUs have 64 pairs.
    deadline = 120.0 + 5.0 * node.gpu_count**2
    return [
        transferbench.topology(node),
        transferbench.command(node, _RUN, _SIZE, deadline, reads=False, processors=False),
    ]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Return `local_copy` of each GPU in GB/s, or only `corrupt` or `partition`. Raises ParseError."""
    if modes := devices.partitioned(node):
        return [Measurement("partition", modes, "")]
    names = transferbench.devices(node, outputs)
    try:
        matrix = transferbench.matrix(outputs, _RUN, names, reads=False)
    except transferbench.CorruptionError as error:
        return [Measurement("corrupt", str(error), "")]
    return [
        Measurement("local_copy", "N/A" if (rate := matrix[gpu, gpu]) is None else rate, "GB/s", gpu)
        for gpu in sorted(names.values(), key=lambda name: int(name[3:]))
    ]


def judge(
    node: CheckNode,  # noqa: ARG001 - the contract
    measurements: Sequence[Measurement],
    thresholds: Mapping[str, Threshold],
) -> list[Finding]:
    first = measurements[0]
    if first.metric == "corrupt":
        return [transferbench.corruption(ID, str(first.value))]
    if first.metric == "partition":
        return devices.left_out(ID, first.value, "a part has its share of the memory's bandwidth")
    return judge_copies(measurements, thresholds, "TransferBench")
