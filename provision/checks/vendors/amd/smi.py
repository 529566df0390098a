"""JSON output of amd-smi → one entry per GPU, for the releases of ROCm 6 and 7.

ROCm until 6.3 prints a list; from 6.4 on the list is below `gpu_data` (`static`, `metric`), `link_status`
(`xgmi -l`) or nothing (`process`). Before 6.4 was released, `xgmi -l` printed two lists, the first of them
without states. A value is {"value": 39, "unit": "C"}, a bare number, or "N/A". Warnings may precede the
document. Errors go to stderr:

ERROR: Unable to get devices, driver not initialized (amdgpu not found in modules)
ERROR: Driver not loaded (amdgpu not found in modules)
ERROR:root:Unable to detect any GPU devices, check amdgpu version and module status (sudo modprobe amdgpu)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from provision import foreign_json
from provision.checks.check import Output, completed, last_words
from provision.errors import ParseError

Entry = Mapping[str, Any]

_LISTS = ("gpu_data", "link_status")
_ADVICE = (
    (
        "not found in modules",
        "it found no driver, though amdgpu is loaded: is it the amd-smi of a ROCm that fits?",
    ),
    ("Unable to detect any GPU", "the driver took none of the GPUs: look for amdgpu lines in the kernel log"),
)
_UNKNOWN_OPTION = ("unrecognized arguments", "invalid choice", "is invalid. Run")
_MOST = 1024  # GPUs and their partitions


class OlderError(ParseError):
    """This release of amd-smi does not have the command or option."""


def entries(output: Output) -> list[Entry]:
    """Return one entry for each GPU, in the program's order. Raises ParseError, and OlderError."""
    said = f"{output.stdout[:2000]}\n{output.stderr[:2000]}"
    if not output.not_started and not output.timed_out and any(words in said for words in _UNKNOWN_OPTION):
        raise OlderError(f"this amd-smi does not know {' '.join(output.argv[1:])}", "")
    completed({output.name: output}, output.name)
    if output.truncated:
        raise ParseError("amd-smi: the output was cut at its size limit", "run the check again")
    document, behind = _document(output)
    listed = _listed(document, command := output.argv[1])
    if command == "xgmi" and not any("link_status" in one for one in listed):
        try:
            listed = _listed(_first(behind)[0], command)
        except ValueError:
            said = f"amd-smi xgmi gave no states of links: {last_words(output)}"
            raise ParseError(said, "run it on the node") from None
    return listed


def sampled(text: str) -> list[Entry]:
    """Parse a line of the sampler: a `metric` document with its blanks squeezed. Raises ParseError."""
    try:
        return _listed(_first(text)[0], "metric")
    except ValueError:
        words = text.strip()[:160] or "nothing"
        fix = next((advice for sign, advice in _ADVICE if sign in text), "run amd-smi on the node")
        raise ParseError(f"amd-smi metric gave no document: {words}", fix) from None


def _listed(found: Any, command: str) -> list[Entry]:
    if isinstance(found, dict):
        if (error := text(found, "error")) or "error" in found:
            raise ParseError(f"amd-smi {command} failed: {error or 'no reason given'}", "run it on the node")
        found = next((found[name] for name in _LISTS if name in found), None)
    if not isinstance(found, list) or len(found) > _MOST or not all(isinstance(one, dict) for one in found):
        raise ParseError(f"amd-smi {command} prints no list of GPUs", "report the new format")
    numbers = [one.get("gpu") for one in found]
    if not all(type(number) is int for number in numbers) or len(set(numbers)) != len(numbers):
        raise ParseError(f"amd-smi {command} does not number the GPUs", "report the new format")
    return found


def _first(text: str) -> tuple[Any, str]:
    """Return the first document in a text, and the text after it. Raises ValueError."""
    at = min((place for place in map(text.find, "[{") if place >= 0), default=-1)
    if at < 0:
        raise ValueError("no document")
    document, end = foreign_json.first(text, at, unique=True)
    return document, text[end:]


def _document(output: Output) -> tuple[Any, str]:
    text = output.stdout
    try:
        return _first(text)
    except ValueError:
        words, fix = last_words(output), "run amd-smi on the node"
        lines = f"{text[:4000]}\n{output.stderr[:4000]}".splitlines()
        for (
            sign,
            advice,
        ) in _ADVICE:  # a complaint about missing CPUs may follow it
            if line := next((line for line in lines if sign in line), ""):
                words, fix = line.strip()[:200], advice
                break
        raise ParseError(f"amd-smi gave no document: {words}", fix) from None


def within(entry: Any, *names: str) -> Any:
    """Return the value below these names; None if one is missing."""
    for name in names:
        entry = entry.get(name) if isinstance(entry, dict) else None
    return entry


def number(entry: Any, *names: str) -> float | int | None:
    """Return the number below these names, with or without a unit; None for `N/A` or another type."""
    value = within(entry, *names)
    value = value.get("value") if isinstance(value, dict) else value
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return value if abs(value) < 2**63 else None


def count(entry: Any, *names: str) -> int | None:
    """Return the non-negative whole number below these names; None for anything else."""
    value = number(entry, *names)
    return int(value) if value is not None and value >= 0 and value == int(value) else None


def text(entry: Any, *names: str) -> str:
    """Return the text below these names; empty for `N/A` or another type."""
    value = within(entry, *names)
    return value.strip()[:80] if isinstance(value, str) and value.strip() not in ("N/A", "") else ""
