"""The highest clock each GPU would take: one that is locked lower, or has another vBIOS, stays slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuprov.checks import (
    CheckNode,
    Command,
    Finding,
    Measurement,
    Output,
    ParseError,
    Threshold,
    Verdict,
    by_threshold,
    completed,
    last_words,
)

SUMMARY = "the highest clock of every GPU: the same for all, and not below the limit"
SCOPE = "node"
STAGE = "quick"
NEEDS: tuple[str, ...] = ("nvidia-smi",)
METRICS = {"clock": {"unit": "MHz", "direction": "at_least"}}

ID = "max_sm_clock"


def commands(_node: CheckNode, _options: Mapping[str, Any]) -> Sequence[Command]:
    query = ("nvidia-smi", "--query-gpu=index,clocks.max.sm", "--format=csv,noheader,nounits")
    return [Command("clocks", query, deadline=60.0)]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    output = completed(outputs, "clocks")
    if output.rc != 0:
        raise ParseError(f"nvidia-smi failed: {last_words(output)}", "look at the kernel log for NVRM lines")
    found = []
    for line in output.stdout.splitlines():
        index, comma, clock = line.partition(", ")
        if not (comma and index == str(len(found)) and clock.isdecimal() and len(clock) < 6):
            raise ParseError(f"nvidia-smi: not understood: {line[:80]!r}", "run the check again")
        found.append(Measurement("clock", int(clock), "MHz", f"gpu{index}"))
    if len(found) != node.gpu_count:
        raise ParseError(
            f"nvidia-smi tells of {len(found)} GPUs, the node has {node.gpu_count}", "look at gpu_inventory"
        )
    return found


def judge(
    _node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    highest = max(measurements, key=lambda one: float(one.value))
    behind = [
        Finding(
            ID,
            Verdict.FAIL,
            one.device,
            f"clocks no higher than {one.value} MHz, where {highest.device} goes to {highest.value} MHz",
            metric="clock",
            value=one.value,
            unit="MHz",
            limit=f"= {highest.value} MHz",
            source="the other GPUs of the node",
            action="fix configuration",
        )
        for one in measurements
        if one.value != highest.value
    ]
    limit = thresholds.get(f"{ID}.clock")
    return behind or [by_threshold(ID, "highest clock", highest, limit, action="fix configuration")]
