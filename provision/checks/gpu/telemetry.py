"""Telemetry of GPUs under load by nvidia-smi, to find faults that idle GPUs hide.

An idle link saves power and runs at generation 1, and an idle GPU is never throttled. `command` samples in
the background of another command of the check, `parse` converts the samples to measurements
(telemetry_rows.py reads them), and telemetry_rules.py judges those.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from provision.checks.check import Command, Measurement, Output
from provision.checks.gpu.gpu_answers import LOST, NO_HANDLE, NOT_PERMITTED, REQUIRES_RESET, WORST_FIRST
from provision.checks.gpu.inventory_links import WIRED
from provision.checks.gpu.telemetry_rows import (
    BUS,
    MODEL,
    OLDER,
    absent,
    beside_gap,
    device,
    error,
    moment,
    mostly_errors,
    number,
    rows,
)
from provision.checks.gpu.telemetry_rows import FIELDS as FIELDS
from provision.checks.kernel.kernel_log import bus_address
from provision.errors import ParseError

NAME = "telemetry"  # of the command
_INTERVAL = 2.0  # seconds between samples
# 8 GPUs write a kilobyte per sample, and 2 MiB are stored: a longer load is sampled 1,500 times at most.
_MOST_SAMPLES = 1500

# The alarms among the clock event reasons (nvml.h). The others are normal: idle, application clocks, the
# software power cap of a GPU at full load, sync boost, display clocks.
ALARMS = {
    0x8: ("hw_slowdown", "hardware slowdown"),
    0x20: ("sw_thermal_slowdown", "software thermal slowdown"),
    0x40: ("hw_thermal_slowdown", "hardware thermal slowdown"),
    0x80: ("hw_power_brake_slowdown", "power brake"),
}
HELD = ("throttle", {bit: name for bit, (name, _) in ALARMS.items()})  # in a burn-in's sample
_LOADED = 50.0  # percent of utilisation: the load is running, despite copies in between
FEWEST = 3  # samples under load needed to judge a GPU

# The index may precede the address, with or without a colon and a blank: only the address is certain.
_LOST = re.compile(
    r"(GPU)[\d:\s]{0,20}?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])\b.{0,200}"
    r"(?:is lost|Unknown Error|requires reset)",
    re.IGNORECASE,
)
# The driver that renamed nvidia-smi's field.
_RENAMED = (535, 54, 3)


@dataclass
class _Samples:
    """One GPU's samples under load. `reasons`: the bits of each sample, in order."""

    temperatures: list[float] = field(default_factory=list)
    powers: list[float] = field(default_factory=list)
    clocks: list[float] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    reasons: list[int] = field(default_factory=list)
    generation_max: int | None = None
    width_max: int | None = None
    loaded: int = 0
    last: float = 0.0
    errors: list[str] = field(default_factory=list)  # one for each sample with an error in a reading
    gone: str = ""  # the error of a GPU that does not respond at all


def command(beside: str, seconds: float, deadline: float, driver: object = None) -> Command:
    """Return the sampler that runs in the background of the command `beside`, a load of `seconds`.

    One unknown field fails the whole query, so it uses the field names of the loaded `driver` version."""
    interval = max(_INTERVAL, seconds / _MOST_SAMPLES)
    numbers = re.findall(r"\d+", driver) if isinstance(driver, str) else []
    old = bool(numbers) and tuple(int(part) for part in numbers[:3]) < _RENAMED
    fields = ",".join([*(OLDER.get(name, name) if old else name for name in FIELDS), BUS, MODEL])
    argv = (
        "nvidia-smi",
        f"--query-gpu={fields}",
        "--format=csv,nounits",
        "-lms",
        str(round(interval * 1000)),
    )
    return Command(NAME, argv, deadline, load=seconds, beside=beside)


def measure(output: Output | None, gpus: Mapping[str, str]) -> list[Measurement]:
    """Convert the samples, or the reason for their absence (`telemetry`); `gpus`: PCI address → device."""
    if output is None:
        return []
    try:
        return parse(output, gpus)
    except ParseError as error:
        return [Measurement("telemetry", f"{error.what}; {error.fix}", "")]


