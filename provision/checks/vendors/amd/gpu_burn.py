"""gpu_burn of AMD's GPUs: all multiply matrices for a while, with AMD's validation suite RVS.

RVS's module `gst` repeats one matrix product on every GPU at once, and with `self_check` compares the last
product of each batch with the one before: the same inputs must give the same bits. Like gpu-burn, it cannot
find a GPU that is wrong in the same way each time.

The verdict of RVS (`met: TRUE`) depends on the rate alone, and differing results do not change it; its exit
status is 0 either way, and in some builds inverted. So both are ignored, and its counts are judged here.

With blas_source hipblaslt, which AMD's configurations of newer GPUs choose, the comparison reads a size that
is never set (src/rvs_blas.cpp, check_result_consistency and blas_ldc_offset). So every GPU gets rocBLAS.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output, completed, last_words
from provision.checks.gpu.gpu_burn import DEFAULT_SECONDS, joined, judge_rates, passed, told
from provision.checks.gpu.gpu_burn import ID as ID
from provision.checks.judge import Finding, Verdict, by_threshold, finding_on, limit_text, unmeasured
from provision.checks.kernel import kernel_incidents
from provision.checks.kernel.kernel_log import bus_address
from provision.checks.thresholds import Threshold
from provision.checks.vendors.amd import devices, telemetry
from provision.errors import ParseError
from provision.text import many

SUMMARY = "every GPU multiplies matrices under full load: wrong results, slow, hot or throttled GPUs, PCIe"
NEEDS: tuple[str, ...] = ("rvs", "amd-smi")
FACTS: tuple[str, ...] = devices.FACTS

# For the ramp-up, the first batch beyond the time, and the teardown of 8 GPUs.
_OVERHEAD = 120.0
_GPUS, _CONFIG = "rvs_gpus", "rvs_config"
_CONFIG_FILE = "/run/gpuprov-gpu_burn.conf"
_ACTION = "gpuprov-burn"

# Products per batch, about 4 s of them: the comparison after each batch takes the CPU half a second, in which
# the GPU waits. Computed from 0.33 Tflop per product and the targets in AMD's configurations of these GPUs.
_BATCH = {"cdna2": 1500, "cdna3": 7000, "cdna4": 14000}
_USUAL_BATCH = 3000

# The matrix product of AMD's conf/MI300X/gst_single.conf, gst-581Tflops-4K4K8K-rand-bf16, with tiles that
# fill 304 compute units; a target of 0 leaves the judging to gpuprov.
_PRODUCT = """\
actions:
- name: {action}
  device: {device}
  module: gst
  parallel: true
  count: 1
  duration: {milliseconds}
  ramp_interval: 5000
  log_interval: {interval}
  hot_calls: {batch}
  copy_matrix: false
  target_stress: 0
  matrix_size_a: 4864
  matrix_size_b: 4096
  matrix_size_c: 8192
  matrix_init: rand
  data_type: bf16_r
  lda: 8320
  ldb: 8320
  ldc: 4992
  ldd: 4992
  transa: 1
  transb: 0
  alpha: 1
  beta: 0
  self_check: true
"""


def commands(node: CheckNode, options: Mapping[str, Any]) -> Sequence[Command]:
    if devices.partitioned(node):
        return []
    seconds = int(options.get("burn_seconds") or DEFAULT_SECONDS)
    program = str(node.variables.get("amd_validation_tools_rvs_path", f"{devices.tools(node)}/rvs"))
    batch = _BATCH.get(str(node.gpuprov_node["gpu"].get("architecture")), _USUAL_BATCH)
    # A long burn prints a line only for some batches, so that none of them is cut from the output.
    interval = max(1000, seconds)
    config = _config(seconds, interval, batch)
    write = 'umask 077 && printf "%s" "$1" > "$2"'
    deadline = seconds + _OVERHEAD
    return [
        Command(_GPUS, (program, "-g"), 60.0),
        telemetry.before(),
        Command(_CONFIG, ("/bin/sh", "-c", write, "write", config, _CONFIG_FILE), 10.0),
        Command(ID, (program, "-c", _CONFIG_FILE), deadline, load=seconds),
        telemetry.command(ID, seconds, deadline),
        telemetry.after(),
    ]


def _config(seconds: int, interval: int, batch: int, device: str = "all") -> str:
    milliseconds = 1000 * seconds
    return _PRODUCT.format(
        action=_ACTION, device=device, milliseconds=milliseconds, interval=interval, batch=batch
    )


def on_one(number: str, seconds: int) -> str:
    """Return the configuration with which RVS loads only the GPU of this number."""
    return _config(seconds, 1000, _USUAL_BATCH, number)


def parse(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Return RVS's results per GPU, the burn's duration, and amd-smi's samples. Raises ParseError.

    `state`: OK or FAULTY; `worked`; `errors`: comparisons that differed; `died`: why its worker ended; `rate`
    and `peak`; for the samples see telemetry.py."""
    if modes := devices.partitioned(node):
        return [Measurement("partition", modes, "")]
    beside = telemetry.measure(node, outputs)
    try:
        listed, version = numbers(completed(outputs, _GPUS), kernel_incidents.devices(node))
        output = completed(outputs, ID)
        burned = measure(output, listed)
    except ParseError as error:
        gone = [m.device for m in beside if m.metric == "lost"]
        lost = f" ({', '.join(sorted(gone))} no longer answers)" if gone else ""
        raise ParseError(f"{error.what}{lost}", error.fix) from error
    return [
        *burned,
        Measurement("rvs_version", version, ""),
        Measurement("asked", _asked(outputs), "s"),
        Measurement("ran", output.seconds, "s"),
        *beside,
    ]


