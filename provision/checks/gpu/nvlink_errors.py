"""The error counters of NVLinks: what `nvidia-smi nvlink -e` prints → measurements, and their rule.

Link 0: Replay Errors: 0            up to NVLink 4: Replay, Recovery and CRC
Link 0: Link recovery failed events: 0    NVLink 5: these and a dozen more
Link 0: FEC Errors - 0: 36140749276       bucket 0 counts what needed no correction: no error
Link 0: Effective BER: 15e-255
Links 0-5: CRC Errors: 0            some drivers join links that say the same
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from provision.checks.check import Measurement, Output
from provision.checks.gpu import nvml_error
from provision.checks.gpu.nvlink_status import in_place_of_links, nvml_error_of
from provision.checks.gpu.nvml_error import NO_HANDLE
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.errors import ParseError

# A link that lost its synchronisation and trained again, or failed to.
_RECOVERIES = frozenset({"Recovery Errors", "Link recovery failed events", "Link recovery successful events"})
_ERRORS = frozenset(
    {
        "Replay Errors", "CRC Errors", "Malformed packet Errors", "Buffer overrun Errors", "Rx Errors",
        "Rx General Errors", "Local link integrity Errors", "Effective Errors", "Symbol Errors",
    }
)  # fmt: skip
# The driver's makers call 100 CRC errors a second the rate that matters. So many in the whole time since the
# driver was loaded cannot be called less than one bad second; fewer come while links train after a reboot.
_MANY = 100
_SOURCE = "NVIDIA DCGM, dcgm_gpu_hardware_limits.h: CRC errors matter from 100 a second (derived: one second)"

_GPU = re.compile(r"^GPU (\d{1,4}): ")
_COUNTER_ERROR = re.compile(r"^\s+Links? \d{1,3}(?:-\d{1,3})?: .{1,60}?: (.{1,40})$")
_COUNTER = re.compile(r"^\s+Links? (\d{1,3})(?:-(\d{1,3}))?: (.+): ([0-9a-fA-Fxe.+-]{1,30}|N/A|\[N/A\])\s*$")


def parse(
    output: Output,
    inactive: Mapping[int, Collection[int]] | None = None,
    linked: bool = False,
    unanswered: Collection[str] = (),
) -> list[Measurement]:
    """Per GPU: `nvlink_errors` of its worst link, `nvlink_recoveries` of all, and `nvlink_worst`, which link
    it is. No output: no NVLink, unless the GPUs are known to be `linked`. `inactive`: GPU → the links that
    are down, which have no counters. `unanswered`: GPUs known not to answer. Raises ParseError.
    """
    errors: dict[int, dict[int, int]] = {}
    recoveries: dict[int, int] = defaultdict(int)
    unread: dict[int, set[str]] = {}  # GPU → the NVML errors in place of counters
    told: dict[int, set[tuple[int, str]]] = {}  # GPU → the counters of it, as (link, name)
    gpu = -1
    for line in output.stdout.splitlines():
        if match := _GPU.match(line):
            gpu = int(match[1])
            errors.setdefault(gpu, {})
            told.setdefault(gpu, set())
        elif match := _COUNTER.match(line):
            if gpu < 0:
                raise ParseError("nvidia-smi nvlink -e: a link of no GPU", "run the check again")
            name, text = match[3], match[4]
            links = range(int(match[1]), int(match[2] or match[1]) + 1)
            if "N/A" in text:
                continue  # a counter that other GPUs have is missed below
            told[gpu] |= {(link, name) for link in links}
            if name not in _RECOVERIES | _ERRORS:
                continue
            if not text.isdigit():
                raise ParseError(f"nvidia-smi nvlink -e: {name} is {text!r}", "report the new format")
            for link in links:
                if name in _RECOVERIES:
                    recoveries[gpu] += int(text)
                else:
                    # One bad packet shows in several counters: the largest is the number of them.
                    errors[gpu][link] = max(errors[gpu].get(link, 0), int(text))
        elif (
            gpu >= 0 and (match := _COUNTER_ERROR.match(line)) and (error := nvml_error.error_text(match[1]))
        ) or (gpu >= 0 and (error := nvml_error_of(line)) is not None):
            unread.setdefault(gpu, set()).add(error)
        elif gpu >= 0 and NO_HANDLE in line:
            continue
        elif line.strip() and not in_place_of_links(line) and "inactive" not in line.lower():
            raise ParseError(
                f"nvidia-smi nvlink -e: not understood: {line.strip()[:120]!r}", "report the new format"
            )
    if linked and not told:
        raise ParseError(
            "nvidia-smi nvlink -e lists no GPU, nvidia-smi nvlink -s lists active links",
            "run the check again",
        )
    # A counter that only one of the GPUs with links lacks, although the link is up, was lost on the way.
    every = set().union(*told.values())
    down = inactive or {}
    if cut := [
        index
        for index, counters in told.items()
        if counters
        and index not in unread
        and f"gpu{index}" not in unanswered
        and any(link not in down.get(index, ()) for link, _name in every - counters)
    ]:
        raise ParseError(
            f"nvidia-smi nvlink -e lists fewer counters of GPU {cut[0]} than of others", "run the check again"
        )
    found = [
        Measurement("nvlink_unread", nvml_error.worst(texts), "", f"gpu{gpu}")
        for gpu, texts in unread.items()
    ]
    for index, counted in sorted(errors.items()):
        if counted:
            worst = max(counted, key=lambda link: (counted[link], -link))
            found.append(Measurement("nvlink_errors", counted[worst], "errors", f"gpu{index}"))
            found.append(Measurement("nvlink_recoveries", recoveries[index], "events", f"gpu{index}"))
            found.append(Measurement("nvlink_worst", f"link {worst}", "", f"gpu{index}"))
    return found


def judge(check: str, values: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Links that count errors; a few of them are from training after a reboot."""
    counted = values.get("nvlink_errors", {})
    findings = [
        unmeasured(check, "nvidia-smi nvlink -e does not mention this GPU", device=d, action="investigate")
        for d in (values.get("name", {}).keys() - counted.keys() if counted else ())
        if d not in values.get("nvlink_unread", {}).keys() | values.get("unanswered", {}).keys()
        and values.get("nvlink_links", {}).get(d)  # a GPU without links has none to tell of
    ]
    for device, error in values.get("nvlink_unread", {}).items():
        said = f"nvidia-smi nvlink gives {error!r} in place of its links or their counters"
        verdict = Verdict.ERROR if error == nvml_error.NOT_PERMITTED else Verdict.FAIL
        findings.append(
            Finding(check, verdict, device, said, "nvlink_unread", error, action=nvml_error.ACTIONS[error])
        )
    for device, count in counted.items():
        again = int(values.get("nvlink_recoveries", {}).get(device, 0))
        if int(count) < _MANY and not again:
            continue
        where = values.get("nvlink_worst", {}).get(device, "")
        said = f"its NVLinks counted {count} errors (most: {where})" + (
            f", {again} recoveries" if again else ""
        )
        findings.append(
            Finding(
                check, Verdict.FAIL, device, said, "nvlink_errors", count, "errors", f"< {_MANY} errors",
                _SOURCE, "reset GPU",
            )
        )  # fmt: skip
    return findings