def parse(output: Output, gpus: Mapping[str, str]) -> list[Measurement]:
    """Parse CSV rows into measurements per GPU; raise ParseError.

    Measures PCIe generation and width, median clock, power and temperature under load, and the share of the
    samples (0 to 1) in which each alarm throttled the clocks.
    """
    if output.not_started or output.timed_out:
        why = output.not_started or "it did not answer in time"
        raise ParseError(f"the GPUs were not sampled under load: {why}", "look at nvidia-smi on the node")
    samples, lost = rows(output)
    sampled: dict[str, _Samples] = {}
    for row in samples:
        _take(sampled.setdefault(device(row, gpus), _Samples()), row)
    if not sampled and not lost:
        raise ParseError("nvidia-smi sampled no GPU under load", "run the check again")
    gone = {_which(line, gpus): line for line in reversed(lost)}
    for name, one in sampled.items():
        if one.gone:
            gone.setdefault(name, f"nvidia-smi prints {one.gone!r} in place of its readings")
    if len(gone) > 1:
        gone.pop("node", None)  # samples without index and address are of a GPU lost before
    sampled.pop("node", None)
    measurements = [Measurement("lost", why, "", name) for name, why in sorted(gone.items())]
    end = max((one.last for one in sampled.values()), default=0.0)
    if times := [moment(row) for row in samples]:
        measurements.append(Measurement("sampled", round(max(times) - min(times), 1), "s"))
    patience = 5 * (float(output.argv[-1]) / 1000 if output.argv[-1].isdigit() else _INTERVAL)
    for gpu, one in sorted(sampled.items()):
        measurements += _measured(gpu, one)
        if gpu in gone:
            continue
        if end - one.last > patience:
            measurements.append(Measurement("silent", round(end - one.last, 1), "s", gpu))
        if one.errors:
            measurements.append(Measurement("unread", len(one.errors), "samples", gpu))
            refused = max(one.errors, key=WORST_FIRST.index)  # NOT_PERMITTED: nothing was measured
            measurements.append(Measurement("unread_error", refused, "", gpu))
    return measurements


def _which(lost: str, gpus: Mapping[str, str]) -> str:
    """Convert `Unable to determine the device handle for GPU3: 0000:61:00.0: GPU is lost.` to gpu3."""
    match = _LOST.search(lost)
    if match is None:
        return "node"
    return gpus.get(bus_address(match[2])) or f"gpu@{bus_address(match[2])}"


def _take(one: _Samples, row: Mapping[str, str]) -> None:
    one.last = moment(row)
    if (why := error(row)) is not None:
        one.errors.append(why)
        if why in (LOST, REQUIRES_RESET) or (why != NOT_PERMITTED and mostly_errors(row)):
            one.gone = min(why, one.gone or why, key=WORST_FIRST.index)
            return
    used = number(row, "utilization.gpu")
    if used is not None and used < _LOADED:
        return
    one.loaded += used is not None
    for kept, name in (
        (one.temperatures, "temperature.gpu"),
        (one.powers, "power.draw"),
        (one.clocks, "clocks.current.sm"),
    ):
        if (value := number(row, name)) is not None:
            kept.append(value)
    for whole, name in ((one.generations, "pcie.link.gen.current"), (one.widths, "pcie.link.width.current")):
        if (value := number(row, name)) is not None:
            whole.append(int(value))
    if (best := number(row, "pcie.link.gen.max")) is not None:
        one.generation_max = int(best)
    if (best := number(row, "pcie.link.width.max")) is not None:
        one.width_max = min(int(best), WIRED.get(row.get(MODEL, ""), int(best)))
    reasons = row["clocks_event_reasons.active"]
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", reasons):
        one.reasons.append(int(reasons, 16))
    elif not absent(reasons):
        raise ParseError(
            f"nvidia-smi: clocks_event_reasons.active is {reasons[:60]!r}", "report the new format"
        )


