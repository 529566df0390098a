"""Inventory of the node's GPUs and their health according to the driver.

Count, model, memory, ECC, row remap, PCIe width, throttle reasons, NVLinks, fabric state, and Xids since
boot. Read-only, takes seconds. It runs first, because it helps to interpret every other check's result.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.checks.check import CheckNode, Command, GpuIdentity, Measurement, Output
from provision.checks.gpu import fabric_log, gpu_answers, nvidia_smi, nvlink_errors
from provision.checks.gpu.fabric import judge_fabric
from provision.checks.gpu.inventory_links import judge_links, judge_settings
from provision.checks.gpu.inventory_rules import ID as ID
from provision.checks.gpu.inventory_rules import (
    Values,
    judge_flags,
    judge_models,
    odd_count,
    one_action,
    wrong_count,
)
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.checks.kernel import host_lines, kernel_incidents, kernel_log
from provision.checks.thresholds import Threshold, limits
from provision.errors import ParseError
from provision.text import one_line

SUMMARY = (
    "count, model, memory, ECC, row remap, PCIe width, throttling, NVLinks, fabric state, Xids since boot"
)
FINDS = (
    "missing GPUs, wrong model or memory, ECC and row-remap trouble, narrow PCIe links, NVLinks down or "
    "erring, fabric health, errors that fabric manager or IMEX logged, throttling, power limits and "
    "modes, foreign processes, Xids since boot, grouped by incident"
)
NEEDS: tuple[str, ...] = ("nvidia-smi",)
FACTS: tuple[str, ...] = ("driver.nvlink_disabled", *fabric_log.FACTS)

# nvidia-smi takes a second or more per GPU without persistence mode, and never returns if the driver is
# stuck.
_SMI_DEADLINE = 90.0
# Copying the kernel's buffer takes hundredths of a second; longer means a busy machine, slowing nvidia-smi.
_IDLE_DMESG = 1.0


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:  # noqa: ARG001 - the contract
    return [
        *host_lines.commands(),
        Command("nvidia_smi", ("nvidia-smi", "-q", "-x"), _SMI_DEADLINE),
        Command("nvlink", ("nvidia-smi", "nvlink", "-s"), 30.0),
        Command("nvlink_errors", ("nvidia-smi", "nvlink", "-e"), 30.0),
    ]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Parse each source separately: if nvidia-smi fails, the kernel log has the reason, and vice versa.

    A failed source leaves the measurement `unreadable.<source>` with the reason, which is judged `error`. Its
    complete output before the failure is parsed as well: it may show which GPU is broken.
    """
    measurements: list[Measurement] = []
    smi, nvlink = outputs.get("nvidia_smi"), outputs.get("nvlink")
    measurements += _from("nvidia_smi", smi, nvidia_smi.parse_xml)
    if smi is not None and _unreadable(measurements, "nvidia_smi"):
        measurements += gpu_answers.unreachable(smi, kernel_incidents.devices(node))
    silent = {m.device for m in measurements if m.metric in ("unanswered", "forbidden")}
    measurements += _from("nvlink", nvlink, functools.partial(nvlink_errors.parse_links, unanswered=silent))
    if nvlink is not None and not _unreadable(measurements, "nvidia_smi"):
        measurements += gpu_answers.unreachable(nvlink, _addresses(measurements))  # lost since the last call
    if "nvlink_errors" in outputs:  # absent in runs of an older gpuprov
        down: dict[int, set[int]] = {}
        if nvlink is not None and any(m.metric == "nvlink_links" for m in measurements):
            down = nvlink_errors.inactive(nvlink, silent)
        linked = any(m.value for m in measurements if m.metric == "nvlink_links")
        read = functools.partial(nvlink_errors.parse, inactive=down, linked=linked, unanswered=silent)
        measurements += _from("nvlink_errors", outputs["nvlink_errors"], read)
    yardstick = outputs.get("dmesg")
    busy = yardstick is not None and yardstick.seconds > _IDLE_DMESG
    if smi is not None and not smi.not_started and not busy:
        measurements.append(Measurement("smi_seconds", smi.seconds, "s"))
    # If nvidia-smi lists nothing because a GPU is lost, the bus order gives its indices.
    gpus = _addresses(measurements) or kernel_incidents.devices(node)
    events, error = kernel_log.read(
        outputs.get("journal"), outputs.get("dmesg"), fabric_log.switch_errors(node)
    )
    measurements.append(
        Measurement("unreadable.kernel_log", f"{error.what}; {error.fix}", "")
        if error
        else Measurement("kernel_log", "read", "")
    )
    events = kernel_incidents.of_its_gpus(node, events)
    return [*measurements, *kernel_incidents.measured(kernel_incidents.named(events, gpus))]


def _addresses(found: Sequence[Measurement]) -> dict[str, str]:
    """Map PCI addresses to gpu<n>, according to nvidia-smi -q -x."""
    return {str(m.value): m.device for m in found if m.metric == "pci_address"}


