"""What is in the node, and does the driver call it healthy: count, model, memory, ECC, row remap, PCIe width,
throttle reasons, NVLinks, fabric state, and the Xids since boot.

Reads only; takes seconds. It runs first, for every other check's result is read in its light.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks import kernel_log, nvidia_smi
from provision.checks.check import CheckNode, Command, GpuIdentity, Measurement, Output
from provision.checks.inventory_links import judge_fabric, judge_links
from provision.checks.inventory_presence import judge_counts, judge_readability
from provision.checks.inventory_rules import judge_flags, judge_models
from provision.errors import ParseError
from provision.judge import Finding, Verdict
from provision.thresholds import Threshold

SUMMARY = (
    "count, model, memory, ECC, row remap, PCIe width, throttling, NVLinks, fabric state, Xids since boot"
)
SCOPE = "node"
STAGE = "quick"
NEEDS: tuple[str, ...] = ("nvidia-smi",)

ID = "gpu_inventory"

# nvidia-smi takes a second per GPU and more without persistence mode, and never returns when the driver is
# stuck.
_SMI_DEADLINE = 90.0


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    return [
        Command("journal", ("journalctl", "-k", "-b", "-o", "short-unix", "--no-pager"), 60.0),
        Command("dmesg", ("dmesg",), 30.0),
        Command("nvidia_smi", ("nvidia-smi", "-q", "-x"), _SMI_DEADLINE),
        Command("nvlink", ("nvidia-smi", "nvlink", "-s"), 30.0),
    ]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:  # noqa: ARG001 - the contract
    """Each source on its own: when nvidia-smi fails the kernel log tells why, and the other way round.

    A source that failed leaves the measurement `unreadable.<source>` with its reason, which is judged
    `error`.
    """
    found: list[Measurement] = []
    smi, nvlink = outputs.get("nvidia_smi"), outputs.get("nvlink")
    found += _from("nvidia_smi", smi, nvidia_smi.parse_xml)
    found += _from("nvlink", nvlink, nvidia_smi.parse_nvlink)
    gpus = {str(m.value): m.device for m in found if m.metric == "pci_address"}
    try:
        found += _events(kernel_log.read(outputs.get("journal"), outputs.get("dmesg")), gpus)
    except ParseError as error:
        found.append(Measurement("unreadable.kernel_log", f"{error.what}; {error.fix}", ""))
    return found


def _from(name: str, output: Output | None, read: Any) -> list[Measurement]:
    try:
        if output is None:
            raise ParseError(f"the output of {name} is missing", "run the check again")
        refusal = nvidia_smi.refusal(output)
        if refusal is not None:
            raise refusal
        if output.truncated:
            raise ParseError(f"{name}: the output was cut at its size limit", "run the check again")
        measured: list[Measurement] = read(output)
        return measured
    except ParseError as error:
        return [Measurement(f"unreadable.{name}", f"{error.what}; {error.fix}", "")]


def _events(events: Sequence[kernel_log.KernelEvent], gpus: Mapping[str, str]) -> list[Measurement]:
    """Two measurements for each kind of event: how often, and its first line (the evidence).

    A GPU the driver no longer lists (it fell off the bus) has no index: its PCI address names it.
    """
    found = [Measurement("kernel_log", "read", "")]
    for event in events:
        device = gpus.get(event.address, f"gpu@{event.address}" if event.kind == "xid" else "node")
        name = f"{event.kind}.{event.code}"
        found.append(Measurement(name, event.count, "events", device))
        found.append(Measurement(f"{name}.line", event.line, "", device))
    return found


def judge(
    node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    by_metric: dict[str, dict[str, Any]] = defaultdict(dict)
    for measurement in measurements:
        by_metric[measurement.metric][measurement.device] = measurement.value
    findings = judge_readability(ID, by_metric)
    if "driver_gpus" in by_metric:
        findings += judge_counts(ID, node, by_metric)
        findings += judge_models(ID, node, by_metric, thresholds)
        findings += judge_flags(ID, node, by_metric)
        findings += judge_links(ID, by_metric, thresholds)
        findings += judge_fabric(ID, node, by_metric)
    findings += judge_events(by_metric)
    return findings


def judge_events(by_metric: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """One finding for each kind of error the kernel logged about a device since boot."""
    findings = []
    for metric, devices in sorted(by_metric.items()):
        kind, _, code = metric.partition(".")
        if kind not in ("xid", "sxid") or not code.isdigit():
            continue
        for device, count in devices.items():
            line = str(by_metric.get(f"{metric}.line", {}).get(device, ""))
            level, action, words = kernel_log.meaning(kind, int(code), line)
            if level == "info":
                continue
            name = "Xid" if kind == "xid" else "SXid"
            findings.append(
                Finding(
                    ID,
                    Verdict.FAIL if level == "fail" else Verdict.WARN,
                    device,
                    f"{name} {code} ({words}), {count} time{'s' * (count != 1)} since boot",
                    metric=metric,
                    value=count,
                    unit="events",
                    source="NVIDIA Xid catalogue (provision/data/xid.yml)" if kind == "xid" else "kernel log",
                    action=action,
                    evidence=(line,) if line else (),
                )
            )
    if "kernel_log" in by_metric and not findings:
        findings.append(
            Finding(ID, Verdict.PASS, "node", "no GPU error in the kernel log since boot", metric="xid")
        )
    return findings


def identities(measurements: Sequence[Measurement]) -> list[GpuIdentity]:
    """Which physical GPU each gpu<n> is, for the person who must pull it."""
    by_gpu: dict[str, dict[str, str]] = defaultdict(dict)
    for m in measurements:
        if m.metric in ("name", "serial", "uuid", "pci_address"):
            by_gpu[m.device][m.metric] = str(m.value)
    return [
        GpuIdentity(
            int(device[3:]), gpu["name"], gpu.get("serial", ""), gpu["uuid"], gpu.get("pci_address", "")
        )
        for device, gpu in by_gpu.items()
    ]