def _measured(device: str, one: _Samples) -> list[Measurement]:
    results = [Measurement("samples", one.loaded, "samples", device)]
    # A GPU with MIG has no utilisation: it may not have been under load.
    if one.loaded < FEWEST:
        return results
    for metric, values, unit in (
        ("load_temperature", one.temperatures, "C"),
        ("load_power", one.powers, "W"),
        ("load_clock", one.clocks, "MHz"),
    ):
        if values:
            late = values[len(values) // 2 :]  # heat and clocks have settled
            results.append(Measurement(metric, statistics.median(late), unit, device))
    for metric, links, best in (
        ("load_pcie_gen", one.generations, one.generation_max),
        ("load_pcie_width", one.widths, one.width_max),
    ):
        if links and best is not None:
            results.append(
                Measurement(
                    metric, max(links) if metric.endswith("gen") else statistics.mode(links), "", device
                )
            )
            results.append(Measurement(f"{metric}_max", best, "", device))
    if one.reasons:
        results.append(Measurement("load_reasons", len(one.reasons), "samples", device))
    for bit, (name, _) in ALARMS.items():
        held = [bool(reasons & bit) for reasons in one.reasons]
        if any(held):
            results.append(Measurement(f"throttled.{name}", round(sum(held) / len(held), 3), "share", device))
            results.append(Measurement(f"throttled.{name}.longest", _longest(held), "samples", device))
    return results


def _longest(held: Sequence[bool]) -> int:
    longest = run = 0
    for one in held:
        run = run + 1 if one else 0
        longest = max(longest, run)
    return longest


# --- error counters read by `nvidia-smi dmon -s e` during a load: the growth of each
#
#     # gpu  sbecc  dbecc    pci
#     # Idx   errs   errs   errs
#         0      0      0      0
#
# `pci` is the number of PCIe replays, `dbecc` of uncorrectable memory errors. A count from before the load is
# old; only growth is current. The letters select the columns, and `-` is no value. An NVML error
# (gpu_answers.py) in place of a count, or a line about a GPU without a handle, leaves the others' counts.


COUNTERS = "error_counters"  # of the command
_METRICS = {"pci": "load_replays", "sbecc": "load_ecc_correctable", "dbecc": "load_ecc_uncorrectable"}
_UNITS = {"pci": "replays", "sbecc": "errors", "dbecc": "errors"}
_COUNTING = 5  # seconds
_MOST_COUNTS = 3000
_COUNT = re.compile(r"\d{1,20}", re.ASCII)
_ERROR = re.compile("|".join(rf"\[?{re.escape(error)}\]?" for error in WORST_FIRST), re.IGNORECASE)


def counters_command(beside: str, seconds: float, deadline: float) -> Command:
    """Return the sampler to run in the background of the command `beside`, a load of `seconds`."""
    interval = max(_COUNTING, round(seconds / _MOST_COUNTS))
    argv = ("nvidia-smi", "dmon", "-s", "e", "-d", str(interval))
    return Command(COUNTERS, argv, deadline, load=seconds, beside=beside)


def measure_counters(output: Output | None) -> list[Measurement]:
    """Return each counter's growth, or the reason as `error_counters`; nothing without an output."""
    if output is None:
        return []
    try:
        return parse_counters(output)
    except ParseError as error:
        return [Measurement("error_counters", f"{error.what}; {error.fix}", "")]


def _cells(line: str, header: str) -> list[str]:
    """Split a row; a number that fills its column touches the one before it.

    In `3     0     0100000` (470.256, 100,000 replays) the ends of the header's words separate them."""
    words = line.split()
    ends = [word.end() for word in re.finditer(r"\S+", header)][1:]
    if not words or line.startswith("#") or not words[0].isdigit() or len(words) >= len(ends):
        return words
    return [line[start:end].strip() for start, end in itertools.pairwise([0, *ends[:-1], len(line)])]


def parse_counters(output: Output) -> list[Measurement]:
    """Parse dmon's rows into each counter's growth per GPU, and the seconds counted; raise ParseError."""
    if output.not_started or output.timed_out:
        why = output.not_started or "it did not answer in time"
        raise ParseError(f"error counters were not read under load: {why}", "look at nvidia-smi on the node")
    columns: list[str] = []
    header = ""
    samples: Counter[int] = Counter()
    errors: dict[int, str] = {}  # GPU → the NVML error in place of its counts
    ended = ""
    seen: dict[tuple[int, str], tuple[int, int]] = {}
    lines = output.stdout.splitlines()
    for position, line in enumerate(lines):
        error = _ERROR.search(line)
        words = _cells(_ERROR.sub("-", line), header)
        last = position == len(lines) - 1 and not output.stdout.endswith("\n")
        if words[:2] == ["#", "gpu"]:
            columns, header = words[2:], line
        elif not words or words[0] == "#" or line.startswith("[gpuprov: "):
            continue
        elif last or beside_gap(lines, position):
            continue  # cut by the end of the load, or next to an omission
        elif NO_HANDLE in line:
            ended = line.strip()[:160]  # telemetry names the GPU
        elif len(words) != len(columns) + 1 or not _COUNT.fullmatch(words[0]):
            if error is not None:
                if _COUNT.fullmatch(words[0]):
                    errors[int(words[0])] = _spelt(error[0])
                else:
                    ended = line.strip()[:160]
                continue
            raise ParseError(
                f"nvidia-smi dmon: not understood: {line.strip()[:120]!r}", "report the new format"
            )
        else:
            samples[int(words[0])] += 1
            if error is not None:
                errors[int(words[0])] = _spelt(error[0])
            for name, text in zip(columns, words[1:], strict=True):
                if text == "-" or name not in _METRICS:
                    continue
                if not _COUNT.fullmatch(text):
                    raise ParseError(f"nvidia-smi dmon: {name} is {text[:40]!r}", "report the new format")
                first = seen.get((int(words[0]), name), (int(text), 0))[0]
                seen[int(words[0]), name] = (first, int(text))
    if "pci" not in columns:
        tail = (output.stdout.strip() or output.stderr.strip() or f"nothing, status {output.rc}").splitlines()
        raise ParseError(f"nvidia-smi dmon counted no errors: {tail[-1][:160]}", "run the check again")
    unread = dict(_uncounted(samples, seen))
    # Other errors may affect only this counter; telemetry's samples show whether the GPU responds.
    lost = {gpu: error for gpu, error in errors.items() if error in (LOST, REQUIRES_RESET)}
    unread.update({gpu: f"counts ({error!r})" for gpu, error in errors.items()})
    # A counter that shrank was reset with its GPU: its whole count is new.
    return [
        Measurement("counted", output.seconds, "s"),
        *([Measurement("counters_lost", ended, "")] if ended else []),
        *(_samples(output, samples) if not output.truncated else []),
        *(Measurement("uncounted", what, "", f"gpu{gpu}") for gpu, what in unread.items() if gpu not in lost),
        *(
            Measurement("lost", f"nvidia-smi dmon prints {error!r} in place of its counts", "", f"gpu{gpu}")
            for gpu, error in lost.items()
        ),
        *(
            Measurement(_METRICS[name], now - first if now >= first else now, _UNITS[name], f"gpu{gpu}")
            for (gpu, name), (first, now) in sorted(seen.items())
        ),
    ]


def _spelt(text: str) -> str:
    return next(error for error in WORST_FIRST if error.casefold() == text.strip("[]").casefold())


def _samples(output: Output, samples: Mapping[int, int]) -> list[Measurement]:
    """Return samples per GPU and the seconds they cover, unless the output's middle was omitted."""
    interval = next((word for at, word in zip(output.argv, output.argv[1:], strict=False) if at == "-d"), "")
    seconds = max(samples.values(), default=0) * int(interval) if interval.isdigit() else None
    return [
        *(Measurement("counter_samples", n, "samples", f"gpu{gpu}") for gpu, n in sorted(samples.items())),
        *([Measurement("counters_sampled", seconds, "s")] if seconds is not None else []),
    ]


def _uncounted(samples: Mapping[int, int], seen: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return counters that dmon reads for most GPUs but not for this one (`-` in every sample)."""
    read = set(seen)
    silent = {name: {gpu for gpu in samples if (gpu, name) not in read} for name in ("dbecc", "pci")}
    few = {name: gpus for name, gpus in silent.items() if 2 * len(gpus) <= len(samples)}
    named = [(gpu, ", ".join(name for name, gpus in few.items() if gpu in gpus)) for gpu in sorted(samples)]
    return [(gpu, words) for gpu, words in named if words]