def _unreadable(found: Sequence[Measurement], name: str) -> bool:
    return any(measurement.metric == f"unreadable.{name}" for measurement in found)


def _from(name: str, output: Output | None, read: Any) -> list[Measurement]:
    refusal = gpu_answers.refusal(output) if output is not None else None
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
    findings = judge_readability(by_metric)
    findings += judge_no_handle(by_metric)
    if "driver_gpus" in by_metric:
        findings += judge_counts(node, by_metric)
        findings += judge_unanswered(by_metric)
        findings += judge_absent(by_metric)
        findings += judge_models(node, by_metric, thresholds)
        findings += judge_flags(by_metric)
        generation = int(limits(f"skus/{node.sku}")["pcie"]["gen"]) if node.sku else 0
        off = node.facts.get("driver.nvlink_disabled") is True
        findings += judge_links(by_metric, thresholds, generation, nvlink_off=off)
        findings += nvlink_errors.judge(ID, by_metric)
        findings += fabric_log.judge(node, judge_fabric(node, by_metric))
        findings += judge_settings(node, by_metric)
    events = judge_events(node, by_metric, findings)
    return one_action([*_with_the_drivers_reason(node, findings, events), *events])


def _with_the_drivers_reason(
    node: CheckNode, findings: Sequence[Finding], events: Sequence[Finding]
) -> list[Finding]:
    """Add the driver's reason and action to findings on GPUs that are on the bus but that it refused."""
    reasons = [one for one in events if one.metric.startswith("nvrm.") and one.verdict is Verdict.FAIL]
    declared = int(node.variables.get("gpuprov_expected_gpus") or node.gpu_count)
    if not reasons or node.gpu_count < declared:
        return list(findings)
    reason = reasons[0]
    return [
        replace(one, message=f"{one.message}; {reason.message}", action=reason.action)
        if (one.metric, one.verdict) == ("driver_gpus", Verdict.FAIL)
        else one
        for one in findings
    ]


def judge_events(
    node: CheckNode, by_metric: Mapping[str, Mapping[str, Any]], others: Sequence[Finding]
) -> list[Finding]:
    """Return one finding for each incident that the kernel logged since boot."""
    events = kernel_incidents.remembered(by_metric)
    settled = [device for device, pending in by_metric.get("remap_pending", {}).items() if pending == "No"]
    domain = kernel_incidents.spans_nodes(node)
    findings = kernel_incidents.judge(ID, events, settled=settled, others=others, domain=domain)
    if "kernel_log" in by_metric and not findings:
        message = "no GPU error in the kernel log since boot"
        if programs := sorted({f"Xid {event.code}" for event in events if event.kind == "xid"}):
            message += f" (of programs: {', '.join(programs)})"
        findings.append(Finding(ID, Verdict.PASS, "node", message, metric="xid"))
    return findings


def identities(measurements: Sequence[Measurement]) -> list[GpuIdentity]:
    """Return the identity of each gpu<n>, for the technician who replaces it."""
    by_gpu: dict[str, dict[str, str]] = defaultdict(dict)
    for m in measurements:
        if m.metric in ("name", "serial", "uuid", "pci_address"):
            by_gpu[m.device][m.metric] = one_line(str(m.value), 120)
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


# --- availability of the tools and of the expected number of GPUs


_BOARDS = "NVSwitch boards and their partitions (derived)"

# Errors that one broken sensor causes, too. All others affect the whole GPU.
_OF_ONE_READING = (gpu_answers.UNKNOWN, gpu_answers.UNSPECIFIED)


def judge_readability(values: Values) -> list[Finding]:
    """Judge unreadable sources as errors, but a lost GPU as a failure."""
    findings = []
    for metric, devices in values.items():
        if not metric.startswith("unreadable."):
            continue
        message = str(devices["node"])
        if metric.startswith("unreadable.nvlink") and "unreadable.nvidia_smi" in values:
            continue  # same program, same reason: reported once
        if "no_handle" in values and metric != "unreadable.kernel_log":
            continue  # the GPU that blocks nvidia-smi is reported separately
        if "GPU is lost" in message:
            findings.append(Finding(ID, Verdict.FAIL, "node", message, metric=metric, action="power-cycle"))
        else:
            action = "fix configuration" if "did not start" in message else "investigate"
            findings.append(unmeasured(ID, message, action=action))
    if "inforom_corrupted" in values:
        message = "nvidia-smi reports a corrupted infoROM (status 14)"
        findings.append(Finding(ID, Verdict.WARN, "node", message, metric="inforom", action="investigate"))
    return findings


def judge_no_handle(values: Values) -> list[Finding]:
    """Fail each GPU that blocks nvidia-smi entirely; only its address is known."""
    without = "nvidia-smi therefore describes no GPU"
    if "unreadable.nvidia_smi" not in values:
        without = "nvidia-smi therefore lists no NVLinks"
    return [
        Finding(
            ID,
            Verdict.FAIL,
            device,
            f"does not answer: {error!r} at PCI {values['no_handle_address'][device]}; {without}",
            "unanswered",
            error,
            action=gpu_answers.ACTIONS[error],
        )
        for device, error in values.get("no_handle", {}).items()
    ]


