"""What is in the node, and does the driver call it healthy: count, model, memory, ECC, row remap, PCIe width,
throttle reasons, NVLinks, fabric state, and the Xids since boot.

Reads only; takes seconds. It runs first, for every other check's result is read in its light.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import CheckNode, Command, GpuIdentity, Measurement, Output
from provision.checks.gpu import nvidia_smi, nvidia_smi_refusal, nvlink_errors, nvlink_status
from provision.checks.gpu.inventory_links import judge_fabric, judge_links
from provision.checks.gpu.inventory_presence import (
    judge_absent,
    judge_counts,
    judge_no_handle,
    judge_readability,
    judge_unanswered,
)
from provision.checks.gpu.inventory_rules import judge_flags, judge_models
from provision.checks.gpu.inventory_settings import judge_settings
from provision.checks.host import kernel_incidents, kernel_log
from provision.checks.judge import Finding, Verdict
from provision.checks.limits import limits
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

SUMMARY = (
    "count, model, memory, ECC, row remap, PCIe width, throttling, NVLinks, fabric state, Xids since boot"
)
NEEDS: tuple[str, ...] = ("nvidia-smi",)

ID = "gpu_inventory"

# nvidia-smi takes a second per GPU and more without persistence mode, and never returns when the driver is
# stuck.
_SMI_DEADLINE = 90.0
# Copying the kernel's buffer takes a few hundredths of a second: where it takes longer the machine is busy,
# and how long nvidia-smi takes says nothing of the GPUs.
_IDLE_DMESG = 1.0


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    return [
        Command("journal", ("journalctl", "-k", "-b", "-o", "short-unix", "--no-pager"), 60.0),
        Command("dmesg", ("dmesg",), 30.0),
        Command("nvidia_smi", ("nvidia-smi", "-q", "-x"), _SMI_DEADLINE),
        Command("nvlink", ("nvidia-smi", "nvlink", "-s"), 30.0),
        Command("nvlink_errors", ("nvidia-smi", "nvlink", "-e"), 30.0),
    ]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Each source on its own: when nvidia-smi fails the kernel log tells why, and the other way round.

    A source that failed leaves the measurement `unreadable.<source>` with its reason, which is judged
    `error`. What it printed whole before it failed counts beside that: it may show which GPU is broken.
    """
    found: list[Measurement] = []
    smi, nvlink = outputs.get("nvidia_smi"), outputs.get("nvlink")
    found += _from("nvidia_smi", smi, nvidia_smi.parse_xml)
    if smi is not None and _unreadable(found, "nvidia_smi"):
        found += nvidia_smi_refusal.unreachable(smi, kernel_incidents.devices(node))
    silent = {m.device for m in found if m.metric in ("unanswered", "forbidden")}
    found += _from("nvlink", nvlink, functools.partial(nvlink_status.parse, unanswered=silent))
    if nvlink is not None and not _unreadable(found, "nvidia_smi"):
        found += nvidia_smi_refusal.unreachable(nvlink, _addresses(found))  # lost since the call before
    if "nvlink_errors" in outputs:  # a run of an older gpuprov has none
        down: dict[int, set[int]] = {}
        if nvlink is not None and any(m.metric == "nvlink_links" for m in found):
            down = nvlink_status.inactive(nvlink, silent)
        linked = any(m.value for m in found if m.metric == "nvlink_links")
        read = functools.partial(nvlink_errors.parse, inactive=down, linked=linked, unanswered=silent)
        found += _from("nvlink_errors", outputs["nvlink_errors"], read)
    yardstick = outputs.get("dmesg")
    busy = yardstick is not None and yardstick.seconds > _IDLE_DMESG
    if smi is not None and not smi.not_started and not busy:
        found.append(Measurement("smi_seconds", smi.seconds, "s"))
    # Where nvidia-smi says nothing, because a GPU is lost, the order of the bus is the order of its indices.
    gpus = _addresses(found) or kernel_incidents.devices(node)
    events, error = kernel_log.read(outputs.get("journal"), outputs.get("dmesg"))
    found.append(
        Measurement("unreadable.kernel_log", f"{error.what}; {error.fix}", "")
        if error
        else Measurement("kernel_log", "read", "")
    )
    return [*found, *kernel_incidents.measured(kernel_incidents.named(events, gpus))]