def _asked(outputs: Mapping[str, Output]) -> float:
    """Return the duration given to RVS, in seconds."""
    words = " ".join(outputs[_CONFIG].argv) if _CONFIG in outputs else ""
    if (match := _DURATION.search(words)) is None:
        raise ParseError("the output of rvs_config is missing", "run the check again")
    return int(match[1]) / 1000


# --- The output of RVS

#     0000:05:00.0 - GPU[ 2 - 28851] AMD Instinct MI300X (Device 29857)
#     [RESULT] [1101987.830800] [gpuprov-burn] [GPU:: 28851] Start of GPU ramp up
#     [RESULT] [1101988.831928] [gpuprov-burn] [GPU:: 28851] End of GPU ramp up
#     [RESULT] [1101992.16545 ] [gpuprov-burn] [GPU:: 28851] GFLOPS 640057
#     [RESULT] [1101992.517400] [gpuprov-burn] [GPU:: 28851] self-check error 0.0000131072
#     [RESULT] [1102003.864648] [gpuprov-burn] [GPU:: 28851] GFLOPS 687129 Target GFLOPS: 0 met: TRUE
#     [ERROR ] [1102003.864648] [gpuprov-burn] gst 28851 blas error !!!

# The time is in seconds and, after the point, microseconds without leading zeros. The last GFLOPS are the
# best of all batches.


_DURATION = re.compile(r"duration: (\d{4,9})\n")
_LISTED = re.compile(
    r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) - GPU\[ ?\d{1,4} - +?(\d{1,10})\]"
)
_VERSION = re.compile(r"ROCm Validation Suite \(version ([\w.+-]{1,40})\)")
_LINE = re.compile(
    r"\[RESULT\] \[ {0,5}(\d{1,12})\.(\d{1,6}) {0,5}\] \[gpuprov-burn\] \[GPU:: {1,5}(\d{1,10})\] (.{1,160})"
)
_ENDED = re.compile(r"\[ERROR \] \[[\d. ]{3,20}\] \[gpuprov-burn\] gst (\d{1,10}) (.{1,120})")
_RATE = re.compile(r"GFLOPS (\d{1,12}(?:\.\d{1,9})?)( Target GFLOPS: \S{1,20} met: (?:TRUE|FALSE))?\s*")
_DIFFERS = re.compile(r"self-check error (\S{1,40})\s*")
_RAMPED = "End of GPU ramp up"
_FULL = 0.99  # of the default power limit
_COMPARES = (1, 1)  # RVS of ROCm 6.3; RVS of 6.2 compares as well, and reports version 0.0.60200
_FIRST_ROCM = 60200


