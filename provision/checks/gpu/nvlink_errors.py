"""Parser of NVLink error counters (`nvidia-smi nvlink -e`) and links (`-s`), and their rule.

Link 0: Replay Errors: 0            up to NVLink 4: Replay, Recovery and CRC
Link 0: Link recovery failed events: 0    NVLink 5: these and a dozen more
Link 0: FEC Errors - 0: 36140749276       bucket 0 counts blocks without a correction: no error
Link 0: Effective BER: 15e-255
Links 0-5: CRC Errors: 0            some drivers join links with equal values
Link 0: 0 replay errors             driver 470: the count first, and CRC errors of flits and of data
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from provision.checks.check import Measurement, Output
from provision.checks.gpu import gpu_answers
from provision.checks.gpu.gpu_answers import NO_HANDLE, error_text, worst
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.errors import ParseError
from provision.text import many

# A link that lost its synchronisation and trained again, or failed to. Once it trained again it works, and
# NVIDIA's DCGM treats that as a warning.
_RECOVERED = frozenset({"Link recovery successful events"})
_RECOVERIES = frozenset({"Recovery Errors", "Link recovery failed events", *_RECOVERED})
_ERRORS = frozenset(
    {
        "Replay Errors", "CRC Errors", "Malformed packet Errors", "Buffer overrun Errors", "Rx Errors",
        "Rx remote Errors", "Rx General Errors", "Local link integrity Errors", "Tx discards",
        "Effective Errors", "Symbol Errors",
    }
)  # fmt: skip
# Driver 470's names for them.
_OLD_NAMES = {
    "replay errors": "Replay Errors",
    "recovery errors": "Recovery Errors",
    "flit CRC errors": "CRC Errors",
    "data CRC errors": "CRC Errors",
}
# NVIDIA considers 100 CRC errors a second critical. So many since the driver was loaded equal at least one
# bad second; links that train after a reboot count fewer.
_MANY = 100
_SOURCE = "NVIDIA DCGM, dcgm_gpu_hardware_limits.h: CRC errors matter from 100 a second (derived: one second)"

_COUNTER_ERROR = re.compile(r"^\s+Links? \d{1,3}(?:-\d{1,3})?: .{1,60}?: (.{1,40})$")
_COUNTER = re.compile(r"^\s+Links? (\d{1,3})(?:-(\d{1,3}))?: (.+): ([0-9a-fA-Fxe.+-]{1,30}|N/A|\[N/A\])\s*$")
_OLD_COUNTER = re.compile(
    r"^(\s+Link \d{1,3}): (\d{1,20}) ((?:replay|recovery|flit CRC|data CRC) errors)\s*$"
)
# Errors that driver 470 corrected, by lane below a line of the link: no error.
_CORRECTED = re.compile(
    r"^\s+(?:Link \d{1,3}:|Lane \d{1,3} ECC Correction Count: \d{1,20} \(Overflow=\d\))\s*$"
)


def _modern(line: str) -> str:
    """Convert a counter's line to the form of drivers newer than 470; corrected errors become ""."""
    if _CORRECTED.match(line):
        return ""
    match = _OLD_COUNTER.match(line)
    return f"{match[1]}: {_OLD_NAMES[match[3]]}: {match[2]}" if match else line


