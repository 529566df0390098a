"""All GPUs of the node add up large messages together: the bandwidth of the group, and whether the sums are
right.

Judged at the largest size alone: the "Avg bus bandwidth" that the tool prints averages small messages in. A
slow group does not name its culprit; `provision.suspects.point_at_cause` lets it point at what other checks
found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks import nccl_tests
from provision.checks.check import CheckNode, Command, Measurement, Output, completed, last_words
from provision.errors import ParseError
from provision.judge import Finding, Verdict, by_threshold, unmeasured
from provision.thresholds import Threshold, for_sku

SUMMARY = "all-reduce over all GPUs of the node: bus bandwidth at the largest size, and right sums"
SCOPE = "group"
STAGE = "standard"
NEEDS: tuple[str, ...] = ("all_reduce_perf",)

ID = "nccl_all_reduce"

_GIB = 2**30
_LARGEST = 16  # GiB; operators' limits (azurehpc-health-checks) are given at this size
# Checking results needs a third buffer beside the send and receive buffers; NCCL and CUDA want room as well.
_BUFFERS = 3
_SHARE_OF_MEMORY = 0.75


def largest_size(memory_mib: float | None) -> int:
    """The largest message in GiB that fits a GPU: 16 on 80 GB, 8 on 48 GB; 1 when the memory is not known."""
    if memory_mib is None:
        return 1
    size = _LARGEST
    while size > 1 and size * _BUFFERS * 1024 > memory_mib * _SHARE_OF_MEMORY:
        size //= 2
    return size


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    program = str(node.variables.get("validation_tools_all_reduce_perf_path", "/usr/bin/all_reduce_perf"))
    memory = for_sku(node.sku).get("gpu_inventory.memory_total")
    largest = largest_size(memory.limit if memory else None)
    smallest = f"{largest // 2}G" if largest > 1 else "512M"
    argv = (program, "-b", smallest, "-e", f"{largest}G", "-f", "2", "-g", str(node.gpu_count))
    return [
        Command(
            "all_reduce_perf",
            # -w has had different defaults; -c 1 checks the sums.
            (*argv, "-n", "20", "-w", "5", "-c", "1"),
            300.0,
            env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        )
    ]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """The largest size of the table → `busbw` in GB/s, `size` in bytes, `wrong` elements over all sizes."""
    output = completed(outputs, "all_reduce_perf")
    if output.truncated:
        raise ParseError("nccl-tests: the output was cut at its size limit", "run the check again")
    if not output.stdout.strip():
        raise ParseError(f"all_reduce_perf printed nothing: {last_words(output)}", "run the check again")
    result = nccl_tests.parse(output.stdout)
    if result.ranks != node.gpu_count:
        raise ParseError(
            f"all_reduce_perf ran on {result.ranks} GPUs, the node has {node.gpu_count}",
            "CUDA does not see all GPUs: look at the gpu_inventory check",
        )
    largest = max(result.rows, key=lambda row: row.size)
    checked = [row.wrong for row in result.rows if row.wrong is not None]
    found = [
        Measurement("busbw", largest.busbw, "GB/s"),
        Measurement("size", largest.size, "bytes"),
        Measurement("ranks", result.ranks, "GPUs"),
    ]
    if len(checked) == len(result.rows):
        found.append(Measurement("wrong", sum(checked), "elements"))
    if result.version:
        found.append(Measurement("nccl_version", result.version, ""))
    return found


def judge(
    node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    values = {m.metric: m for m in measurements}
    findings = []
    if "wrong" not in values:
        findings.append(unmeasured(ID, "all_reduce_perf did not check its sums", action="fix configuration"))
    elif int(values["wrong"].value):
        count = values["wrong"].value
        findings.append(
            Finding(
                ID,
                Verdict.FAIL,
                "node",
                f"all-reduce gave {count} wrong elements: silent data corruption",
                "wrong",
                count,
                "elements",
                "= 0 elements",
                "nccl-tests compares every sum",
                "investigate",
            )
        )
    if node.gpu_count < 2:
        # With one rank nothing is sent, and the tool prints a bus bandwidth of 0.
        return [
            *findings,
            Finding(ID, Verdict.SKIP, "node", "one GPU: there is no group to measure", "busbw"),
        ]
    size = int(values["size"].value) / _GIB
    what = f"all-reduce bus bandwidth over {node.gpu_count} GPUs at {size:g} GiB"
    threshold = thresholds.get(f"{ID}.busbw_{node.gpu_count}gpu")
    return [*findings, by_threshold(ID, what, values["busbw"], threshold, action="investigate")]
