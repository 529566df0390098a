"""Rules of gpu_inventory: the meaning of the driver's readings for the node (pure).

Each rule takes values by metric and device, and returns one finding for each device that breaks it, or one
`pass` for the node. A finding on all GPUs of a node is reported once, for the node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.checks.check import CheckNode, Measurement
from provision.checks.gpu.nvidia_smi import INFOROM_CORRUPTED, THROTTLE_ALARMS
from provision.checks.judge import Finding, Verdict, by_threshold, finding_on, limit_text, unmeasured
from provision.checks.kernel.kernel_meaning import requested_action
from provision.checks.thresholds import Threshold
from provision.text import many

ID = "gpu_inventory"
# NVIDIA's limit for a healthy PCIe link, which applies to other vendors' GPUs as well.
REPLAYS_PER_MINUTE = 8
REPLAYS_SOURCE = "NVIDIA DCGM, dcgm_gpu_hardware_limits.h: at most 8 PCIe replays a minute"

Values = Mapping[str, Mapping[str, Any]]  # metric → device → value

# Nodes with more than ten remapped rows regress five times out of six, nodes with one to ten once in eighteen
# (SuperBench, USENIX ATC 2024, over 24,000 A100s).
_MANY_REMAPPED_ROWS = 10

# Boards carry 4, 8 or 16 GPUs, and virtual machines get 1, 2, 4 or 8 of them: derived from the boards on
# sale, no document states the list.
_BOARD_COUNTS = (1, 2, 4, 8, 16)


def all_good(metric: str, message: str) -> Finding:
    return Finding(ID, Verdict.PASS, "node", message, metric=metric)


def shared(findings: list[Finding], gpus: int) -> list[Finding]:
    """Replace identical findings of all GPUs by one finding of the node."""
    same = {(f.verdict, f.message, f.metric, f.action) for f in findings}
    if gpus > 1 and len(findings) == gpus and len(same) == 1:
        message = f"all {gpus} GPUs: {findings[0].message}"
        return [replace(findings[0], device="node", message=message, evidence=())]
    return findings


def wrong_count(message: str, seen: int, limit: str, source: str) -> Finding:
    measured = Measurement("driver_gpus", seen, "GPUs")
    return finding_on(ID, Verdict.FAIL, measured, message, limit, source, "reseat or check cable")


def odd_count(node: CheckNode, seen: int, boards: str) -> list[Finding]:
    """Report a GPU missing on the PCI bus if no count is declared; `boards`: source of board sizes."""
    if seen in _BOARD_COUNTS:
        return []
    message = (
        f"{seen} GPUs on the PCI bus: no {node.sku} board or partition has that many, so one is missing "
        "(set gpuprov_expected_gpus if that is wrong)"
    )
    return [wrong_count(message, seen, f"{', '.join(map(str, _BOARD_COUNTS))} GPUs", boards)]


def judge_models(node: CheckNode, values: Values, thresholds: Mapping[str, Threshold]) -> list[Finding]:
    """Judge whether all GPUs are of the model that the PCI ids promise, with all of its memory."""
    names = {device: str(name) for device, name in values["name"].items()}
    if not names:
        return []  # no GPU responds
    usual = Counter(names.values()).most_common(1)[0][0]
    findings = [
        Finding(ID, Verdict.FAIL, device, f"is a {name} among {usual}s", "name", name, action="replace part")
        for device, name in names.items()
        if name != usual
    ]
    if node.sku is None:
        message = (
            f"{usual} is not a GPU SKU that gpuprov knows; limits come from --thresholds (sku: any) only"
        )
        findings.append(Finding(ID, Verdict.WARN, "node", message, "name", usual, action="fix configuration"))
    elif usual not in (known := node.gpuprov_node["gpu"].get("product_names", ())):
        # Another product fails; another name of the same product (drivers rename) is a warning.
        is_same = node.sku.split("-")[0].upper() in re.split(r"\W+", usual.upper())
        message = f"the PCI ids belong to {node.sku} ({' or '.join(known)}), the driver reports {usual}"
        verdict = Verdict.WARN if is_same else Verdict.FAIL
        findings.append(Finding(ID, verdict, "node", message, "name", usual, action="investigate"))
    findings = findings or [all_good("name", f"all GPUs are {usual}")]
    return findings + _memory(node, values, thresholds.get(f"{ID}.memory_total"))


def _memory(node: CheckNode, values: Values, threshold: Threshold | None) -> list[Finding]:
    sizes = values.get("memory_total", {})
    if not sizes and "memory_unread" in values:
        if node.sku == "gb10":
            return []  # it shares its memory with the CPU, and prints N/A
        # A product with a limit must have a size.
        words = "the driver gives no memory size of any GPU"
        if threshold is not None:
            return [unmeasured(ID, words, action="investigate")]
        return [Finding(ID, Verdict.WARN, "node", words, "memory_total", action="investigate")]
    if not sizes:
        return []
    if threshold is not None:
        return limited("memory", "memory_total", sizes, threshold, "replace part")
    largest = max(sizes.values())
    return [
        finding_on(
            ID,
            Verdict.FAIL,
            Measurement("memory_total", size, "MiB", device),
            f"memory is {size} MiB, its peers have {largest} MiB",
            action="replace part",
        )
        for device, size in sizes.items()
        if size < 0.98 * largest
    ] or [all_good("memory_total", f"every GPU has {largest} MiB of memory")]


def limited(
    what: str, metric: str, devices: Mapping[str, Any], threshold: Threshold, action: str
) -> list[Finding]:
    """Judge each device by one limit; return one `pass` for all if none breaks it."""
    findings = [
        by_threshold(ID, what, Measurement(metric, value, threshold.unit, device), threshold, action=action)
        for device, value in devices.items()
    ]
    bad = [finding for finding in findings if finding.verdict is not Verdict.PASS]
    return shared(bad, len(devices)) or [
        Finding(
            ID,
            Verdict.PASS,
            "node",
            f"{what} of all {len(findings)} GPUs is {limit_text(threshold)}",
            metric,
            limit=limit_text(threshold),
            source=threshold.cited,
        )
    ]


# metric → (bad value, verdict, meaning, action)
_FLAGS = {
    "remap_failure": ("Yes", Verdict.FAIL, "a row remap failed: memory cannot be repaired", "replace part"),
    "remap_pending": ("Yes", Verdict.FAIL, "a row remap waits for a reset", "reset GPU"),
    "retirement_pending": ("Yes", Verdict.FAIL, "a page retirement waits for a reset", "reset GPU"),
    "unrepairable_memory": ("Yes", Verdict.FAIL, "memory that cannot be repaired", "replace part"),
    "sram_threshold_exceeded": ("Yes", Verdict.FAIL, "SRAM errors passed NVIDIA's limit", "replace part"),
    "channel_repair_pending": ("Yes", Verdict.WARN, "a memory channel repair waits for a reset", "reset GPU"),
    "tpc_repair_pending": ("Yes", Verdict.WARN, "a TPC repair waits for a reset", "reset GPU"),
    "ecc_mode": ("Disabled", Verdict.WARN, "ECC is off: memory errors go unseen", "fix configuration"),
    "ecc_pending": (
        "Disabled",
        Verdict.WARN,
        "ECC goes off at its next reset or reboot",
        "fix configuration",
    ),
    "inforom": (INFOROM_CORRUPTED, Verdict.WARN, "its infoROM is corrupted", "investigate"),
}


def judge_flags(values: Values) -> list[Finding]:
    """Judge ECC, row remapping, throttling, and the driver's own recovery request."""
    gpus = len(values["name"])
    findings: list[Finding] = []
    for metric, (bad, verdict, words, action) in _FLAGS.items():
        hit = [device for device, value in values.get(metric, {}).items() if value == bad]
        findings += shared([Finding(ID, verdict, d, words, metric, bad, action=action) for d in hit], gpus)
    for device, count in values.get("ecc_uncorrectable", {}).items():
        if count > 0:
            words = f"{count} uncorrectable ECC error{'s' * (count != 1)} since the driver was loaded"
            measured = Measurement("ecc_uncorrectable", count, "errors", device)
            findings.append(finding_on(ID, Verdict.FAIL, measured, words, "= 0 errors", action="reset GPU"))
    findings += (
        _retired(values)
        + _remapped(values)
        + _spare_rows(values)
        + _throttled(values, gpus)
        + _recovery(values, gpus)
    )
    return findings or [all_good("ecc_uncorrectable", "ECC, row remapping and clocks are in order")]


