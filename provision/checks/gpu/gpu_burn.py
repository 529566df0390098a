"""All GPUs multiply matrices for a while: wrong results, dead workers, and a GPU slower than its peers.

gpu_burn's exit status is 0 with a FAULTY GPU, and an option it does not know makes it burn for 0 seconds and
print OK. Its text is believed only when it says how long it burned, that every GPU worked, and how every GPU
ended.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output, completed
from provision.checks.gpu import burn_output, error_counters, telemetry, telemetry_rules
from provision.checks.host import kernel_incidents
from provision.checks.judge import Finding, Verdict, below_peers, by_threshold, unmeasured
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

SUMMARY = "every GPU multiplies matrices under full load: wrong results, slow, hot or throttled GPUs, PCIe"
NEEDS: tuple[str, ...] = ("gpu_burn", "nvidia-smi")
FACTS: tuple[str, ...] = ("driver.loaded_version",)

ID = "gpu_burn"

DEFAULT_SECONDS = 60
# Allocation, the first results and the teardown of 8 GPUs take 30 to 60 s beyond the burn.
_OVERHEAD = 90.0

# Healthy GPUs of one node under one power limit stay within a few percent of each other. A synchronous job
# runs at the speed of its slowest GPU: the 0.5 % of machines that were 10 % slow cost MegaScale real
# throughput, so 10 % deserves a look. A fifth is no longer variation: a part is broken, or a limit is set.
PEER_WARN = 0.10
PEER_FAIL = 0.20


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:
    seconds = int(options.get("burn_seconds") or DEFAULT_SECONDS)
    program = str(node.variables.get("validation_tools_gpu_burn_path", "/usr/bin/gpu_burn"))
    # The compare kernel is looked up in the working directory. TIME comes last, or it is taken for 0.
    folder = str(node.variables.get("validation_tools_gpu_burn_dir", "/usr/share/gpu-burn"))
    deadline = seconds + _OVERHEAD
    return [
        Command(
            ID,
            (program, "-tc", str(seconds)),
            deadline,
            cwd=folder,
            # CUDA numbers GPUs by speed unless told otherwise; gpu3 must be nvidia-smi's GPU 3 in every
            # check.
            env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            load=seconds,
        ),
        telemetry.command(ID, seconds, deadline, node.facts.get("driver.loaded_version")),
        error_counters.command(ID, seconds, deadline),
    ]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """gpu_burn's text → per GPU: `state` OK or FAULTY, `rate`, `errors`, `temperature`; what was really
    burned; and what nvidia-smi saw meanwhile (telemetry.py, error_counters.py).
    """
    beside = telemetry.measure(outputs.get(telemetry.NAME), kernel_incidents.devices(node))
    beside += error_counters.measure(outputs.get(error_counters.NAME))
    try:
        output = completed(outputs, ID)
        return [*burn_output.measure(output), Measurement("ran", output.seconds, "s"), *beside]
    except ParseError as error:
        if cause := burn_output.failure(outputs[ID]) if ID in outputs else "":
            raise ParseError(
                f"gpu_burn cannot use the GPUs: {cause}", "look at the gpu_inventory check and the kernel log"
            ) from error
        gone = [m.device for m in beside if m.metric in ("lost", "silent")]
        lost = f" ({', '.join(sorted(gone))} stopped answering meanwhile)" if gone else ""
        raise ParseError(f"{error.what}{lost}", error.fix) from error


def judge(
    node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    node_values = {m.metric: m.value for m in measurements if m.device == "node"}
    by_gpu: dict[str, dict[str, Any]] = {}
    for m in measurements:
        if m.device != "node":
            by_gpu.setdefault(m.device, {})[m.metric] = m.value
    findings = _judge_burn(node, by_gpu, node_values, thresholds)
    beside = telemetry_rules.judge(ID, by_gpu, node_values, thresholds)
    return findings + beside if any(f.verdict is not Verdict.PASS for f in findings) else beside or findings


def _judge_burn(
    node: CheckNode,
    measured: Mapping[str, Mapping[str, Any]],
    node_values: Mapping[str, Any],
    thresholds: Mapping[str, Threshold],
) -> list[Finding]:
    by_gpu = {device: values for device, values in measured.items() if "state" in values}
    seconds, asked = float(node_values["seconds"]), float(node_values["asked"])
    findings = [
        finding
        for device, values in by_gpu.items()
        if (finding := _judge_gpu(device, values, seconds)) is not None
    ]
    if seconds < asked:
        said = f"gpu_burn burned for {seconds:g} s instead of {asked:g} s: its OK means nothing"
        findings.append(unmeasured(ID, said, action="investigate"))
    if int(node_values["gpus"]) != node.gpu_count:
        said = f"gpu_burn tested {node_values['gpus']} GPUs, the node has {node.gpu_count}"
        findings.append(unmeasured(ID, said, action="investigate"))
    suspicious = {finding.device for finding in findings}
    rates = {d: float(v["rate"]) for d, v in by_gpu.items() if d not in suspicious and "rate" in v}
    if len(rates) < len(by_gpu.keys() - suspicious):
        said = (
            f"{seconds:g} s of burn are too short for a steady rate: slow GPUs go unseen; burn for a minute"
        )
        findings.append(Finding(ID, Verdict.WARN, "node", said, "rate", action="run again"))
    findings += _judge_rates(rates, thresholds.get(f"{ID}.rate"))
    return findings or [_passed(rates, seconds)]


def _judge_gpu(device: str, values: Mapping[str, Any], seconds: float) -> Finding | None:
    errors = int(values["errors"])
    if values["died"] and errors <= 0:
        return unmeasured(
            ID,
            "its gpu_burn worker died: look for Xids and for other programs on it",
            device=device,
            action="investigate",
            evidence=(f"{device}: (DIED!)",),
        )
    if values["state"] == "FAULTY" or errors > 0:
        counted = f"{values['state']}, {errors} errors counted"
        message = f"computed wrong results in {seconds:g} s of gpu_burn ({counted})"
        return Finding(
            ID,
            Verdict.FAIL,
            device,
            message,
            "errors",
            errors,
            "errors",
            "= 0 errors",
            "gpu_burn compares every result",
            "replace part",
            (f"GPU {device[3:]}: {values['state']}",),
        )
    if not values["worked"]:
        return unmeasured(ID, "did no work during the burn", device=device, action="investigate")
    return None


def _judge_rates(rates: Mapping[str, float], threshold: Threshold | None) -> list[Finding]:
    findings = []
    behind = below_peers(rates, PEER_WARN)
    for device, rate in rates.items():
        measured = Measurement("rate", rate, "Gflop/s", device)
        if threshold is not None:
            finding = by_threshold(ID, "burn rate", measured, threshold, action="investigate")
            if finding.verdict is Verdict.FAIL:
                findings.append(finding)
                continue
        if device in behind:
            middle, shortfall = behind[device]
            findings.append(
                Finding(
                    ID,
                    Verdict.FAIL if shortfall > PEER_FAIL else Verdict.WARN,
                    device,
                    f"runs at {rate:g} Gflop/s, {shortfall:.0%} below the {middle:g} of its peers",
                    "rate",
                    rate,
                    "Gflop/s",
                    f"≥ {(1 - PEER_WARN) * middle:.0f} Gflop/s",
                    "median of the other GPUs of the node",
                    "investigate",
                )
            )
    return findings


def _passed(rates: Mapping[str, float], seconds: float) -> Finding:
    middle = statistics.median(rates.values())
    message = f"{len(rates)} GPUs computed correctly for {seconds:g} s at {middle:g} Gflop/s (median)"
    return Finding(ID, Verdict.PASS, "node", message, "rate", middle, "Gflop/s")
