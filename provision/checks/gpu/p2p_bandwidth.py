"""Copy bandwidth between host and each GPU, and between every pair of GPUs, over NVLink or PCIe.

A slow pair is reported as the pair, a GPU slow to all partners as the GPU: one finding for each culprit.
nvbandwidth binds its host memory to the GPU's CPUs (unless --disableAffinity).

Copies between host and GPU are measured at the beginning and at the end, and the better rate counts: on one
healthy H100 in a virtual machine they reached 55.2 GB/s from GPU to host, and 45.8 a minute later.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.checks.check import BUS_ORDER, CheckNode, Command, Measurement, Output, completed
from provision.checks.gpu import nvbandwidth
from provision.checks.judge import (
    PEERS,
    Finding,
    Verdict,
    below_peers,
    by_threshold,
    finding_on,
    limit_text,
    number,
    spread,
    unmeasured,
)
from provision.checks.suspects import Cell, explain
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

SUMMARY = "copy bandwidth host to GPU, GPU to host and between all GPUs; the slow pair or GPU is named"
FINDS = (
    "slow or disabled paths between GPUs, slow host copies: names the pair, or the GPU when all its pairs"
    " are slow"
)
NEEDS: tuple[str, ...] = ("nvbandwidth",)

ID = "p2p_bandwidth"

_HOST = {"h2d": "host_to_device_memcpy_ce", "d2h": "device_to_host_memcpy_ce"}
_PEER = {"p2p_read": "device_to_device_memcpy_read_ce", "p2p_write": "device_to_device_memcpy_write_ce"}
_CASES = {**_HOST, **_PEER}
WORDS = {"h2d": "host to GPU", "d2h": "GPU to host", "p2p_read": "P2P read", "p2p_write": "P2P write"}

# Pairs of one NVSwitch fabric are equally fast within 2 or 3 %; one 15 % below the median has lost links.
# Without such a fabric (PCIe, bridges) pairs differ by design, and only the limit judges them.
_PAIR_TOLERANCE = 0.15
# nvbandwidth binds itself to each GPU's own CPUs (without -d). A fifth below its peers is a narrower link.
_HOST_TOLERANCE = 0.20


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    program = str(node.variables.get("validation_tools_nvbandwidth_path", "/usr/bin/nvbandwidth"))
    # One copy takes well under a second; 8 GPUs have 112 pairs and directions, each measured three times.
    deadline = 120.0 + 10.0 * node.gpu_count**2
    return [
        Command(
            "nvbandwidth",
            (program, "-j", "-t", *_CASES.values(), *_HOST.values()),
            deadline,
            env=BUS_ORDER,
        )
    ]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Parse matrices into `h2d`, `d2h` per GPU, `p2p_read`, `p2p_write` per pair (data flow), in GB/s.

    A pair without peer access has the value "N/A"; a waived test case is the measurement `waived.<metric>`.
    """
    text = nvbandwidth.printed(completed(outputs, "nvbandwidth"))
    if case := nvbandwidth.corrupted(text):
        return [Measurement("corrupt", case, "")]
    matrices = nvbandwidth.parse(text, tuple(_CASES.values()))
    measurements: list[Measurement] = []
    for metric, case in _CASES.items():
        matrix = matrices[case]
        if matrix.waived:
            measurements.append(Measurement(f"waived.{metric}", True, ""))
            continue
        rows = 1 if metric in _HOST else node.gpu_count
        if len(matrix.rows) != rows or any(len(row) != node.gpu_count for row in matrix.rows):
            shape = f"{len(matrix.rows)}x{max((len(row) for row in matrix.rows), default=0)}"
            raise ParseError(
                f"nvbandwidth: {case} is {shape}, but the node has {node.gpu_count} GPUs",
                "CUDA does not see all GPUs: look at the gpu_inventory check",
            )
        measurements += _host(metric, matrix) if metric in _HOST else _pairs(metric, matrix)
    return measurements


def _host(metric: str, matrix: nvbandwidth.Matrix) -> list[Measurement]:
    return [
        Measurement(metric, "N/A" if value is None else value, "GB/s", f"gpu{gpu}")
        for gpu, value in enumerate(matrix.rows[0])
    ]


