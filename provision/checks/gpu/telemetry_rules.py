"""Rules for samples under load: PCIe width and generation, throttling, heat, errors (pure).

A state that all GPUs of a node share blames none of them; a short event is no fault. `judge` is for the
samples of nvidia-smi; the rules below it are for any sampler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.checks.gpu.gpu_answers import ACTIONS, LOST, NOT_PERMITTED, REQUIRES_RESET
from provision.checks.gpu.inventory_rules import REPLAYS_PER_MINUTE, REPLAYS_SOURCE
from provision.checks.gpu.telemetry import ALARMS, FEWEST
from provision.checks.judge import Finding, Measurement, Verdict, finding_on, hotter, unmeasured
from provision.checks.thresholds import Threshold

# A sampler that ended in the first half of a load has not measured the load.
_SAMPLED_SHARE = 0.5
_SHORT = 10.0  # seconds of load, below which only a few samples exist

_SOFT = "sw_thermal_slowdown"
# Throttling in one sample, or in two that one short event straddles, is not lasting.
_LASTING = 3  # samples in a row
_LASTING_SHARE = 0.25  # of all samples, for intermittent throttling


def judge(
    check: str,
    by_gpu: Mapping[str, Mapping[str, Any]],
    node: Mapping[str, Any],
    thresholds: Mapping[str, Threshold],
) -> list[Finding]:
    """Judge the samples. `by_gpu`: device → metric → value; `node`: the node's own measurements."""
    if "telemetry" in node:
        return [
            unmeasured(check, str(node["telemetry"]), action="investigate"),
            *_replays(check, by_gpu, node),
        ]
    sampled = {device: values for device, values in by_gpu.items() if "samples" in values}
    alarms = dict(ALARMS.values())
    findings = links(check, sampled, thresholds, "nvidia-smi")
    findings += throttled(check, sampled, alarms, _SOFT) + heat(check, sampled)
    for device, values in sampled.items():
        if "silent" in values:
            text = f"nvidia-smi stopped listing it {values['silent']:g} s before the others"
            findings.append(_gone(check, device, text, "silent"))
        if "unread" in values:
            text = (
                f"nvidia-smi printed {values['unread_error']!r} for a reading in {values['unread']} samples"
            )
            if values["unread_error"] == NOT_PERMITTED:  # nothing was measured, and the GPU is not to blame
                findings.append(unmeasured(check, text, device=device, action=ACTIONS[NOT_PERMITTED]))
            else:
                findings.append(Finding(check, Verdict.WARN, device, text, "unread", action="investigate"))
    if not any("lost" in values for values in (*by_gpu.values(), node)):  # a lost GPU ends the sampler
        findings += _unseen(check, sampled, node)
    for device, values in (*by_gpu.items(), ("node", node)):
        if "lost" in values:
            findings.append(_gone(check, device, f"was lost under load: {values['lost']}", "lost"))
    return findings + _replays(check, by_gpu, node)


def _unseen(check: str, sampled: Mapping[str, Mapping[str, Any]], node: Mapping[str, Any]) -> list[Finding]:
    """Report a load that was sampled too briefly, and readings that only some of the GPUs have."""
    ran, seen = float(node.get("ran", 0.0)), float(node.get("sampled", 0.0))
    if "sampled" in node and ran >= _SHORT and seen < _SAMPLED_SHARE * ran:
        text = f"nvidia-smi sampled the GPUs for {seen:g} s of {ran:g} s and ended"
        return [unmeasured(check, text, action="investigate")]
    answering = {d: v for d, v in sampled.items() if int(v["samples"]) >= FEWEST and "lost" not in v}
    findings = []
    for metric, words in _READINGS.items():
        silent = [device for device, values in answering.items() if metric not in values]
        if 0 < 2 * len(silent) < len(answering):
            text = f"nvidia-smi reads no {words} of it under load, and does of the other GPUs"
            findings += [unmeasured(check, text, device=device, action="investigate") for device in silent]
    return findings


_READINGS = {
    "load_reasons": "clock event reasons",
    "load_pcie_gen": "PCIe generation",
    "load_pcie_width": "PCIe width",
}


def _gone(check: str, device: str, said: str, metric: str) -> Finding:
    action = ACTIONS[REQUIRES_RESET] if REQUIRES_RESET in said else ACTIONS[LOST]
    return Finding(check, Verdict.FAIL, device, said, metric, action=action)


def _uncounted(check: str, by_gpu: Mapping[str, Mapping[str, Any]], node: Mapping[str, Any]) -> list[Finding]:
    """Report loads, GPUs and counters that dmon did not read, so that errors may be missing."""
    if any("lost" in values for values in (*by_gpu.values(), node)):
        return []  # reported separately; a lost GPU ends the sampler
    if "counters_lost" in node:
        message = f"nvidia-smi dmon ended under load: {node['counters_lost']}"
        return [unmeasured(check, message, action="investigate")]
    ran, seen = float(node.get("ran", 0.0)), node.get("counters_sampled")
    if seen is not None and ran >= _SHORT and float(seen) < _SAMPLED_SHARE * ran:
        message = f"nvidia-smi dmon counted errors for {seen:g} s of {ran:g} s and ended"
        return [unmeasured(check, message, action="investigate")]
    listed = {device: int(v["counter_samples"]) for device, v in by_gpu.items() if "counter_samples" in v}
    most = max(listed.values(), default=0)
    findings = []
    for device, values in by_gpu.items():
        if most and device != "node" and listed.get(device, 0) < most - 1:  # the last sample may be cut
            message = f"nvidia-smi dmon lists it in {listed.get(device, 0)} of {most} samples under load"
        elif "uncounted" in values:
            message = f"nvidia-smi dmon reads no {values['uncounted']} of it, and does of the other GPUs"
        else:
            continue
        findings.append(unmeasured(check, message, device=device, action="investigate"))
    return findings