@dataclass
class _Gpu:
    """One GPU over the whole burn."""

    rates: list[float] = field(default_factory=list)  # of each batch, Gflop/s
    differing: int = 0
    ramped: float | None = None
    ended: float | None = None
    peak: float | None = None
    died: str = ""

    @property
    def steady_rate(self) -> float | None:
        """Median of the second half, with settled clocks and heat; None (no comparison) below two batches."""
        late = self.rates[len(self.rates) // 2 :]
        return float(statistics.median(late)) if len(self.rates) > 1 else None


def numbers(output: Output, gpus: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return RVS's number of each GPU → device, and RVS's version. Raises ParseError."""
    listed = _LISTED.findall(output.stdout)
    version = _VERSION.search(output.stdout)
    if not listed or version is None:
        raise ParseError(f"rvs lists no GPU: {last_words(output)}", "look at the gpu_inventory check")
    by_number = {number: gpus.get(bus_address(at), f"gpu@{bus_address(at)}") for at, number in listed}
    if len(by_number) != len(listed) or len(set(by_number.values())) != len(listed):
        raise ParseError("rvs lists a GPU twice", "report the new format")
    return by_number, version[1]


def measure(output: Output, numbers: Mapping[str, str]) -> list[Measurement]:
    """Return each GPU's results, and the node's burned `seconds` and `gpus`. Raises ParseError."""
    if output.truncated:
        raise ParseError("rvs: the output was cut at its size limit", "run the check again")
    gpus = {number: _Gpu() for number in numbers}
    for line in output.stdout.splitlines():
        _replay(line, gpus)
    if not any(gpu.ended is not None or gpu.died for gpu in gpus.values()):
        raise ParseError(f"rvs printed no result: {last_words(output)}", "run the check again")
    if cut := [gpu for gpu in gpus.values() if gpu.rates and gpu.ended is None and not gpu.died]:
        raise ParseError(
            f"rvs tested {len(gpus)} GPUs and gives no result of {len(cut)}: {last_words(output)}",
            "run the check again",
        )
    times = [
        gpu.ended - gpu.ramped for gpu in gpus.values() if gpu.ended is not None and gpu.ramped is not None
    ]
    measurements = [Measurement("seconds", round(min(times, default=0.0), 1), "s")]
    measurements.append(Measurement("gpus", len(gpus), "GPUs"))
    for number, gpu in gpus.items():
        measurements += _measured(numbers[number], gpu)
    return measurements


def _replay(line: str, gpus: Mapping[str, _Gpu]) -> None:
    """Apply one line; lines of other programs and the tables of newer releases are ignored."""
    if (died := _ENDED.search(line)) is not None and died[1] in gpus:
        gpus[died[1]].died = died[2].strip()
        return
    match = _LINE.search(line)
    if match is None:
        return
    gpu = gpus.get(match[3])
    if gpu is None:
        raise ParseError(f"rvs tests a GPU that it did not list ({match[3]})", "run the check again")
    moment, words = int(match[1]) + int(match[2]) / 1e6, match[4].strip()
    if words == _RAMPED:
        gpu.ramped = moment
    elif (rate := _RATE.fullmatch(words)) is not None:
        if rate[2]:
            gpu.peak, gpu.ended = float(rate[1]), moment
        elif gpu.ramped is not None:
            gpu.rates.append(float(rate[1]))
    elif _DIFFERS.fullmatch(words):
        gpu.differing += 1
    elif "GFLOPS" in words or "check error" in words:
        raise ParseError(f"rvs: not understood: {words[:80]!r}", "report the new format")


def _measured(device: str, gpu: _Gpu) -> Iterator[Measurement]:
    ended = gpu.ended is not None and not gpu.died
    if ended or gpu.differing:
        yield Measurement("state", "FAULTY" if gpu.differing else "OK", "", device)
    yield Measurement("worked", bool(gpu.rates), "", device)
    yield Measurement("errors", gpu.differing, "errors", device)
    yield Measurement("died", gpu.died, "", device)
    if (rate := gpu.steady_rate) is not None:
        yield Measurement("rate", rate, "Gflop/s", device)
    if gpu.peak:
        yield Measurement("peak", gpu.peak, "Gflop/s", device)


# --- judging


def judge(
    node: CheckNode, measurements: Sequence[Measurement], thresholds: Mapping[str, Threshold]
) -> list[Finding]:
    by_gpu = told(measurements)
    values = by_gpu.pop("node", {})
    if "partition" in values:
        return devices.left_out(ID, values["partition"])
    findings = _judge_burn(node, by_gpu, values, thresholds)
    return joined(findings, telemetry.judge(ID, node, by_gpu, values, thresholds))


def _judge_burn(
    node: CheckNode,
    by_gpu: Mapping[str, Mapping[str, Any]],
    values: Mapping[str, Any],
    thresholds: Mapping[str, Threshold],
) -> list[Finding]:
    tested = {device: known for device, known in by_gpu.items() if "worked" in known}
    seconds, requested = float(values["seconds"]), float(values["asked"])
    findings = [
        finding
        for device, known in tested.items()
        if (finding := _judge_gpu(device, known, seconds)) is not None
    ]
    suspicious = {finding.device for finding in findings}
    healthy = {device: known for device, known in tested.items() if device not in suspicious}
    if seconds < requested and healthy:
        message = f"RVS burned for {seconds:g} s instead of {requested:g} s: its results mean nothing"
        findings.append(unmeasured(ID, message, action="investigate"))
    if int(values["gpus"]) != node.gpu_count:
        message = f"RVS tested {values['gpus']} GPUs, the node has {node.gpu_count}"
        findings.append(unmeasured(ID, message, action="investigate"))
    if not _compares(str(values["rvs_version"])):
        message = (
            f"RVS {values['rvs_version']} does not compare results: wrong ones go unseen; that of ROCm 6.2 "
            "and newer does"
        )
        findings.append(Finding(ID, Verdict.WARN, "node", message, "compared", action="fix configuration"))
    rates = {device: float(known["rate"]) for device, known in healthy.items() if "rate" in known}
    if len(rates) < len(healthy):
        message = (
            f"{seconds:g} s of burn are too short for a steady rate and for two results to compare: slow "
            "GPUs and wrong results go unseen; burn for a minute"
        )
        findings.append(Finding(ID, Verdict.WARN, "node", message, "rate", action="run again"))
    limit = thresholds.get(f"{ID}.peak")
    lowered = {device for device in healthy if _lowered(by_gpu[device])}
    findings += _judge_peaks({d: known for d, known in healthy.items() if d not in lowered}, limit)
    told = {finding.device for finding in findings}
    behind = judge_rates(rates, thresholds.get(f"{ID}.rate"))
    findings += [finding for finding in behind if finding.device not in told]
    if not findings and rates:
        findings.append(passed(rates, seconds))
    if lowered and limit is not None:
        watts = sorted({float(by_gpu[device]["power_limit"]) for device in lowered})
        message = (
            f"{many(len(lowered), 'GPU')} may draw {' or '.join(f'{one:g}' for one in watts)} W: AMD's limit "
            f"of {limit_text(limit)} is for full power"
        )
        findings.append(Finding(ID, Verdict.SKIP, "node", message, "peak"))
    return findings


def _lowered(known: Mapping[str, Any]) -> bool:
    """Return whether the power limit is below the default, so that AMD's limits do not apply.

    gpu_inventory judges the setting itself; the rate is still compared with the other GPUs' rates."""
    usual = known.get("power_default")
    return usual is not None and float(known.get("power_limit", usual)) < _FULL * float(usual)


def _judge_gpu(device: str, known: Mapping[str, Any], seconds: float) -> Finding | None:
    if errors := int(known["errors"]):
        message = (
            f"computed wrong results in {seconds:g} s of load: {errors} differed from the one before, of the "
            "same numbers"
        )
        measured = Measurement("errors", errors, "errors", device)
        by = "RVS compares results (gst, self_check)"
        return finding_on(ID, Verdict.FAIL, measured, message, "= 0 errors", by, "replace part")
    if known["died"]:
        message = (
            f"its RVS worker ended ({known['died']}): look for amdgpu lines in the kernel log, and for other "
            "programs on it"
        )
        return unmeasured(ID, message, device=device, action="investigate")
    if not known["worked"]:
        return unmeasured(ID, "did no work during the burn", device=device, action="investigate")
    return None


def _judge_peaks(healthy: Mapping[str, Mapping[str, Any]], threshold: Threshold | None) -> list[Finding]:
    """Judge the best batch of each GPU, to which AMD's own limits refer."""
    if threshold is None:
        return []
    findings = [
        by_threshold(
            ID,
            "best burn rate",
            Measurement("peak", known["peak"], "Gflop/s", device),
            threshold,
            action="investigate",
        )
        for device, known in healthy.items()
        if "peak" in known
    ]
    return [finding for finding in findings if finding.verdict is Verdict.FAIL]


def _compares(version: str) -> bool:
    """Return whether this RVS supports `self_check`."""
    numbers = [int(part) for part in re.findall(r"\d{1,9}", version)[:3]]
    if numbers[:2] == [0, 0] and len(numbers) == 3:
        return numbers[2] >= _FIRST_ROCM
    return tuple(numbers[:2]) >= _COMPARES