def _pairs(metric: str, matrix: nvbandwidth.Matrix) -> list[Measurement]:
    measurements = []
    for row, values in enumerate(matrix.rows):
        for column, value in enumerate(values):
            if row != column:
                source, target = (column, row) if matrix.columns_send else (row, column)
                shown = "N/A" if value is None else value
                measurements.append(Measurement(metric, shown, "GB/s", f"gpu{source}->gpu{target}"))
    return measurements


def judge(
    node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    if measurements and measurements[0].metric == "corrupt":
        return [nvbandwidth.corruption(ID, str(measurements[0].value))]
    fabric = node.gpuprov_node["gpu"].get("fabric", "none") != "none"
    findings: list[Finding] = []
    for metric in _HOST:
        copies = [m for m in measurements if m.metric == metric]
        findings += judge_host(metric, copies, thresholds.get(f"{ID}.{metric}"), "nvbandwidth")
    if node.gpu_count < 2:
        return [
            *findings,
            Finding(ID, Verdict.SKIP, "node", "one GPU: there is no pair to measure", "p2p_read"),
        ]
    return findings + _judge_pairs(measurements, thresholds, fabric=fabric)


def judge_host(
    metric: str, found: Sequence[Measurement], threshold: Threshold | None, tool: str
) -> list[Finding]:
    """Judge copies between host and GPUs (`h2d` or `d2h`), as measured by `tool`."""
    what = f"{WORDS[metric]} bandwidth"
    values = {m.device: value for m in found if (value := number(m.value)) is not None}
    if not found or len(values) < len(found):
        return [unmeasured(ID, f"{tool} measured no {what} for some GPUs", action="investigate")]
    findings = []
    behind = below_peers(values, _HOST_TOLERANCE)
    for m in found:
        if threshold is not None:
            finding = by_threshold(ID, what, m, threshold, action="reseat or check cable")
            if finding.verdict is Verdict.FAIL:
                findings.append(finding)
                continue
        if m.device in behind:
            middle, shortfall = behind[m.device]
            message = f"{what} is {m.value:g} GB/s, {shortfall:.0%} below the {middle:g} of its peers"
            findings.append(finding_on(ID, Verdict.WARN, m, message, source=PEERS, action="investigate"))
    if findings:
        return findings
    worst = min(found, key=lambda m: values[m.device])
    return [
        no_limit(what, metric, worst)
        if threshold is None
        else passed(what, metric, worst, threshold, len(found))
    ]


def no_limit(what: str, metric: str, worst: Measurement) -> Finding:
    """Build the finding for the lowest of rates without a limit."""
    measured = Measurement(metric, worst.value, worst.unit, "node")
    return by_threshold(ID, f"the lowest {what} ({worst.device})", measured, None, action="none")


def passed(what: str, metric: str, worst: Measurement, threshold: Threshold, count: int) -> Finding:
    """Build the finding for rates that all meet their limit."""
    message = (
        f"{what} of all {count} is {limit_text(threshold)}; the lowest is {worst.device} with {worst.value:g}"
    )
    lowest = Measurement(metric, worst.value, worst.unit)
    return finding_on(ID, Verdict.PASS, lowest, message, limit_text(threshold), threshold.cited)


@dataclass
class Slow:
    """A slow cell with its rate and limit: below its limit (fail) or only below its peers (warn)."""

    metric: str
    value: float | None
    limit: str
    source: str
    verdict: Verdict


def _judge_pairs(
    measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold], *, fabric: bool
) -> list[Finding]:
    findings: list[Finding] = []
    slow: dict[Cell, Slow] = {}
    measured: set[Cell] = set()
    for metric in _PEER:
        rates = [m for m in measurements if m.metric == metric]
        values = {cell_of(m.device): number(m.value) for m in rates}
        if not rates or (not fabric and all(value is None for value in values.values())):
            findings.append(_no_peer_access(metric, fabric=fabric))
            continue
        measured |= {cell for cell, value in values.items() if value is not None or fabric}
        threshold = thresholds.get(f"{ID}.{metric}")
        worse = _slow_cells(metric, values, threshold, fabric=fabric)
        for cell, reason in worse.items():
            previous = slow.get(cell)
            if previous is None or (reason.value or 0) < (previous.value or 0):
                slow[cell] = reason
        if not worse:
            numbers = {m.device: m for m in rates if number(m.value) is not None}
            lowest = min(numbers.values(), key=lambda m: number(m.value) or 0.0)
            what = f"{WORDS[metric]} bandwidth"
            findings.append(
                no_limit(what, metric, lowest)
                if threshold is None
                else passed(what, metric, lowest, threshold, len(numbers))
            )
    # A missing path is reported separately: the remedy for a slow GPU may not restore it.
    gone = {cell for cell, reason in slow.items() if reason.value is None}
    culprits = explain(gone, measured) + explain(slow.keys() - gone, measured - gone)
    # A reset trains the NVLinks to the switches again; a PCIe link or a bridge needs manual work.
    action = "reset GPU" if fabric else "reseat or check cable"
    return [accuse(culprit.device, culprit.cells, slow, WORDS, action) for culprit in culprits] + findings


