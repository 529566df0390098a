"""Rows of nvidia-smi's CSV samples, and each GPU's samples over time for plots (pure).

The end of the CSV may be cut off by a kill, and its middle omitted because a buffer was full.
"""

from __future__ import annotations

import csv
import datetime
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from provision.checks.check import Output
from provision.checks.gpu.gpu_answers import NO_HANDLE, error_text, worst
from provision.checks.kernel.kernel_log import bus_address
from provision.errors import ParseError

FIELDS = (
    "timestamp", "index", "utilization.gpu", "temperature.gpu", "power.draw", "clocks.current.sm",
    "pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current", "pcie.link.width.max",
    "clocks_event_reasons.active",
)  # fmt: skip
# Identifies the GPU if the index does not: for a lost GPU that cell may also be `[GPU is lost]`.
BUS = "pci.bus_id"
MODEL = "name"  # some models are wired with fewer lanes than the GPU has
# The field's name before driver 535.54.03; the program of 550.163.01 accepts both names.
OLDER = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}
# Readings that need an answer of the GPU; the driver stores the PCIe fields (550.163.01, with a lost GPU).
_ASKED = ("utilization.gpu", "temperature.gpu", "power.draw", "clocks.current.sm")
_MOMENT = re.compile(r"([0-9]{4})/([0-9]{2})/([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{1,6})")
_NUMBER = re.compile(r"\d{1,12}(\.\d{1,6})?")


def rows(output: Output) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows by field, and the lines about GPUs lost during the load; raise ParseError."""
    lines = output.stdout.splitlines()
    whole = output.stdout.endswith("\n")
    header: list[str] | None = None
    samples: list[dict[str, str]] = []
    lost: list[str] = []
    for number, line in enumerate(lines):
        if not line.strip() or line.startswith("[gpuprov: "):
            continue
        if "GPU is lost." in line or NO_HANDLE in line:
            if line.strip()[:200] not in lost:
                lost.append(line.strip()[:200])
            continue
        try:
            cells = [cell.strip() for cell in next(csv.reader([line]))]
        except csv.Error as error:
            raise ParseError(
                f"nvidia-smi: not understood: {line.strip()[:120]!r}", "run the check again"
            ) from error
        if header is None:
            newer = {old: new for new, old in OLDER.items()}
            header = [re.sub(r" \[[^\[\]]*\]$", "", cell) for cell in cells]
            header = [newer.get(name, name) for name in header]
            if missing := [name for name in FIELDS if name not in header]:
                raise ParseError(
                    f"nvidia-smi gave no {missing[0]} under load: {line.strip()[:120]!r}",
                    "report the new format",
                )
            continue
        if cells[0] == "timestamp":
            continue
        if beside_gap(lines, number):
            continue  # half of it may be missing
        if number == len(lines) - 1 and not whole:
            continue  # cut by the end of the load
        if len(cells) != len(header):
            raise ParseError(f"nvidia-smi: not understood: {line.strip()[:120]!r}", "run the check again")
        samples.append(dict(zip(header, cells, strict=True)))
    if header is None and not lost:
        tail = (output.stdout.strip() or output.stderr.strip() or f"nothing, status {output.rc}").splitlines()
        raise ParseError(f"nvidia-smi did not sample the GPUs: {tail[-1][:160]}", "look at the kernel log")
    return samples, lost


def beside_gap(lines: Sequence[str], at: int) -> bool:
    """Return whether a line is next to omitted output, so that half of it may be missing too."""
    return any(
        line.startswith("[gpuprov: ") for line in (*lines[max(at - 1, 0) : at], *lines[at + 1 : at + 2])
    )


def absent(text: str) -> bool:
    """Return whether a cell has no value: `[N/A]`, `[Not Supported]`, `[GPU is lost]` or any brackets."""
    return text.startswith("[") or text in ("", "N/A") or error_text(text) is not None


def number(row: Mapping[str, str], name: str) -> float | None:
    """Return a field as a number, None if nvidia-smi has no value for it; raise ParseError."""
    text = row[name]
    if absent(text):
        return None
    if not _NUMBER.fullmatch(text):
        raise ParseError(
            f"nvidia-smi: {name} is {text[:60]!r}, which is not a number", "report the new format"
        )
    return float(text)


def device(row: Mapping[str, str], gpus: Mapping[str, str]) -> str:
    """Return the sampled GPU by its index, else by its address; `node` if both are errors.

    `gpus`: PCI address → device. Raises ParseError."""
    value = number(row, "index")
    if value is not None:
        return f"gpu{int(value)}"
    if error_text(row.get(BUS, "")) is not None:
        return "node"
    address = bus_address(row.get(BUS, ""))
    if error(row) is None or (BUS in row and absent(row[BUS])):
        raise ParseError("nvidia-smi: a sample of no GPU", "report the new format")
    return gpus.get(address, f"gpu@{address}" if address else "node")


def error(row: Mapping[str, str]) -> str | None:
    """Return the worst NVML error in place of a sample's readings, or None."""
    errors = {text for cell in row.values() if (text := error_text(cell)) is not None}
    return worst(errors) if errors else None


