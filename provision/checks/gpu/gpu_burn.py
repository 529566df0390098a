"""Matrix multiplication on all GPUs, to find wrong results, dead workers and slow GPUs.

gpu_burn exits with 0 despite a FAULTY GPU, and burns for 0 seconds and prints OK on an unknown option. Its
output is trusted only if it has the duration of the burn, progress of every GPU and a result of every GPU.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.checks.check import BUS_ORDER, CheckNode, Command, Measurement, Output, completed, last_words
from provision.checks.gpu import telemetry, telemetry_rules
from provision.checks.judge import PEERS, Finding, Verdict, below_peers, by_threshold, finding_on, unmeasured
from provision.checks.kernel import kernel_incidents
from provision.checks.thresholds import Threshold
from provision.errors import ParseError

SUMMARY = "every GPU multiplies matrices under full load: wrong results, slow, hot or throttled GPUs, PCIe"
FINDS = (
    "GPUs that compute wrong results or slower than their peers; under load: PCIe width and generation, "
    "throttling, heat, growing error counters, a GPU lost during the run"
)
NEEDS: tuple[str, ...] = ("gpu_burn", "nvidia-smi")
FACTS: tuple[str, ...] = ("driver.loaded_version",)

ID = "gpu_burn"

DEFAULT_SECONDS = 60
# Allocation, the first results and the teardown of 8 GPUs take 30 to 60 s beyond the burn.
_OVERHEAD = 90.0

# Healthy GPUs of one node under one power limit stay within a few percent of each other. A synchronous job
# runs at the speed of its slowest GPU: the 0.5 % of machines that were 10 % slow cost MegaScale real
# throughput, so 10 % is worth a warning. A fifth is beyond variation: a part is broken, or a limit is set.
PEER_WARN = 0.10
PEER_FAIL = 0.20


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:
    seconds = int(options.get("burn_seconds") or DEFAULT_SECONDS)
    program = str(node.variables.get("validation_tools_gpu_burn_path", "/usr/bin/gpu_burn"))
    # The compare kernel is looked up in the working directory. TIME must come last, or it is read as 0.
    folder = str(node.variables.get("validation_tools_gpu_burn_dir", "/usr/share/gpu-burn"))
    deadline = seconds + _OVERHEAD
    return [
        Command(
            ID,
            (program, "-tc", str(seconds)),
            deadline,
            cwd=folder,
            env=BUS_ORDER,
            load=seconds,
        ),
        telemetry.command(ID, seconds, deadline, node.facts.get("driver.loaded_version")),
        telemetry.counters_command(ID, seconds, deadline),
    ]


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Parse gpu_burn's text into `state` OK or FAULTY, `rate`, `errors`, `temperature` per GPU.

    Also returns the actual duration of the burn and nvidia-smi's samples during it (telemetry.py).
    """
    samples = telemetry.measure(outputs.get(telemetry.NAME), kernel_incidents.devices(node))
    samples += telemetry.measure_counters(outputs.get(telemetry.COUNTERS))
    try:
        output = completed(outputs, ID)
        return [*measure(output), Measurement("ran", output.seconds, "s"), *samples]
    except ParseError as error:
        if cause := failure(outputs[ID]) if ID in outputs else "":
            raise ParseError(
                f"gpu_burn cannot use the GPUs: {cause}", "look at the gpu_inventory check and the kernel log"
            ) from error
        gone = [m.device for m in samples if m.metric in ("lost", "silent")]
        lost = f" ({', '.join(sorted(gone))} stopped answering meanwhile)" if gone else ""
        raise ParseError(f"{error.what}{lost}", error.fix) from error