def _replays(check: str, by_gpu: Mapping[str, Mapping[str, Any]], node: Mapping[str, Any]) -> list[Finding]:
    """Report PCIe replays and uncorrectable memory errors during the load, excluding earlier ones."""
    if "error_counters" in node:
        return [unmeasured(check, str(node["error_counters"]), action="investigate")]
    return _uncounted(check, by_gpu, node) + errors(check, by_gpu, node, "nvidia-smi dmon beside the load")


def errors(
    check: str, by_gpu: Mapping[str, Mapping[str, Any]], node: Mapping[str, Any], counted_by: str
) -> list[Finding]:
    """Judge the growth of replays and uncorrectable errors over the node's `counted` seconds."""
    findings: list[Finding] = []
    seconds = max(float(node.get("counted", 0.0)), 60.0)  # a short load is not extrapolated
    for device, values in by_gpu.items():
        if (count := int(values.get("load_replays", 0))) * 60 / seconds > REPLAYS_PER_MINUTE:
            text = f"its PCIe link repeated itself {count} times in {node['counted']:g} s of load"
            measured, limit = (
                Measurement("load_replays", count, "replays", device),
                f"≤ {REPLAYS_PER_MINUTE} a minute",
            )
            action = "reseat or check cable"
            findings.append(finding_on(check, Verdict.FAIL, measured, text, limit, REPLAYS_SOURCE, action))
        if (count := int(values.get("load_ecc_uncorrectable", 0))) > 0:
            text = f"{count} uncorrectable ECC error{'s' * (count != 1)} under load"
            measured = Measurement("load_ecc_uncorrectable", count, "errors", device)
            limit, action = "= 0 errors", "reset GPU"
            findings.append(finding_on(check, Verdict.FAIL, measured, text, limit, counted_by, action))
    return findings


def links(
    check: str, sampled: Mapping[str, Mapping[str, Any]], thresholds: Mapping[str, Threshold], seen_by: str
) -> list[Finding]:
    """Judge PCIe under load by `load_pcie_gen` and `load_pcie_width` and their maxima."""
    findings = []
    for metric, what, sign in (("load_pcie_gen", "generation ", ""), ("load_pcie_width", "", "x")):
        speeds = {d: (int(v[metric]), int(v[f"{metric}_max"])) for d, v in sampled.items() if metric in v}
        limit = thresholds.get("gpu_inventory.pcie_width") if metric == "load_pcie_width" else None
        slow = {d: (now, int(limit.limit) if limit else best) for d, (now, best) in speeds.items()
                if now < (limit.limit if limit else best)}  # fmt: skip
        same = len({now for now, _ in speeds.values()}) == 1
        if slow and limit is None and len(slow) == len(speeds) and same:
            # Wired or configured alike for all of them: no GPU is to blame. Narrow slots are a design choice.
            if metric == "load_pcie_gen" and len(speeds) > 1:
                now, best = next(iter(slow.values()))
                text = f"PCIe runs at generation {now} of {best} under load on all GPUs: see the firmware"
                findings.append(
                    Finding(check, Verdict.WARN, "node", text, metric, now, action="fix configuration")
                )
                continue
            if len(speeds) > 1:
                continue
        for device, (now, best) in slow.items():
            text = f"PCIe runs at {what}{sign}{now} of {sign}{best} under load"
            measured, action = Measurement(metric, now, "", device), "reseat or check cable"
            findings.append(finding_on(check, Verdict.FAIL, measured, text, f"≥ {best}", seen_by, action))
    return findings


def throttled(
    check: str, sampled: Mapping[str, Mapping[str, Any]], alarms: Mapping[str, str], soft: str
) -> list[Finding]:
    """Judge lasting throttling. `alarms`: name → words; `soft`: the alarm that alone is only a warning."""
    findings = []
    for device, values in sampled.items():
        lasting = {}
        for name, words in alarms.items():
            share = float(values.get(f"throttled.{name}", 0.0))
            if values.get(f"throttled.{name}.longest", 0) >= _LASTING or share >= _LASTING_SHARE:
                lasting[name] = (share, words)
        if {"hw_thermal_slowdown", "hw_power_brake_slowdown"} & lasting.keys():
            lasting.pop("hw_slowdown", None)  # the umbrella term of these
        if not lasting:
            continue
        reasons = ", ".join(f"{words} in {share:.0%} of the samples" for share, words in lasting.values())
        message = f"clocks are held down under load: {reasons}"
        if "hw_power_brake_slowdown" in lasting:
            message += " (requested by the power supply or BMC, not by the GPU)"
        if "load_temperature" in values:
            message += f"; {values['load_temperature']:g} °C"
        verdict = Verdict.WARN if list(lasting) == [soft] else Verdict.FAIL
        share = max(share for share, _ in lasting.values())
        findings.append(
            Finding(check, verdict, device, message, "throttled", share, "share", action="investigate")
        )
    return findings


def heat(check: str, sampled: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Warn about GPUs with a temperature under load far above that of their peers."""
    temps = {device: float(v["load_temperature"]) for device, v in sampled.items() if "load_temperature" in v}
    text = "runs at {degrees:g} °C under load, its peers at {middle:g} °C: see heat sink and fans"
    return hotter(check, "load_temperature", temps, text)