def parse(
    output: Output,
    inactive: Mapping[int, Collection[int]] | None = None,
    linked: bool = False,
    unanswered: Collection[str] = (),
) -> list[Measurement]:
    """Parse the counters of each GPU's links; raise ParseError.

    `nvlink_errors`: errors of the worst link, `nvlink_worst`. `nvlink_recoveries`: of all links;
    `nvlink_recovered`: the successful ones; `nvlink_unsteady`: the link with most. No output means no NVLink,
    unless the GPUs are known to be `linked`. `inactive`: GPU → links that are down and have no counters.
    `unanswered`: GPUs known not to respond.
    """
    errors: dict[int, dict[int, int]] = {}
    recoveries: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    recovered: dict[int, int] = defaultdict(int)
    unread: dict[int, set[str]] = {}  # GPU → the NVML errors in place of counters
    listed: dict[int, set[tuple[int, str]]] = {}  # GPU → its counters as (link, name)
    gpu = -1
    for line in map(_modern, output.stdout.splitlines()):
        if match := _GPU_LINE.match(line):
            gpu = int(match[1])
            errors.setdefault(gpu, {})
            listed.setdefault(gpu, set())
        elif match := _COUNTER.match(line):
            if gpu < 0:
                raise ParseError("nvidia-smi nvlink -e: a link of no GPU", "run the check again")
            name, text = match[3], match[4]
            links = range(int(match[1]), int(match[2] or match[1]) + 1)
            if "N/A" in text:
                continue  # a counter that only this GPU lacks is reported below
            listed[gpu] |= {(link, name) for link in links}
            if name not in _RECOVERIES | _ERRORS:
                continue
            if not text.isdecimal() or len(text) > 20:
                raise ParseError(f"nvidia-smi nvlink -e: {name} is {text!r}", "report the new format")
            for link in links:
                if name in _RECOVERIES:
                    recoveries[gpu][link] += int(text)
                    recovered[gpu] += int(text) if name in _RECOVERED else 0
                else:
                    # One bad packet counts in several counters: the largest is the number of packets.
                    errors[gpu][link] = max(errors[gpu].get(link, 0), int(text))
        elif (
            gpu >= 0 and (match := _COUNTER_ERROR.match(line)) and (error := gpu_answers.error_text(match[1]))
        ) or (gpu >= 0 and (error := nvml_error_of(line)) is not None):
            unread.setdefault(gpu, set()).add(error)
        elif gpu >= 0 and NO_HANDLE in line:
            continue
        elif line.strip() and not in_place_of_links(line) and "inactive" not in line.lower():
            raise ParseError(
                f"nvidia-smi nvlink -e: not understood: {line.strip()[:120]!r}", "report the new format"
            )
    if linked and not listed:
        raise ParseError(
            "nvidia-smi nvlink -e lists no GPU, nvidia-smi nvlink -s lists active links",
            "run the check again",
        )
    # A counter that a single GPU lacks although the link is up was lost on the way.
    every = set().union(*listed.values())
    down = inactive or {}
    if cut := [
        index
        for index, counters in listed.items()
        if counters
        and index not in unread
        and f"gpu{index}" not in unanswered
        and any(link not in down.get(index, ()) for link, _name in every - counters)
    ]:
        raise ParseError(
            f"nvidia-smi nvlink -e lists fewer counters of GPU {cut[0]} than of others", "run the check again"
        )
    results = [
        Measurement("nvlink_unread", gpu_answers.worst(texts), "", f"gpu{gpu}")
        for gpu, texts in unread.items()
    ]
    for index, counted in sorted(errors.items()):
        if counted:
            worst, again = _most(counted), recoveries[index]
            results.append(Measurement("nvlink_errors", counted[worst], "errors", f"gpu{index}"))
            results.append(Measurement("nvlink_recoveries", sum(again.values()), "events", f"gpu{index}"))
            results.append(Measurement("nvlink_worst", f"link {worst}", "", f"gpu{index}"))
            if any(again.values()):
                results.append(Measurement("nvlink_recovered", recovered[index], "events", f"gpu{index}"))
                results.append(Measurement("nvlink_unsteady", f"link {_most(again)}", "", f"gpu{index}"))
    return results


def _most(counts: Mapping[int, int]) -> int:
    """Return the link with the highest count, the first of several."""
    return max(counts, key=lambda link: (counts[link], -link))