def _addresses(found: Sequence[Measurement]) -> dict[str, str]:
    """PCI address → gpu<n>, as nvidia-smi -q -x has them."""
    return {str(m.value): m.device for m in found if m.metric == "pci_address"}


def _unreadable(found: Sequence[Measurement], name: str) -> bool:
    return any(measurement.metric == f"unreadable.{name}" for measurement in found)


def _from(name: str, output: Output | None, read: Any) -> list[Measurement]:
    refusal = nvidia_smi_refusal.refusal(output) if output is not None else None
    if refusal is not None:
        failed = [Measurement(f"unreadable.{name}", f"{refusal.what}; {refusal.fix}", "")]
        try:
            return failed if output is None or output.timed_out else [*failed, *read(output)]
        except ParseError:
            return failed
    try:
        if output is None:
            raise ParseError(f"the output of {name} is missing", "run the check again")
        if output.truncated:
            raise ParseError(f"{name}: the output was cut at its size limit", "run the check again")
        measured: list[Measurement] = read(output)
        return measured
    except ParseError as error:
        return [Measurement(f"unreadable.{name}", f"{error.what}; {error.fix}", "")]


def judge(
    node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    by_metric: dict[str, dict[str, Any]] = defaultdict(dict)
    for measurement in measurements:
        by_metric[measurement.metric][measurement.device] = measurement.value
    findings = judge_readability(ID, by_metric)
    findings += judge_no_handle(ID, by_metric)
    if "driver_gpus" in by_metric:
        findings += judge_counts(ID, node, by_metric)
        findings += judge_unanswered(ID, by_metric)
        findings += judge_absent(ID, by_metric)
        findings += judge_models(ID, node, by_metric, thresholds)
        findings += judge_flags(ID, node, by_metric)
        generation = int(limits(f"skus/{node.sku}")["pcie"]["gen"]) if node.sku else 0
        findings += judge_links(ID, by_metric, thresholds, generation)
        findings += nvlink_errors.judge(ID, by_metric)
        findings += judge_fabric(ID, node, by_metric)
        findings += judge_settings(ID, node, by_metric)
    findings += judge_events(by_metric)
    return findings


def judge_events(by_metric: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """One finding for each incident the kernel logged since boot."""
    events = kernel_incidents.remembered(by_metric)
    settled = [device for device, pending in by_metric.get("remap_pending", {}).items() if pending == "No"]
    findings = kernel_incidents.judge(ID, events, settled=settled)
    if "kernel_log" in by_metric and not findings:
        message = "no GPU error in the kernel log since boot"
        if programs := sorted({f"Xid {event.code}" for event in events if event.kind == "xid"}):
            message += f" (of programs: {', '.join(programs)})"
        findings.append(Finding(ID, Verdict.PASS, "node", message, metric="xid"))
    return findings


def identities(measurements: Sequence[Measurement]) -> list[GpuIdentity]:
    """Which physical GPU each gpu<n> is, for the person who must pull it."""
    by_gpu: dict[str, dict[str, str]] = defaultdict(dict)
    for m in measurements:
        if m.metric in ("name", "serial", "uuid", "pci_address"):
            by_gpu[m.device][m.metric] = str(m.value)
    return [
        GpuIdentity(
            int(device[3:]),
            gpu.get("name", ""),
            gpu.get("serial", ""),
            gpu.get("uuid", ""),
            gpu.get("pci_address", ""),
        )
        for device, gpu in by_gpu.items()
    ]