def cell_of(device: str) -> Cell:
    source, target = device.split("->")
    return int(source[3:]), int(target[3:])


def _no_peer_access(metric: str, *, fabric: bool) -> Finding:
    if fabric:
        message = f"no GPU can reach another ({WORDS[metric]} was waived), though NVSwitches join them"
        return Finding(ID, Verdict.FAIL, "node", message, metric, action="fix configuration")
    message = f"the GPUs of this machine have no peer access: {WORDS[metric]} does not apply"
    return Finding(ID, Verdict.SKIP, "node", message, metric)


def _slow_cells(
    metric: str, values: Mapping[Cell, float | None], threshold: Threshold | None, *, fabric: bool
) -> dict[Cell, Slow]:
    """Return the cells below the limit, or in a uniform fabric below the median of the matrix."""
    numbers = [value for value in values.values() if value is not None]
    middle, deviation = spread(numbers) if numbers else (0.0, 0.0)
    slow: dict[Cell, Slow] = {}
    for cell, value in values.items():
        if value is None:
            if fabric:
                slow[cell] = Slow(
                    metric, None, "peer access", "NVSwitches join all GPUs of this SKU", Verdict.FAIL
                )
        elif threshold is not None and value < threshold.limit:
            slow[cell] = Slow(metric, value, limit_text(threshold), threshold.cited, Verdict.FAIL)
        elif fabric and value < (1 - _PAIR_TOLERANCE) * middle and middle - value > 3 * deviation:
            limit = f"≥ {(1 - _PAIR_TOLERANCE) * middle:.0f} GB/s"
            slow[cell] = Slow(
                metric, value, limit, f"median of the node's matrix, {middle:g} GB/s", Verdict.WARN
            )
    return slow


def accuse(
    device: str, cells: Sequence[Cell], slow: Mapping[Cell, Slow], words: Mapping[str, str], action: str
) -> Finding:
    """Build the finding for one culprit, with its slow cells as evidence; `words`: metric → its name."""
    reasons = [slow[cell] for cell in cells]
    verdict = Verdict.FAIL if any(reason.verdict is Verdict.FAIL for reason in reasons) else Verdict.WARN
    reason = min((r for r in reasons if r.verdict is verdict), key=lambda r: r.value or 0.0)
    numbers = [r.value for r in reasons if r.value is not None]
    if not numbers:
        message = "no peer access, though NVSwitches join all GPUs of this node"
    elif "-" in device:
        rate = min(numbers) if reason.value is None else reason.value
        message = f"{words[reason.metric]} between the two is {rate:g} GB/s (limit {reason.limit})"
    else:
        whole = "most pairs of the node are" if device == "node" else "its pairs are"
        message = f"{whole} slow: {statistics.median(numbers):g} GB/s (limit {reason.limit})"
    evidence = tuple(
        f"gpu{a}->gpu{b} {slow[a, b].metric}: "
        + ("N/A" if (v := slow[a, b].value) is None else f"{v:g} GB/s")
        for a, b in cells[:16]
    )
    return Finding(
        *(ID, verdict, device, message, reason.metric, reason.value, "GB/s", reason.limit, reason.source),
        action="investigate" if device == "node" else action,
        evidence=evidence,
    )
