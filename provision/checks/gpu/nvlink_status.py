"""What `nvidia-smi nvlink -s` prints → measurements: the NVLinks of each GPU that are up, and their speed.

Below a GPU's line stand its links, or a sentence in place of one or of all:

`NVML: Unable to retrieve NVLink information for link 3 - inActive` (in the program of 550.163.01)
`NVML: Unable to retrieve NVLink information as all links are inActive` (drivers 535 to 610)
`Device does not have or support Nvlink` (L40S, RTX A4000, an A100 passed through alone; driver 595)
`Nvlink queries are not supported for Devices in MIG mode` (H100, H200; driver 590)

An NVML error (nvml_error.py) may stand in place of a speed, of a sentence, or of a GPU's links altogether.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from provision.checks.check import Measurement, Output
from provision.checks.gpu.nvml_error import NO_HANDLE, error_text, worst
from provision.errors import ParseError

_GPU_LINE = re.compile(r"^GPU (\d{1,4}): ")
_LINK_LINE = re.compile(r"^\s+Link (\d{1,4}): (?:(\d{1,6}(?:\.\d{1,9})?) GB/s|<?in[aA]ctive>?)$")
_LINK_SENTENCE = re.compile(r"retrieve NVLink information for link (\d{1,4}) - inactive", re.IGNORECASE)
_LINK_ERROR = re.compile(r"^\s+Link (\d{1,4}): (.{1,40})$")
_ERROR_SENTENCE = re.compile(
    r"NVML: Unable to retrieve NVLink information.{1,60}?(?: -|:) ([A-Za-z !\[\]]{1,40})"
)
# Names its GPU by address (nvidia_smi_refusal.py), and stands in place of that GPU's line too.
_NO_LINKS = re.compile(r"all\s+links are inactive|does not have or support nvlink", re.IGNORECASE)
_MIG = re.compile(r"nvlink queries are not supported for devices in mig mode", re.IGNORECASE)


def in_place_of_links(line: str) -> bool:
    """Whether a line is one of the sentences that stand in place of a GPU's links, here and below `-e`."""
    return bool(_NO_LINKS.search(line) or _MIG.search(line))


def nvml_error_of(line: str) -> str | None:
    """The NVML error that stands in place of a GPU's links or counters, alone or in a sentence."""
    match = _ERROR_SENTENCE.search(line)
    return error_text(match[1] if match else line)


def parse(output: Output, unanswered: Collection[str] = ()) -> list[Measurement]:
    """Active links and the speed of the slowest, for each GPU of `nvidia-smi nvlink -s`; `nvlink_mig` for one
    whose links cannot be queried because it is partitioned, `nvlink_unread` (an NVML error) for one that does
    not answer. `unanswered`: GPUs known not to answer, whose links may be left out. No output: no NVLink.
    """
    unread = dict(_errors(output))
    measured = [Measurement("nvlink_unread", error, "", f"gpu{gpu}") for gpu, error in unread.items()]
    for gpu, links in sorted(_links(output, unanswered).items()):
        if gpu in unread:
            continue  # how many of its links are up is not known
        if links is None:
            measured.append(Measurement("nvlink_mig", True, "", f"gpu{gpu}"))
            continue
        active = [speed for speed in links.values() if speed is not None]
        measured.append(Measurement("nvlink_links", len(active), "links", f"gpu{gpu}"))
        if active:
            measured.append(Measurement("nvlink_speed", min(active), "GB/s", f"gpu{gpu}"))
    return measured


def _errors(output: Output) -> list[tuple[int, str]]:
    """(GPU, the worst NVML error that stands in place of one of its links)."""
    found: dict[int, set[str]] = {}
    gpu = -1
    for line in output.stdout.splitlines():
        if match := _GPU_LINE.match(line):
            gpu = int(match[1])
            continue
        match = _LINK_ERROR.match(line)
        error = error_text(match[2]) if match else nvml_error_of(line)
        if gpu >= 0 and error is not None:
            found.setdefault(gpu, set()).add(error)
    return [(gpu, worst(errors)) for gpu, errors in sorted(found.items())]


def _without_speed(line: str) -> int | None:
    """The link of which a line says that it is down, or gives an NVML error in place of its speed."""
    if (match := _LINK_ERROR.match(line)) and error_text(match[2]) is not None:
        return int(match[1])
    match = _LINK_SENTENCE.search(line)
    return int(match[1]) if match else None


def inactive(output: Output, unanswered: Collection[str] = ()) -> dict[int, set[int]]:
    """GPU → its links that are down. Raises ParseError."""
    return {
        gpu: {link for link, speed in links.items() if speed is None}
        for gpu, links in _links(output, unanswered).items()
        if links is not None
    }


def _links(output: Output, unanswered: Collection[str]) -> dict[int, dict[int, float | None] | None]:
    """GPU → link → its speed in GB/s, None when it is down; None for a GPU in MIG mode. Without the GPUs that
    do not answer and whose links are left out.
    """
    found: dict[int, dict[int, float | None]] = {}
    without: set[int] = set()  # GPUs with one sentence in place of their links
    partitioned: set[int] = set()
    silenced: set[int] = set()  # GPUs with an NVML error in place of their links
    gpu = -1
    for line in output.stdout.splitlines():
        if match := _GPU_LINE.match(line):
            gpu = int(match[1])
            if gpu in found:
                raise ParseError(f"nvidia-smi nvlink -s lists GPU {gpu} twice", "run the check again")
            found[gpu] = {}
        elif match := _LINK_LINE.match(line):
            link = int(match[1])
            if gpu < 0 or link in found[gpu]:
                raise ParseError(f"nvidia-smi nvlink -s: link {link} of no GPU", "run the check again")
            found[gpu][link] = float(match[2]) if match[2] else None
        elif gpu >= 0 and (number := _without_speed(line)) is not None and number not in found[gpu]:
            found[gpu][number] = None
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
    # A link that is down is still listed: what only one GPU lacks was lost on the way.
    every = {link for links in found.values() for link in links}
    for lost in [one for one, links in found.items() if f"gpu{one}" in unanswered and set(links) != every]:
        if lost not in without | partitioned:
            del found[lost]
    for lost in silenced & found.keys():
        del found[lost]
    silent = without | partitioned
    if contradicted := [gpu for gpu in silent if found[gpu]]:
        raise ParseError(
            f"nvidia-smi nvlink -s lists links of GPU {contradicted[0]} and reports that it has none",
            "run the check again",
        )
    if cut := [gpu for gpu, links in found.items() if set(links) != every and gpu not in silent]:
        raise ParseError(
            f"nvidia-smi nvlink -s lists fewer links of GPU {cut[0]} than of others", "run the check again"
        )
    return {gpu: None if gpu in partitioned else links for gpu, links in found.items()}
