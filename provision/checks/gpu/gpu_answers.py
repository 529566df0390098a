"""Test of whether every GPU still responds after a load, to identify a GPU lost in any check.

CUDA's error for a GPU that is lost under load names no GPU (`Test CUDA failure common.cu:1024 'unspecified
launch failure'`), and the test ends without a result. nvidia-smi, run right after it, still prints the index,
PCI address and serial number:

3, 00000000:61:00.0, 1652322403647, [GPU is lost]

The error replaces the reading (nvidia-smi 550.163.01); the other three are stored by the driver. Every GPU
has a temperature with every driver. A GPU that fell off the bus may also be missing from the list of the
others. So a refused or truncated answer proves no GPU healthy, whatever the test before it measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from provision.checks.check import Command, Measurement, Output, completed, last_words
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.checks.kernel.kernel_log import bus_address
from provision.errors import ParseError

NAME = "gpu_answers"  # of the command
METRIC = "lost"  # telemetry_rules' name for it, so that one lost GPU is one finding
# Programs that load GPUs, by the names that checks use in NEEDS.
_LOADS = re.compile(r"nvbandwidth|TransferBench|gpu_burn|\w+_perf|dcgmi|ib_write_bw|python3 with torch")
_INDEX = re.compile(r"\d{1,4}")
_LEFT_OUT = "left out"  # stands in for the error that nvidia-smi prints for a GPU
_READING = re.compile(r"\d{1,3}")
_SERIAL = re.compile(r"[0-9A-Za-z]{1,40}")


def loads(needs: Sequence[str]) -> bool:
    """Return whether a check with these NEEDS loads GPUs."""
    return any(_LOADS.fullmatch(program) for program in needs)


def command() -> Command:
    """Return the command to run last in every check that loads GPUs."""
    fields = "--query-gpu=index,pci.bus_id,serial,temperature.gpu"
    return Command(NAME, ("nvidia-smi", fields, "--format=csv,noheader"), 60.0)


def judge(
    check: str, output: Output | None, gpus: Mapping[str, str], known: Sequence[Finding]
) -> list[Finding]:
    """Add a failure, with serial and PCI address, per unresponsive GPU; `gpus`: PCI address → device.

    Without an output (nothing was queried) the findings do not change."""
    if output is None or output.not_started:
        return list(known)
    if output.timed_out:
        what = "nvidia-smi did not answer after the test: the driver may be stuck; look at the kernel log"
        return [*known, unmeasured(check, what, action="investigate")]
    findings = list(known)
    for device, (error, identity) in _silent(output, gpus).items():
        matches = [at for at, one in enumerate(findings) if (one.metric, one.device) == (METRIC, device)]
        for at in matches:
            findings[at] = replace(findings[at], message=f"{findings[at].message} ({identity})")
        if not matches:
            problem = f"does not answer after the test: nvidia-smi {_words(error)} ({identity})"
            action = ACTIONS.get(error, ACTIONS[LOST])
            findings.append(Finding(check, Verdict.FAIL, device, problem, METRIC, action=action))
    return findings + _unproven(check, output, gpus, findings)


def _words(error: str) -> str:
    return f"prints {error!r} for it" if error != _LEFT_OUT else "lists the other GPUs, and not this one"


def _unproven(
    check: str, output: Output, gpus: Mapping[str, str], findings: Sequence[Finding]
) -> list[Finding]:
    """Return errors if the answer is a refusal or incomplete, unless a lost GPU is already reported."""
    if any(one.metric == METRIC for one in findings):
        return []
    rows = _rows(output)[: None if output.stdout.endswith("\n") else -1]  # the last one may be cut
    unread = [
        gpus.get(bus_address(cells[1]), "node") for cells in rows if _READING.fullmatch(cells[3]) is None
    ]
    if (why := refusal(output)) is not None:
        text = f"after the test, {why.what}"
    elif rows and unread and len(unread) < len(rows):
        text = "after the test, nvidia-smi reads no temperature of it, and does of the other GPUs"
        return [
            unmeasured(check, text, device=device, action="investigate") for device in sorted(set(unread))
        ]
    elif gpus and len(rows) < len(gpus):
        text = f"after the test, nvidia-smi describes {len(rows)} of {len(gpus)} GPUs: {last_words(output)}"
    else:
        return []
    return [unmeasured(check, text, action="investigate")]


def _rows(output: Output) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in output.stdout.splitlines()[:1024]]
    return [cells for cells in rows if len(cells) == 4]


def _silent(output: Output, gpus: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return device → (NVML error, serial number and address) of each GPU that does not respond."""
    silent, rows = {}, _rows(output)
    for cells in rows:
        error = error_text(cells[-1])
        if error is None or error == NOT_PERMITTED:
            continue
        index, address, serial = cells[0], bus_address(cells[1]), cells[2]
        if _INDEX.fullmatch(index) is None and address not in gpus:
            continue
        device = f"gpu{index}" if _INDEX.fullmatch(index) else gpus[address]
        who = serial if _SERIAL.fullmatch(serial) and error_text(serial) is None else "unknown"
        silent[device] = error, f"serial {who}, PCI {address}"
    values = {(m.device, m.metric): str(m.value) for m in unreachable(output, gpus)}
    for (device, metric), value in values.items():
        if metric == "no_handle" and value != NOT_PERMITTED:
            silent[device] = value, f"PCI {values[device, 'no_handle_address']}"
    left_out = gpus.keys() - {bus_address(cells[1]) for cells in rows}
    # If most of them are missing, the answer is not understood and blames no GPU.
    if 2 * len(left_out) < len(gpus) and output.rc == 0 and output.stdout.endswith("\n"):
        for address in left_out:
            silent.setdefault(gpus[address], (_LEFT_OUT, f"PCI {address}"))
    return silent