def _remapped(values: Values) -> list[Finding]:
    findings = []
    for device, correctable in values.get("remapped_correctable", {}).items():
        rows = correctable + values.get("remapped_uncorrectable", {}).get(device, 0)
        if rows > _MANY_REMAPPED_ROWS:
            words = f"{rows} remapped rows: memory that wears out"
            source = "SuperBench (USENIX ATC 2024): 83 % of such nodes regress"
            measured, limit = (
                Measurement("remapped_rows", rows, "rows", device),
                f"≤ {_MANY_REMAPPED_ROWS} rows",
            )
            findings.append(finding_on(ID, Verdict.WARN, measured, words, limit, source, "watch"))
    return findings


def _spare_rows(values: Values) -> list[Finding]:
    """Warn about memory banks that have used most or all of their spare rows."""
    findings: list[Finding] = []
    for metric, words in (
        ("remap_banks_none", "without spare rows"),
        ("remap_banks_low", "with few spare rows"),
    ):
        for device, banks in values.get(metric, {}).items():
            if banks > 0 and device not in {finding.device for finding in findings}:
                measured = Measurement(metric, banks, "banks", device)
                text = (
                    f"{many(banks, 'memory bank')} {words}: the next memory error there may not be remapped"
                )
                findings.append(finding_on(ID, Verdict.WARN, measured, text, "= 0 banks", action="watch"))
    return findings