def mostly_errors(row: Mapping[str, str]) -> bool:
    """Return whether half of the readings that need an answer of the GPU are errors."""
    cells = [row[name] for name in _ASKED if name in row]
    return 2 * sum(error_text(cell) is not None for cell in cells) >= len(cells)


def moment(row: Mapping[str, str]) -> float:
    """Return a sample's time in seconds by the node's clock, only for differences; raise ParseError."""
    match = _MOMENT.fullmatch(row["timestamp"])  # three times as fast as strptime; a node has thousands
    try:
        if match is None:
            raise ValueError("another format")
        *whole, fraction = match.groups()
        year, month, day, hour, minute, second = map(int, whole)
        micro = int(fraction.ljust(6, "0"))
        when = datetime.datetime(year, month, day, hour, minute, second, micro, tzinfo=datetime.UTC)
    except ValueError as error:
        raise ParseError(
            f"nvidia-smi: timestamp is {row['timestamp'][:60]!r}", "report the new format"
        ) from error
    return when.timestamp()


# --- the samples of each GPU over time, for plots


Value = float | None


@dataclass
class Series:
    """One GPU's samples, in order; None for values that nvidia-smi did not report.

    `seconds`: since the first sample of any GPU of the node; `temperatures`: °C; `powers`: W; `clocks`: MHz,
    of the SMs.
    """

    seconds: list[float] = field(default_factory=list)
    temperatures: list[Value] = field(default_factory=list)
    powers: list[Value] = field(default_factory=list)
    clocks: list[Value] = field(default_factory=list)

    def thinned(self, most: int) -> Series:
        """Reduce to at most `most` samples: the extremes of each group, so that short peaks stay."""
        if len(self.seconds) <= most:
            return self
        step = -(-2 * len(self.seconds) // most)
        return Series(
            _times(self.seconds, step),
            _extremes(self.temperatures, step),
            _extremes(self.powers, step),
            _extremes(self.clocks, step),
        )


def series(output: Output) -> dict[str, Series]:
    """Return device → samples, in order of the devices' numbers; raise ParseError like telemetry.parse."""
    samples, _ = rows(output)
    start: float | None = None
    by_device: dict[str, Series] = {}
    for row in samples:
        if error(row) and not row["index"].isdigit():
            continue  # a GPU that no longer responds, without an index
        now = moment(row)
        start = now if start is None else start
        one = by_device.setdefault(device(row, {}), Series())
        if now < start or (one.seconds and now - start < one.seconds[-1]):
            continue  # the node's clock was set back: time on a plot is monotonic
        one.seconds.append(now - start)
        one.temperatures.append(number(row, "temperature.gpu"))
        one.powers.append(number(row, "power.draw"))
        one.clocks.append(number(row, "clocks.current.sm"))
    return {device: by_device[device] for device in sorted(by_device, key=lambda device: int(device[3:]))}


def _times(seconds: Sequence[float], step: int) -> list[float]:
    """Return approximate times for the two values of each `step` samples: the first and the middle time."""
    groups = [seconds[start : start + step] for start in range(0, len(seconds), step)]
    return [at for group in groups for at in (group[0], group[len(group) // 2])]


def _extremes(values: Sequence[Value], step: int) -> list[Value]:
    """Return minimum and maximum of each `step` values in their order; twice None without a value."""
    extremes: list[Value] = []
    for start in range(0, len(values), step):
        group = [value for value in values[start : start + step] if value is not None]
        ends: list[Value] = [None, None]
        if group:
            ends = [min(group), max(group)]
            if group.index(max(group)) < group.index(min(group)):
                ends.reverse()
        extremes += ends
    return extremes