def judge(
    node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    by_gpu = told(measurements)
    node_values = by_gpu.pop("node", {})
    findings = _judge_burn(node, by_gpu, node_values, thresholds)
    return joined(findings, telemetry_rules.judge(ID, by_gpu, node_values, thresholds))


def told(measurements: Sequence[Measurement]) -> dict[str, dict[str, Any]]:
    """Group measurements: device → metric → value."""
    by_device: dict[str, dict[str, Any]] = {}
    for one in measurements:
        by_device.setdefault(one.device, {})[one.metric] = one.value
    return by_device


def joined(findings: list[Finding], beside: list[Finding]) -> list[Finding]:
    """Join the findings of the burn and of the samples, omitting the burn's pass if there are others."""
    return findings + beside if any(f.verdict is not Verdict.PASS for f in findings) else beside or findings


def _judge_burn(
    node: CheckNode,
    measured: Mapping[str, Mapping[str, Any]],
    node_values: Mapping[str, Any],
    thresholds: Mapping[str, Threshold],
) -> list[Finding]:
    by_gpu = {device: values for device, values in measured.items() if "state" in values}
    seconds, requested = float(node_values["seconds"]), float(node_values["asked"])
    findings = [
        finding
        for device, values in by_gpu.items()
        if (finding := _judge_gpu(device, values, seconds)) is not None
    ]
    if seconds < requested:
        message = f"gpu_burn burned for {seconds:g} s instead of {requested:g} s: its OK means nothing"
        findings.append(unmeasured(ID, message, action="investigate"))
    if int(node_values["gpus"]) != node.gpu_count:
        message = f"gpu_burn tested {node_values['gpus']} GPUs, the node has {node.gpu_count}"
        findings.append(unmeasured(ID, message, action="investigate"))
    suspicious = {finding.device for finding in findings}
    rates = {d: float(v["rate"]) for d, v in by_gpu.items() if d not in suspicious and "rate" in v}
    if len(rates) < len(by_gpu.keys() - suspicious):
        message = (
            f"{seconds:g} s of burn are too short for a steady rate: slow GPUs go unseen; burn for a minute"
        )
        findings.append(Finding(ID, Verdict.WARN, "node", message, "rate", action="run again"))
    findings += judge_rates(rates, thresholds.get(f"{ID}.rate"))
    return findings or [passed(rates, seconds)]


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
        measured, by = Measurement("errors", errors, "errors", device), "gpu_burn compares every result"
        evidence = (f"GPU {device[3:]}: {values['state']}",)
        return finding_on(ID, Verdict.FAIL, measured, message, "= 0 errors", by, "replace part", evidence)
    if not values["worked"]:
        return unmeasured(ID, "did no work during the burn", device=device, action="investigate")
    return None


def judge_rates(rates: Mapping[str, float], threshold: Threshold | None) -> list[Finding]:
    """Judge each GPU's rate in Gflop/s by the limit, if there is one, and by its peers."""
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
            verdict = Verdict.FAIL if shortfall > PEER_FAIL else Verdict.WARN
            message = f"runs at {rate:g} Gflop/s, {shortfall:.0%} below the {middle:g} of its peers"
            limit = f"≥ {(1 - PEER_WARN) * middle:.0f} Gflop/s"
            findings.append(finding_on(ID, verdict, measured, message, limit, PEERS, "investigate"))
    return findings


def passed(rates: Mapping[str, float], seconds: float) -> Finding:
    """Build the finding for GPUs that were all correct and fast enough."""
    middle = statistics.median(rates.values())
    message = f"{len(rates)} GPUs computed correctly for {seconds:g} s at {middle:g} Gflop/s (median)"
    return Finding(ID, Verdict.PASS, "node", message, "rate", middle, "Gflop/s")


# --- gpu_burn's output: duration of the burn, progress and result of every GPU


_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,9})?)%\s+proc'd: ")
_DONE = re.compile(r"(-?\d{1,18}) \((\d{1,18}) Gflop/s\)")
_UNIT = re.compile(r"\d \(\d{1,18}(?:\.\d{1,9})? ([^\s()]{1,20})\)")
_ERRORS = re.compile(r"errors: ([^:]*)\stemps:")
_ONE_ERROR = re.compile(r"(-?\d{1,18})\s*(\(DIED!\))?")  # `0 - 6  (WARNING!)- -1  (DIED!)- 0`
_TEMPS = re.compile(r"temps: ((?:(?:\d{1,5} C|--)(?: - )?)+)")
_VERDICT = re.compile(r"^[ \t]*GPU (\d{1,4}): (OK|FAULTY)[ \t]*$", re.MULTILINE)
_FAILURE = re.compile(r"Error \(gpu_burn-drv\.cpp:\d{1,6}\): (.{1,160})")
_TESTED = re.compile(r"^Tested (\d{1,4}) GPUs?:\s*$", re.MULTILINE)
_BURNING = re.compile(r"Burning for (\d{1,9}) seconds")


@dataclass
class _Gpu:
    """One GPU over the whole burn; errors are summed by segment, since "Summary at" resets counters."""

    done: int = 0
    rates: list[tuple[float, int]] = field(
        default_factory=list
    )  # (percent of the burn, Gflop/s) at each report
    errors: int = 0
    segment_errors: int = 0
    died: bool = False
    hottest: int | None = None

    def end_segment(self) -> None:
        self.errors += self.segment_errors
        self.segment_errors = 0

    def steady_rate(self) -> float | None:
        """Return the median rate of the burn's second half, once clocks and heat have settled.

        None if the burn was too short. A GPU's first report is never steady: it includes allocation and
        warm-up, and shows a third of the true rate.
        """
        warm = self.rates[1:]
        late = [rate for percent, rate in warm if percent >= 50] or [rate for _, rate in warm]
        return float(statistics.median(late)) if late else None


def failure(output: Output) -> str:
    """Return CUDA's reason why gpu_burn could not use the GPUs; empty if it printed none.

    Debian's 20240115 never ends without a usable GPU: it starts workers for ever, and each aborts with
    `what():  Error (gpu_burn-drv.cpp:302): no CUDA-capable device is detected` on standard error.
    """
    match = _FAILURE.search(output.stderr)
    return match[1].strip() if match else ""