# --- error texts that nvidia-smi prints in place of a reading when the GPU does not respond to the driver.
#
# `GPU is lost` and `[GPU is lost]` were observed with nvidia-smi 550.163.01, in `-q -x` and in `--query-gpu`.
# `Unknown Error`, `GPU requires reset` and `Insufficient Permissions` are NVML's own error strings
# (nvmlErrorString) and replace readings in the same way; the plain table prints `ERR!` for any of them. `N/A`
# and `Not Supported` are no errors: the GPU has no such reading.


LOST = "GPU is lost"
REQUIRES_RESET = "GPU requires reset"
UNKNOWN = "Unknown Error"
NOT_PERMITTED = "Insufficient Permissions"
UNSPECIFIED = "ERR!"

# The worst first: a GPU with several of them is described by the first.
NO_HANDLE = "Unable to determine the device handle for "  # followed by the GPU; one line instead of an answer
WORST_FIRST = (LOST, REQUIRES_RESET, UNKNOWN, UNSPECIFIED, NOT_PERMITTED)
_AS_PRINTED = {error.casefold(): error for error in WORST_FIRST}
# Remedies. Without permission the GPU was not measured, which is no fault of the part.
ACTIONS = {
    LOST: "power-cycle",
    REQUIRES_RESET: "reset GPU",
    UNKNOWN: "power-cycle",
    UNSPECIFIED: "power-cycle",
    NOT_PERMITTED: "fix configuration",
}


def error_text(cell: str) -> str | None:
    """Return the NVML error in a cell, spelt as in WORST_FIRST and without brackets, or None."""
    text = cell.strip().removeprefix("[").removesuffix("]").strip().casefold()
    return _AS_PRINTED.get(text)


def worst(errors: set[str]) -> str:
    """Return the error that describes a GPU best among its cells' `errors`, which must not be empty."""
    return min(errors, key=WORST_FIRST.index)


# --- reasons why nvidia-smi prints a message in place of its document, and remedies


# nvidia-smi's exit statuses, and its messages if they are more specific, with their remedies.
RC_INFOROM = 14  # the infoROM is corrupted; the output is still valid
_ADVICE = (
    (
        "version mismatch",
        "user space and the loaded module differ: reboot if `modinfo -F version nvidia` prints the library's "
        "version, else gpuprov up",
    ),
    (
        "couldn't communicate with the NVIDIA driver",
        "the driver module is not loaded: gpuprov up, then reboot",
    ),
    ("GPU is lost", "power-cycle the node, and if it comes back replace the GPU"),
    ("No devices were found", "the driver took none of the GPUs: look for NVRM lines in the kernel log"),
)

# One line in place of everything, with or without an index: `Unable to determine the device handle for GPU3:
# 0000:61:00.0: GPU is lost.  Reboot the system to recover this GPU`, or `Unknown Error` (public reports).
_NO_HANDLE = re.compile(
    r"Unable to determine the device handle for gpu ?\d{0,4}:? ?"
    r"([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): ([A-Za-z !]{1,40})",
    re.IGNORECASE,
)


def refusal(output: Output) -> ParseError | None:
    """Return why nvidia-smi gave no valid answer, or None if it did."""
    try:
        completed({output.name: output}, output.name)
    except ParseError as error:
        return error
    if output.rc in (0, RC_INFOROM):
        return None
    words = last_words(output)
    text = f"{output.stdout}\n{output.stderr}"
    fix = next((advice for sign, advice in _ADVICE if sign in text), "look at the kernel log for NVRM lines")
    return ParseError(f"nvidia-smi failed with status {output.rc}: {words}", fix)


def unreachable(output: Output, gpus: Mapping[str, str]) -> list[Measurement]:
    """Return GPUs with one line in place of nvidia-smi's answer; `gpus`: PCI address → device."""
    measurements = []
    for text, words in _NO_HANDLE.findall(f"{output.stdout}\n{output.stderr}"):
        address, error = bus_address(text), error_text(words)
        if error is not None:
            device = gpus.get(address, f"gpu@{address}")
            measurements.append(Measurement("no_handle", error, "", device))
            measurements.append(Measurement("no_handle_address", address, "", device))
    return measurements