def judge_unanswered(values: Values) -> list[Finding]:
    """Fail each GPU with NVML errors in place of readings: the driver reports it broken."""
    findings = []
    for device, error in values.get("unanswered", {}).items():
        count = values["unanswered_readings"][device]
        serial, address = (values.get(metric, {}).get(device) for metric in ("serial", "pci_address"))
        where = ", ".join(
            f"{what} {one_line(str(text), 120)}"
            for what, text in (("serial", serial), ("PCI", address))
            if text
        )
        first = values["unanswered_first"][device]
        words = f"does not answer: {error!r} in place of {count} readings, {first} first ({where})"
        sensor = not values["unanswered_judged"][device] and error in _OF_ONE_READING
        verdict = Verdict.WARN if sensor else Verdict.FAIL
        action = "investigate" if sensor else gpu_answers.ACTIONS[error]
        findings.append(Finding(ID, verdict, device, words, "unanswered", error, action=action))
    for device, paths in values.get("forbidden", {}).items():
        words = (
            f"nvidia-smi may not read {paths} ({gpu_answers.NOT_PERMITTED}): gpuprov has to run it as root"
        )
        action = gpu_answers.ACTIONS[gpu_answers.NOT_PERMITTED]
        findings.append(unmeasured(ID, words, device=device, action=action))
    return findings


# Judged readings; the ECC readings need ECC mode, and none applies to a GPU with MIG.
_JUDGED = {
    "memory_total": "memory size",
    "pcie_width": "PCIe width",
    "pcie_gen_max": "highest PCIe generation",
    "sram_threshold_exceeded": "SRAM threshold flag",
    "remap_pending": "pending row remap",
    "remap_failure": "row remap failure",
    "channel_repair_pending": "pending channel repair",
    "tpc_repair_pending": "pending TPC repair",
    "unrepairable_memory": "flag of unrepairable memory",
    "recovery": "recovery action",
    "ecc_uncorrectable": "uncorrectable ECC errors",
}
_OF_ECC = frozenset({"sram_threshold_exceeded", "ecc_uncorrectable"})


def judge_absent(values: Values) -> list[Finding]:
    """Report readings that are N/A on one GPU but not on the others of its model.

    The model determines which readings exist (NVML_ERROR_NOT_SUPPORTED), so this GPU failed to return one."""
    findings = []
    for device, name in values.get("name", {}).items():
        if device in values.get("unanswered", {}) or device in values.get("forbidden", {}):
            continue  # reported separately
        peers = [d for d, other in values["name"].items() if other == name and d != device]
        without_ecc = values.get("ecc_mode", {}).get(device) == "Disabled"
        partitioned = values.get("mig_mode", {}).get(device) == "Enabled"
        missing = [
            words
            for metric, words in _JUDGED.items()
            if _fewer(values, metric, device, peers)
            and not (metric in _OF_ECC and without_ecc)
            and not partitioned
        ]
        if missing:
            text = f"nvidia-smi gives no {', '.join(missing)} of it, and does of the other {name}s"
            findings.append(unmeasured(ID, text, device=device, action="investigate"))
    return findings


def _fewer(values: Values, metric: str, device: str, peers: Sequence[str]) -> bool:
    """Return whether the GPU lacks this reading, or counters of it, that most peers have."""
    measured, partly = values.get(metric, {}), values.get("ecc_unread", {})
    if metric == "ecc_uncorrectable" and device in partly:
        return 2 * sum(peer in measured and peer not in partly for peer in peers) > len(peers)
    return device not in measured and 2 * sum(peer in measured for peer in peers) > len(peers)


def judge_counts(node: CheckNode, values: Values) -> list[Finding]:
    """Judge whether all declared GPUs are on the bus and known to the driver."""
    seen = int(values["driver_gpus"]["node"])
    declared = node.variables.get("gpuprov_expected_gpus")
    expected = int(declared) if declared is not None else node.gpu_count
    limit = f"= {expected} GPUs"
    source = "gpuprov_expected_gpus" if declared is not None else "PCI devices of the node"
    on_board = node.gpuprov_node["gpu"].get("fabric", "none") != "none"
    if declared is None and on_board and seen == node.gpu_count and (odd := odd_count(node, seen, _BOARDS)):
        return odd
    if seen == expected == node.gpu_count:
        return [
            Finding(ID, Verdict.PASS, "node", f"{seen} GPUs, as expected", "driver_gpus", seen, "GPUs", limit)
        ]
    listed = {str(address) for address in values.get("pci_address", {}).values()}
    on_bus = [str(address) for address in node.variables.get("gpuprov_pci_addresses", ())]
    lost = [address for address in on_bus if address.rsplit(".", 1)[0].lower() not in listed]
    message = f"{seen} of {expected} GPUs answer; {node.gpu_count} are on the PCI bus"
    if lost:
        message += f"; the driver does not list {', '.join(lost)}"
    return [wrong_count(message, seen, limit, source)]