def judge(check: str, values: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Judge links with errors; a few errors are normal from training after a reboot."""
    counted = values.get("nvlink_errors", {})
    findings = [
        unmeasured(check, "nvidia-smi nvlink -e does not mention this GPU", device=d, action="investigate")
        for d in (values.get("name", {}).keys() - counted.keys() if counted else ())
        if d not in values.get("nvlink_unread", {}).keys() | values.get("unanswered", {}).keys()
        and values.get("nvlink_links", {}).get(d)  # a GPU without links is not listed
    ]
    for device, error in values.get("nvlink_unread", {}).items():
        text = f"nvidia-smi nvlink gives {error!r} in place of its links or their counters"
        verdict = Verdict.ERROR if error == gpu_answers.NOT_PERMITTED else Verdict.FAIL
        findings.append(
            Finding(check, verdict, device, text, "nvlink_unread", error, action=gpu_answers.ACTIONS[error])
        )
    return findings + [
        one
        for device, count in counted.items()
        if (one := _erring(check, device, int(count), values)) is not None
    ]


def _erring(check: str, device: str, count: int, values: Mapping[str, Mapping[str, Any]]) -> Finding | None:
    """Return the finding of a GPU with `count` errors on its worst link, or with link recoveries."""
    again = int(values.get("nvlink_recoveries", {}).get(device, 0))
    recovered = int(values.get("nvlink_recovered", {}).get(device, 0))
    parts = []
    if count >= _MANY:
        parts.append(f"{count} errors (most: {values.get('nvlink_worst', {}).get(device, '')})")
    if again:
        kind = "successful link recover" if again == recovered else "link recover"
        most = values.get("nvlink_unsteady", {}).get(device, "")
        parts.append(f"{many(again, kind + 'y', kind + 'ies')} (most: {most})")
    if not parts:
        return None
    works = count < _MANY and again == recovered < _MANY
    return Finding(
        check, Verdict.WARN if works else Verdict.FAIL, device,
        f"its NVLinks counted {', '.join(parts)}", "nvlink_errors", count, "errors", f"< {_MANY} errors",
        _SOURCE, "watch" if works else "reset GPU",
    )  # fmt: skip


# --- output of `nvidia-smi nvlink -s`: the active NVLinks of each GPU, and their speed. Below a GPU's line
# are its links, or a sentence in place of one or all of them:
#
# `NVML: Unable to retrieve NVLink information for link 3 - inActive` (in the program of 550.163.01)
# `NVML: Unable to retrieve NVLink information as all links are inActive` (drivers 535 to 610)
# `Device does not have or support Nvlink` (L40S, RTX A4000, an A100 passed through alone; driver 595)
# `Nvlink queries are not supported for Devices in MIG mode` (H100, H200; driver 590)
#
# An NVML error (gpu_answers.py) may replace a speed, a sentence, or all links of a GPU.


_GPU_LINE = re.compile(r"^GPU (\d{1,4}): ")
_LINK_LINE = re.compile(r"^\s+Link (\d{1,4}): (?:(\d{1,6}(?:\.\d{1,9})?) GB/s|<?in[aA]ctive>?)$")
_LINK_SENTENCE = re.compile(r"retrieve NVLink information for link (\d{1,4}) - inactive", re.IGNORECASE)
_LINK_ERROR = re.compile(r"^\s+Link (\d{1,4}): (.{1,40})$")
_ERROR_SENTENCE = re.compile(
    r"NVML: Unable to retrieve NVLink information.{1,60}?(?: -|:) ([A-Za-z !\[\]]{1,40})"
)
# Names its GPU by address (gpu_answers.py), and also replaces that GPU's line.
_NO_LINKS = re.compile(r"all\s+links are inactive|does not have or support nvlink", re.IGNORECASE)
_MIG = re.compile(r"nvlink queries are not supported for devices in mig mode", re.IGNORECASE)


def in_place_of_links(line: str) -> bool:
    """Return whether a line is a sentence in place of a GPU's links, with `-s` or `-e`."""
    return bool(_NO_LINKS.search(line) or _MIG.search(line))


def nvml_error_of(line: str) -> str | None:
    """Return the NVML error in place of a GPU's links or counters, alone or within a sentence."""
    match = _ERROR_SENTENCE.search(line)
    return error_text(match[1] if match else line)


def parse_links(output: Output, unanswered: Collection[str] = ()) -> list[Measurement]:
    """Parse `nvidia-smi nvlink -s` into active links and the slowest speed of each GPU.

    `nvlink_mig`: a partitioned GPU without link information. `nvlink_unread`: NVML error of a GPU that does
    not respond. `unanswered`: GPUs known not to respond, possibly without links. No output: no NVLink.
    """
    unread = dict(_errors(output))
    measured = [Measurement("nvlink_unread", error, "", f"gpu{gpu}") for gpu, error in unread.items()]
    for gpu, links in sorted(_links(output, unanswered).items()):
        if gpu in unread:
            continue  # the number of its active links is unknown
        if links is None:
            measured.append(Measurement("nvlink_mig", True, "", f"gpu{gpu}"))
            continue
        active = [speed for speed in links.values() if speed is not None]
        measured.append(Measurement("nvlink_links", len(active), "links", f"gpu{gpu}"))
        if active:
            measured.append(Measurement("nvlink_speed", min(active), "GB/s", f"gpu{gpu}"))
    return measured


def _errors(output: Output) -> list[tuple[int, str]]:
    """Return (GPU, the worst NVML error in place of one of its links)."""
    by_gpu: dict[int, set[str]] = {}
    gpu = -1
    for line in output.stdout.splitlines():
        if match := _GPU_LINE.match(line):
            gpu = int(match[1])
            continue
        match = _LINK_ERROR.match(line)
        error = error_text(match[2]) if match else nvml_error_of(line)
        if gpu >= 0 and error is not None:
            by_gpu.setdefault(gpu, set()).add(error)
    return [(gpu, worst(errors)) for gpu, errors in sorted(by_gpu.items())]


def _without_speed(line: str) -> int | None:
    """Return the link that a line reports as down, or with an NVML error in place of its speed."""
    if (match := _LINK_ERROR.match(line)) and error_text(match[2]) is not None:
        return int(match[1])
    match = _LINK_SENTENCE.search(line)
    return int(match[1]) if match else None


def inactive(output: Output, unanswered: Collection[str] = ()) -> dict[int, set[int]]:
    """Return the links that are down by GPU; raise ParseError."""
    return {
        gpu: {link for link, speed in links.items() if speed is None}
        for gpu, links in _links(output, unanswered).items()
        if links is not None
    }


def _links(output: Output, unanswered: Collection[str]) -> dict[int, dict[int, float | None] | None]:
    """Return GPU → link → GB/s (None: down), None if in MIG mode, without GPUs that do not respond."""
    gpus: dict[int, dict[int, float | None]] = {}
    without: set[int] = set()  # GPUs with one sentence in place of their links
    partitioned: set[int] = set()
    silenced: set[int] = set()  # GPUs with an NVML error in place of their links
    gpu = -1
    for line in output.stdout.splitlines():
        if match := _GPU_LINE.match(line):
            gpu = int(match[1])
            if gpu in gpus:
                raise ParseError(f"nvidia-smi nvlink -s lists GPU {gpu} twice", "run the check again")
            gpus[gpu] = {}
        elif match := _LINK_LINE.match(line):
            link = int(match[1])
            if gpu < 0 or link in gpus[gpu]:
                raise ParseError(f"nvidia-smi nvlink -s: link {link} of no GPU", "run the check again")
            gpus[gpu][link] = float(match[2]) if match[2] else None
        elif gpu >= 0 and (number := _without_speed(line)) is not None and number not in gpus[gpu]:
            gpus[gpu][number] = None
        elif _NO_LINKS.search(line) and gpu >= 0:
            without.add(gpu)
        elif _MIG.search(line) and gpu >= 0:
            partitioned.add(gpu)
        elif gpu >= 0 and nvml_error_of(line) is not None:
            silenced.add(gpu)
        elif line.strip() and (gpu < 0 or NO_HANDLE not in line):
            raise ParseError(
                f"nvidia-smi nvlink -s: not understood: {line.strip()[:120]!r}", "report the new format"
            )
    # Inactive links are still listed: a link that a single GPU lacks was lost on the way.
    every = {link for links in gpus.values() for link in links}
    for lost in [one for one, links in gpus.items() if f"gpu{one}" in unanswered and set(links) != every]:
        if lost not in without | partitioned:
            del gpus[lost]
    for lost in silenced & gpus.keys():
        del gpus[lost]
    silent = without | partitioned
    if contradicted := [gpu for gpu in silent if gpus[gpu]]:
        raise ParseError(
            f"nvidia-smi nvlink -s lists links of GPU {contradicted[0]} and reports that it has none",
            "run the check again",
        )
    if cut := [gpu for gpu, links in gpus.items() if set(links) != every and gpu not in silent]:
        raise ParseError(
            f"nvidia-smi nvlink -s lists fewer links of GPU {cut[0]} than of others", "run the check again"
        )
    return {gpu: None if gpu in partitioned else links for gpu, links in gpus.items()}
