"""Why `nvidia-smi` answered with words in place of its document, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from provision.checks.check import Measurement, Output, completed, last_words
from provision.checks.gpu.nvml_error import error_text
from provision.checks.host.kernel_log import bus_address
from provision.errors import ParseError

# nvidia-smi's exit statuses, and its words where they tell more: what to do about it.
RC_INFOROM = 14  # the infoROM is corrupted; what was printed is still valid
_ADVICE = (
    ("version mismatch", "user space and the loaded module differ: reboot the node"),
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
    """Why nvidia-smi's answer is not one; None when it is."""
    try:
        completed({output.name: output}, output.name)
    except ParseError as error:
        return error
    if output.rc in (0, RC_INFOROM):
        return None
    words = last_words(output)
    said = f"{output.stdout}\n{output.stderr}"
    fix = next((advice for sign, advice in _ADVICE if sign in said), "look at the kernel log for NVRM lines")
    return ParseError(f"nvidia-smi failed with status {output.rc}: {words}", fix)


def unreachable(output: Output, gpus: Mapping[str, str]) -> list[Measurement]:
    """The GPUs for which nvidia-smi printed one line in place of its answer. `gpus`: PCI address → device."""
    found = []
    for text, words in _NO_HANDLE.findall(f"{output.stdout}\n{output.stderr}"):
        address, error = bus_address(text), error_text(words)
        if error is not None:
            device = gpus.get(address, f"gpu@{address}")
            found.append(Measurement("no_handle", error, "", device))
            found.append(Measurement("no_handle_address", address, "", device))
    return found
