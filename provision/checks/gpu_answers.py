"""Whether every GPU still answers once a load has ended: the GPU that a test lost is named by any test.

CUDA's words for a GPU that is lost under load name no GPU (`Test CUDA failure common.cu:1024 'unspecified
launch failure'`), and the test ends without a result. nvidia-smi, run right after it, still knows the index,
serial number and PCI address:

3, 00000000:61:00.0, 1652322403647, [GPU is lost]

The error in place of a reading: nvidia-smi 550.163.01. The driver keeps the other three itself. Every GPU has
a temperature, with every driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from provision.checks.check import Command, Output
from provision.checks.kernel_log import bus_address
from provision.checks.nvidia_smi_refusal import unreachable
from provision.checks.nvml_error import ACTIONS, NOT_PERMITTED, error_text
from provision.judge import Finding, Verdict, unmeasured

NAME = "gpu_answers"  # of the command
METRIC = "lost"  # as telemetry_rules calls it, so that one GPU is one finding
# Programs that load GPUs, as checks name them in NEEDS.
_LOADS = re.compile(r"nvbandwidth|gpu_burn|\w+_perf|dcgmi|ib_write_bw|python3 with torch")
_INDEX = re.compile(r"\d{1,4}")
_SERIAL = re.compile(r"[0-9A-Za-z]{1,40}")


def loads(needs: Sequence[str]) -> bool:
    """Whether a check with these NEEDS loads GPUs."""
    return any(_LOADS.fullmatch(program) for program in needs)


def command() -> Command:
    """The last command of a check that loads GPUs."""
    fields = "--query-gpu=index,pci.bus_id,serial,temperature.gpu"
    return Command(NAME, ("nvidia-smi", fields, "--format=csv,noheader"), 60.0)


def judge(
    check: str, output: Output | None, gpus: Mapping[str, str], known: Sequence[Finding]
) -> list[Finding]:
    """The findings of a check, completed: each GPU that no longer answers is a failure with its serial number
    and PCI address. `gpus`: PCI address → device. No output (nobody asked) changes nothing."""
    if output is None or output.not_started:
        return list(known)
    if output.timed_out:
        what = "nvidia-smi did not answer after the test: the driver may be stuck; look at the kernel log"
        return [*known, unmeasured(check, what, action="investigate")]
    findings = list(known)
    for device, (error, identity) in _silent(output, gpus).items():
        named = [at for at, one in enumerate(findings) if (one.metric, one.device) == (METRIC, device)]
        for at in named:
            findings[at] = replace(findings[at], message=f"{findings[at].message} ({identity})")
        if not named:
            said = f"does not answer after the test: nvidia-smi prints {error!r} for it ({identity})"
            findings.append(Finding(check, Verdict.FAIL, device, said, METRIC, action=ACTIONS[error]))
    return findings


def _silent(output: Output, gpus: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """device → (NVML error, serial number and address) of each GPU that does not answer."""
    found = {}
    for line in output.stdout.splitlines()[:1024]:
        cells = [cell.strip() for cell in line.split(",")]
        error = error_text(cells[-1])
        if len(cells) != 4 or error is None or error == NOT_PERMITTED:
            continue
        index, address, serial = cells[0], bus_address(cells[1]), cells[2]
        if _INDEX.fullmatch(index) is None and address not in gpus:
            continue
        device = f"gpu{index}" if _INDEX.fullmatch(index) else gpus[address]
        who = serial if _SERIAL.fullmatch(serial) and error_text(serial) is None else "unknown"
        found[device] = error, f"serial {who}, PCI {address}"
    values = {(m.device, m.metric): str(m.value) for m in unreachable(output, gpus)}
    for (device, metric), value in values.items():
        if metric == "no_handle" and value != NOT_PERMITTED:
            found[device] = value, f"PCI {values[device, 'no_handle_address']}"
    return found
