"""The rows of nvidia-smi's samples: CSV, its end maybe cut by a kill, its middle by a full buffer (pure)."""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Mapping

from provision.checks.check import Output
from provision.errors import ParseError

FIELDS = (
    "timestamp", "index", "utilization.gpu", "temperature.gpu", "power.draw", "clocks.current.sm",
    "pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max",
    "clocks_event_reasons.active",
)  # fmt: skip
_MOMENT = re.compile(r"([0-9]{4})/([0-9]{2})/([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{1,6})")
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,6})?")


def rows(output: Output) -> tuple[list[dict[str, str]], str | None]:
    """The rows by field, and what was said of a GPU that was lost on the way (None: nothing). Raises
    ParseError."""
    lines = output.stdout.splitlines()
    whole = output.stdout.endswith("\n")
    header: list[str] | None = None
    found: list[dict[str, str]] = []
    lost = None
    for number, line in enumerate(lines):
        if not line.strip() or line.startswith("[gpuprov: "):
            continue
        if "GPU is lost." in line:
            lost = line.strip()[:200]
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([line]))]
        except csv.Error as error:
            raise ParseError(
                f"nvidia-smi: not understood: {line.strip()[:120]!r}", "run the check again"
            ) from error
        if header is None:
            header = [re.sub(r" \[.*\]$", "", cell) for cell in cells]
            if missing := [name for name in FIELDS if name not in header]:
                raise ParseError(
                    f"nvidia-smi gave no {missing[0]} under load: {line.strip()[:120]!r}",
                    "report the new format",
                )
            continue
        if cells[0] == "timestamp":
            continue
        if any(lines[at].startswith("[gpuprov: ") for at in (number - 1, number + 1) if 0 <= at < len(lines)):
            continue  # half of it may be in what was left out
        if number == len(lines) - 1 and not whole:
            continue  # cut by the end of the load
        if len(cells) != len(header):
            raise ParseError(f"nvidia-smi: not understood: {line.strip()[:120]!r}", "run the check again")
        found.append(dict(zip(header, cells, strict=True)))
    if header is None and lost is None:
        said = (output.stdout.strip() or output.stderr.strip() or f"nothing, status {output.rc}").splitlines()
        raise ParseError(f"nvidia-smi did not sample the GPUs: {said[-1][:160]}", "look at the kernel log")
    return found, lost


def absent(text: str) -> bool:
    """`[N/A]`, `[Not Supported]`, `[Unknown Error]`, `[GPU is lost]`: in brackets it is no value."""
    return text.startswith("[") or text in ("", "N/A")


def number(row: Mapping[str, str], name: str) -> float | None:
    """A field as a number; None where nvidia-smi has no value for it. Raises ParseError."""
    text = row[name]
    if absent(text):
        return None
    if not _NUMBER.fullmatch(text):
        raise ParseError(
            f"nvidia-smi: {name} is {text[:60]!r}, which is not a number", "report the new format"
        )
    return float(text)


def index(row: Mapping[str, str]) -> int:
    """The number of the GPU that was sampled. Raises ParseError."""
    value = number(row, "index")
    if value is None:
        raise ParseError("nvidia-smi: a sample of no GPU", "report the new format")
    return int(value)


def moment(row: Mapping[str, str]) -> float:
    """When it was sampled, by the node's own clock: seconds, only good for differences. Raises ParseError."""
    found = _MOMENT.fullmatch(row["timestamp"])  # three times as fast as strptime; a node has thousands
    try:
        if found is None:
            raise ValueError("another format")
        *whole, fraction = found.groups()
        year, month, day, hour, minute, second = map(int, whole)
        micro = int(fraction.ljust(6, "0"))
        when = datetime.datetime(year, month, day, hour, minute, second, micro, tzinfo=datetime.UTC)
    except ValueError as error:
        raise ParseError(
            f"nvidia-smi: timestamp is {row['timestamp'][:60]!r}", "report the new format"
        ) from error
    return when.timestamp()