def measure(output: Output) -> list[Measurement]:
    """Parse gpu_burn's output; raise ParseError if it is incomplete.

    Per GPU: `state` OK or FAULTY, `worked`, `errors`, `died`, `rate` in Gflop/s, `temperature` in C. For the
    node: `seconds` burned, `asked` seconds, and `gpus`.
    """
    text = output.stdout.replace("\r", "\n")
    if "No clients are alive" in text or "No clients are alive" in output.stderr:
        raise ParseError("gpu_burn: every worker died before the end", "look for Xids in the kernel log")
    tested = list(_TESTED.finditer(text))
    if len(tested) != 1:
        raise ParseError(f"gpu_burn printed no result: {last_words(output)}", "run the check again")
    verdicts = _verdicts(text[tested[0].end() :], int(tested[0][1]))
    gpus, percent = _progress(text[: tested[0].start()], len(verdicts))
    burned = _BURNING.search(text)
    seconds = float(burned[1]) if burned else output.seconds
    if percent < 100:
        raise ParseError(f"gpu_burn stopped at {percent:g} % of its time", "run the check again")
    measurements = [
        Measurement("seconds", seconds, "s"),
        Measurement("asked", int(output.argv[-1]), "s"),
        Measurement("gpus", len(verdicts), "GPUs"),
    ]
    for index, (gpu, state) in enumerate(zip(gpus, verdicts, strict=True)):
        measurements += _measured(f"gpu{index}", gpu, state)
    return measurements


def _verdicts(text: str, count: int) -> list[str]:
    verdicts = _VERDICT.findall(text)
    if [int(index) for index, _ in verdicts] != list(range(count)):
        raise ParseError(
            f"gpu_burn tested {count} GPUs and reports the result of {len(verdicts)}", "run the check again"
        )
    return [state for _, state in verdicts]


def _measured(device: str, gpu: _Gpu, state: str) -> list[Measurement]:
    measurements = [
        Measurement("state", state, "", device),
        Measurement("worked", bool(gpu.rates), "", device),
        Measurement("errors", gpu.errors, "errors", device),
        Measurement("died", gpu.died, "", device),
    ]
    rate = gpu.steady_rate()
    if rate is not None:
        measurements.append(Measurement("rate", rate, "Gflop/s", device))
    if gpu.hottest is not None:
        measurements.append(Measurement("temperature", gpu.hottest, "C", device))
    return measurements


def _progress(text: str, count: int) -> tuple[list[_Gpu], float]:
    """Replay the progress lines into the state of each GPU and the progress of the burn in percent."""
    gpus = [_Gpu() for _ in range(count)]
    percent = 0.0
    for line in text.split("\n"):
        if "Summary at:" in line:
            for gpu in gpus:
                gpu.end_segment()
            continue
        start = _PERCENT.search(line)
        if start is None:
            continue
        percent = max(percent, float(start[1]))
        _replay(line[start.end() :], gpus, percent)
    for gpu in gpus:
        gpu.end_segment()
    return gpus, percent


def _replay(line: str, gpus: Sequence[_Gpu], percent: float) -> None:
    """Replay one progress line."""
    if foreign := set(_UNIT.findall(line.split("errors:")[0])) - {"Gflop/s"}:
        raise ParseError(
            f"gpu_burn shows its rate in {min(foreign)}, not in Gflop/s", "report the new format"
        )
    rates, errors = _DONE.findall(line.split("errors:")[0]), _ERRORS.search(line)
    counts = _ONE_ERROR.findall(errors[1]) if errors else []
    if len(rates) != len(gpus) or len(counts) != len(gpus):
        # Several processes write here, so a line may be broken by another process: the counters are
        # cumulative, and the results at the end do not depend on any single line. A line with more GPUs than
        # results is an error.
        if len(rates) > len(gpus):
            raise ParseError(
                f"gpu_burn shows progress of {len(rates)} GPUs and results of {len(gpus)}", "investigate"
            )
        return
    temps = _TEMPS.search(line)
    heat = temps[1].rstrip(" -").split(" - ") if temps else []
    for index, gpu in enumerate(gpus):
        done, rate, (bad, died) = int(rates[index][0]), int(rates[index][1]), counts[index]
        gpu.died = gpu.died or bool(died) or done < 0
        # The count next to (DIED!) is uninitialised memory (gpu-burn #52, #69: 1641686072).
        if not died and done >= 0:
            gpu.segment_errors = max(gpu.segment_errors, int(bad))
        if rate > 0 and done > gpu.done:
            gpu.rates.append((percent, rate))
        gpu.done = max(gpu.done, done)
        if index < len(heat) and heat[index].endswith(" C"):
            gpu.hottest = max(gpu.hottest or 0, int(heat[index][:-2]))