# NVIDIA DCGM, dcgm_gpu_hardware_limits.h: 63 like the field diagnostic, 15 after double-bit errors.
_RETIRED_FAIL, _RETIRED_WARN = 63, 15


def _retired(values: Values) -> list[Finding]:
    """Judge retired memory pages, on GPUs before Ampere."""
    findings = []
    for device, double in values.get("retired_double_bit", {}).items():
        pages = double + values.get("retired_single_bit", {}).get(device, 0)
        if pages >= _RETIRED_FAIL:
            verdict, limit, action = Verdict.FAIL, f"< {_RETIRED_FAIL} pages", "replace part"
            words = f"{pages} retired memory pages: there is no room for more"
        elif double > _RETIRED_WARN:
            verdict, limit, action = Verdict.WARN, f"≤ {_RETIRED_WARN} pages", "watch"
            words = f"{double} memory pages were retired after double-bit errors"
        else:
            continue
        source = "NVIDIA DCGM, dcgm_gpu_hardware_limits.h"
        findings.append(
            Finding(ID, verdict, device, words, "retired_pages", pages, "pages", limit, source, action)
        )
    return findings


def _throttled(values: Values, gpus: int) -> list[Finding]:
    findings = []
    for device, reasons in values.get("throttle", {}).items():
        active = [name for name in THROTTLE_ALARMS if name in str(reasons).split(", ")]
        if not active:
            continue
        words = f"clocks are held down: {', '.join(THROTTLE_ALARMS[name] for name in active)}"
        if "hw_power_brake_slowdown" in active:
            words += " (requested by the power supply or BMC, not by the GPU)"
        verdict = Verdict.WARN if active == ["sw_thermal_slowdown"] else Verdict.FAIL
        findings.append(Finding(ID, verdict, device, words, "throttle", reasons, action="investigate"))
    return shared(findings, gpus)


def _recovery(values: Values, gpus: int) -> list[Finding]:
    findings = []
    for device, requested in values.get("recovery", {}).items():
        if requested != "None":
            level, action, words = requested_action(str(requested))
            verdict = Verdict.WARN if level == "warn" else Verdict.FAIL
            findings.append(Finding(ID, verdict, device, words, "recovery", requested, action=action))
    return shared(findings, gpus)


# Reading of the driver → the Xid that logs the same event.
_LOGGED_AS = {"remap_failure": "xid.64", "remap_pending": "xid.63"}


def one_action(findings: Sequence[Finding]) -> list[Finding]:
    """Merge Xids with the readings they log, and replace rather than reset a GPU that needs both."""
    reported = {(f.device, f.metric): f for f in findings}
    replaced = {f.device for f in findings if f.verdict is Verdict.FAIL and f.action == "replace part"}
    logged = {
        (device, metric): reported[device, _LOGGED_AS[metric]]
        for device, metric in reported
        if (device, _LOGGED_AS.get(metric)) in reported
    }
    merged = []
    for finding in findings:
        if any(finding is xid for xid in logged.values()):
            continue
        xid = logged.get((finding.device, finding.metric))
        if xid is not None:
            words = f"{finding.message} ({xid.metric.replace('xid.', 'Xid ')} in the kernel log)"
            finding = replace(finding, message=words, evidence=(*finding.evidence, *xid.evidence))
        if finding.device in replaced and finding.action == "reset GPU":
            finding = replace(finding, action="replace part")
        merged.append(finding)
    return merged
