"""Copies within each GPU's memory, to find GPUs that compute correctly but have slow memory.

Only the GPU takes part, so healthy GPUs agree within a tenth of a percent. A copy reads and writes, so it
reaches about half of the datasheet's memory bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import BUS_ORDER, CheckNode, Command, Measurement, Output, completed
from provision.checks.gpu import nvbandwidth, nvidia_smi
from provision.checks.judge import (
    PEERS,
    Finding,
    Verdict,
    below_peers,
    by_threshold,
    finding_on,
    limit_text,
    number,
    unmeasured,
)
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

SUMMARY = "copy bandwidth within each GPU's memory; the GPU with slow memory is named"
FINDS = "GPUs whose own memory is slow"
NEEDS: tuple[str, ...] = ("nvbandwidth", "nvidia-smi")

ID = "memory_bandwidth"

_CASE = "device_local_copy"  # since nvbandwidth 0.7
_BUFFER = "2048"  # MiB; as in the published measurement

# Eight healthy H100s reach 1518.9 to 1519.6 GB/s (Hugging Face, Smol Training Playbook): 5 % is not noise.
_PEER_TOLERANCE = 0.05
_PEER_FAIL = 0.10


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    program = str(node.variables.get("validation_tools_nvbandwidth_path", "/usr/bin/nvbandwidth"))
    return [
        nvidia_smi.mig_command(),
        Command(
            "nvbandwidth",
            (program, "-j", "-b", _BUFFER, "-t", _CASE),
            60.0 + 10.0 * node.gpu_count,
            env=BUS_ORDER,
        ),
    ]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Parse `local_copy` of each GPU in GB/s; if any GPU is partitioned, only `mig` of these GPUs.

    Raises ParseError.
    """
    if partitioned := nvidia_smi.partitioned(node, outputs):
        return partitioned
    text = nvbandwidth.printed(completed(outputs, "nvbandwidth"))
    if case := nvbandwidth.corrupted(text):
        return [Measurement("corrupt", case, "")]
    matrix = nvbandwidth.parse(text, (_CASE,))[_CASE]
    if len(matrix.rows) != 1 or len(matrix.rows[0]) != node.gpu_count:
        width = len(matrix.rows[0]) if matrix.rows else 0
        raise ParseError(
            f"nvbandwidth: {_CASE} shows {width} GPUs, the node has {node.gpu_count}",
            "CUDA does not see all GPUs: look at the gpu_inventory check",
        )
    return [
        Measurement("local_copy", "N/A" if value is None else value, "GB/s", f"gpu{index}")
        for index, value in enumerate(matrix.rows[0])
    ]


def judge(
    node: CheckNode,  # noqa: ARG001 - the contract
    measurements: Sequence[Measurement],
    thresholds: Mapping[str, Threshold],
) -> list[Finding]:
    if measurements and measurements[0].metric == "corrupt":
        return [nvbandwidth.corruption(ID, str(measurements[0].value))]
    partitioned = [m.device for m in measurements if m.metric == "mig"]
    if partitioned:
        reason = f"MIG is on ({', '.join(partitioned)}): a slice has a part of its GPU's memory bandwidth"
        return [Finding(ID, Verdict.SKIP, "node", reason, "local_copy")]
    return judge_copies(measurements, thresholds, "nvbandwidth")


def judge_copies(
    measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold], tool: str
) -> list[Finding]:
    """Judge the rates of `local_copy`, as measured by `tool`, by the limit and by each other."""
    values = {m.device: value for m in measurements if (value := number(m.value)) is not None}
    if not values or len(values) < len(measurements):
        return [unmeasured(ID, f"{tool} measured no copy for some GPUs", action="investigate")]
    threshold = thresholds.get(f"{ID}.local_copy")
    behind = below_peers(values, _PEER_TOLERANCE)
    findings = []
    for device, value in values.items():
        if threshold is not None and value < threshold.limit:
            limit = limit_text(threshold)
            message = f"copies within its memory at {value:g} GB/s (limit {limit})"
            source, verdict = threshold.cited, Verdict.FAIL
        elif device in behind:
            middle, shortfall = behind[device]
            text = f"{shortfall:.0%} below the {middle:g} of its peers"
            message = f"copies within its memory at {value:g} GB/s, {text}"
            verdict = Verdict.FAIL if shortfall > _PEER_FAIL else Verdict.WARN
            limit = f"≥ {(1 - _PEER_TOLERANCE) * middle:.0f} GB/s"
            source = PEERS
        else:
            continue
        measured = Measurement("local_copy", value, "GB/s", device)
        findings.append(finding_on(ID, verdict, measured, message, limit, source, "investigate"))
    if findings:
        return findings
    worst = min(values, key=lambda device: values[device])
    lowest = Measurement("local_copy", values[worst], "GB/s", "node")
    text = f"copy bandwidth within each GPU's memory: the lowest of {len(values)}, {worst}'s,"
    return [by_threshold(ID, text, lowest, threshold, action="none" if threshold is None else "investigate")]
