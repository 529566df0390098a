"""Samples of amd-smi while AMD's GPUs work, judged for faults that idle GPUs hide.

`amd-smi metric` prints temperature, power, clocks, throttling reasons, the link and the error counters in one
document, which takes a second or two. A line of the sampler is the time and that document. The measurements
have the names of nvidia-smi's (gpu/telemetry.py).

A lost GPU leaves the list, and the others move up in it, so their numbers are certain only while as many are
listed as before the load.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from provision.checks.check import CheckNode, Command, Measurement, Output
from provision.checks.gpu import telemetry_rules
from provision.checks.gpu.telemetry import FEWEST
from provision.checks.judge import Finding, Verdict, unmeasured
from provision.checks.kernel import kernel_incidents
from provision.checks.kernel.kernel_log import bus_address
from provision.checks.thresholds import Threshold
from provision.checks.vendors.amd import sensors, smi
from provision.checks.vendors.amd.smi import Entry, count, number, text, within
from provision.errors import ParseError
from provision.node.observe.amd_smi import STATIC
from provision.text import many

NAME = "telemetry"  # of the command during the load
BEFORE, AFTER = "amd_smi_before", "amd_smi_after"
_STATIC = ("amd-smi", *STATIC)
_DEADLINE = 40.0  # no duration for eight GPUs is published; a stuck driver never answers

_INTERVAL = 2.0  # seconds between two samples
# Eight MI300X print up to 71 kB with ROCm 7.2, and 2 MiB are kept: a longer load gets no more samples.
_MOST_SAMPLES = 28
_SAMPLER = """\
while :; do
  printf '%s %s\\n' "$(date +%s)" "$(amd-smi metric --json 2>&1 | tr -s '[:space:]' ' ')"
  sleep "$1"
done
"""

_LOADED = 50.0  # percent of activity under load, even while the load copies data
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}  # GT/s of a lane → generation
_SOFT = "socket_thermal"
_SAMPLED_SHARE, _SHORT = 0.5, 10.0  # as in gpu/telemetry_rules.py
_LOST = "amd-smi lists the other GPUs, and not this one"


def before() -> Command:
    """Return the first command of a check that loads GPUs."""
    return Command(BEFORE, _STATIC, _DEADLINE)


def command(beside: str, seconds: float, deadline: float) -> Command:
    """Return the sampler to run during the named command, a load of so many seconds."""
    interval = max(_INTERVAL, seconds / _MOST_SAMPLES)
    argv = ("/bin/sh", "-c", _SAMPLER, "sampler", f"{interval:g}")
    return Command(NAME, argv, deadline, load=seconds, beside=beside)


def after() -> Command:
    """Return the last command of such a check, which lists the GPUs that still answer."""
    return Command(AFTER, _STATIC, _DEADLINE)


@dataclass
class _Samples:
    """One GPU's samples under load, with the throttling reasons of each in `held`."""

    temperatures: list[float] = field(default_factory=list)
    powers: list[float] = field(default_factory=list)
    clocks: list[float] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    held: list[frozenset[str]] = field(default_factory=list)
    loaded: int = 0
    counted: dict[str, tuple[int, int]] = field(default_factory=dict)  # metric → first and last count


def measure(node: CheckNode, outputs: Mapping[str, Output]) -> list[Measurement]:
    """Return the samples, or `telemetry` with the reason if there are none; empty if not requested."""
    if NAME not in outputs:
        return []
    gpus = kernel_incidents.devices(node)
    try:
        static = _entries(outputs, BEFORE)
        devices = sensors.by_device(static, gpus)
        measurements = list(_parse(outputs[NAME], static, devices))
    except ParseError as error:
        measurements = [Measurement("telemetry", f"{error.what}; {error.fix}", "")]
        devices = dict(enumerate(gpus.values()))
    return [*measurements, *_lost(outputs, gpus, set(devices.values()))]


def _entries(outputs: Mapping[str, Output], name: str) -> list[Entry]:
    if name not in outputs:
        raise ParseError("the output of amd-smi static is missing", "run the check again")
    return smi.entries(outputs[name])


def _parse(output: Output, static: Sequence[Entry], devices: Mapping[int, str]) -> Iterator[Measurement]:
    if output.not_started or output.timed_out:
        why = output.not_started or "it did not answer in time"
        raise ParseError(f"the GPUs were not sampled under load: {why}", "look at amd-smi on the node")
    sampled = {device: _Samples() for device in devices.values()}
    times, fewer, refused = [], 0, None
    for moment, line in _lines(output):
        try:
            entries = smi.sampled(line)
        except ParseError as error:
            refused = error
            continue
        if len(entries) != len(static):
            # If most are missing, the output is not understood.
            fewer += len(static) / 2 < len(entries) < len(static)
            continue
        times.append(moment)
        for entry in entries:
            if (device := devices.get(int(entry["gpu"]))) is not None:
                _take(sampled[device], entry)
    if not times:
        raise refused or ParseError("amd-smi sampled no GPU under load", "run the check again")
    span = float(max(times) - min(times))
    yield Measurement("sampled", span, "s")
    if fewer:
        yield Measurement("fewer_listed", fewer, "samples")
    yield Measurement("counted", output.seconds, "s")
    best = {devices[int(one["gpu"])]: one for one in static if int(one["gpu"]) in devices}
    for entry in static:
        if (device := devices.get(int(entry["gpu"]))) is not None:
            yield from sensors.of_limits(entry, device)
    for device, one in sampled.items():
        yield from _measured(device, one, within(best[device], "bus"))


def _lines(output: Output) -> Iterator[tuple[int, str]]:
    """Yield time and text of each sample, except a last one that the end of the load cut off.

    Samples next to an omitted middle may be cut, too."""
    lines = output.stdout.splitlines()
    if lines and not output.stdout.endswith("\n"):
        lines.pop()
    for line in lines:
        moment, blank, rest = line.partition(" ")
        if blank and moment.isdigit() and len(moment) < 12:
            yield int(moment), rest


def _take(one: _Samples, entry: Entry) -> None:
    for metric, where in (
        ("load_replays", ("pcie", "replay_count")),
        ("load_ecc_uncorrectable", ("ecc", "total_uncorrectable_count")),
    ):
        if (now := count(entry, *where)) is not None:
            one.counted[metric] = (one.counted.get(metric, (now, now))[0], now)
    activity = number(entry, "usage", "gfx_activity")
    if activity is not None and activity < _LOADED:
        return
    one.loaded += activity is not None
    clocks = [clock for clock in _clocks(within(entry, "clock")) if clock]
    for kept, value in (
        (one.temperatures, number(entry, "temperature", "hotspot")),
        (one.powers, number(entry, "power", "socket_power")),
        (one.clocks, max(clocks, default=None)),
    ):
        if value is not None:
            kept.append(value)
    if lanes := count(entry, "pcie", "width"):
        one.widths.append(lanes)
    if (generation := _GENERATIONS.get(float(number(entry, "pcie", "speed") or 0))) is not None:
        one.generations.append(generation)
    if text(entry, "throttle", "prochot_violation_status"):
        one.held.append(sensors.held(entry))


def _clocks(clock: Any) -> Iterator[float]:
    """Yield the clocks of the parts that compute: gfx_0 to gfx_7 of an MI300X."""
    for name, values in clock.items() if isinstance(clock, dict) else ():
        if name.startswith("gfx") and (value := number(values, "clk")) is not None:
            yield float(value)


def _measured(device: str, one: _Samples, bus: Any) -> Iterator[Measurement]:
    yield Measurement("samples", one.loaded, "samples", device)
    for metric, (first, last) in one.counted.items():
        # A counter that shrank was reset with its GPU, so its whole value is new.
        unit = "replays" if metric == "load_replays" else "errors"
        yield Measurement(metric, last - first if last >= first else last, unit, device)
    if one.loaded < FEWEST:
        return
    for metric, values, unit in (
        ("load_temperature", one.temperatures, "C"),
        ("load_power", one.powers, "W"),
        ("load_clock", one.clocks, "MHz"),
    ):
        if values:
            late = values[len(values) // 2 :]  # heat and clocks have settled
            yield Measurement(metric, statistics.median(late), unit, device)
    widest, fastest = count(bus, "max_pcie_width"), number(bus, "max_pcie_speed")
    if one.widths and widest:
        yield Measurement("load_pcie_width", statistics.mode(one.widths), "", device)
        yield Measurement("load_pcie_width_max", widest, "", device)
    if one.generations and (newest := _GENERATIONS.get(float(fastest or 0))) is not None:
        yield Measurement("load_pcie_gen", max(one.generations), "", device)
        yield Measurement("load_pcie_gen_max", newest, "", device)
    yield from _holding(device, one.held)


def _holding(device: str, held: Sequence[frozenset[str]]) -> Iterator[Measurement]:
    """Yield the share of samples in which each limit throttled, and the longest row of such samples."""
    for name in sensors.VIOLATIONS:
        longest = run = 0
        for names in held:
            run = run + 1 if name in names else 0
            longest = max(longest, run)
        if longest:
            share = sum(name in names for names in held) / len(held)
            yield Measurement(f"throttled.{name}", round(share, 3), "share", device)
            yield Measurement(f"throttled.{name}.longest", longest, "samples", device)


def _lost(outputs: Mapping[str, Output], gpus: Mapping[str, str], known: set[str]) -> list[Measurement]:
    """Return the GPUs missing after the load; `unproven` is the reason if that is unknown."""
    try:
        listed = set(sensors.by_device(_entries(outputs, AFTER), gpus).values())
    except ParseError as error:
        return [Measurement("unproven", f"after the test, {error.what}", "")]
    gone = known - listed
    # If most are missing, the output is not understood and blames no GPU.
    if gone and 2 * len(gone) >= len(known):
        message = f"after the test, amd-smi lists {len(known) - len(gone)} of {len(known)} GPUs"
        return [Measurement("unproven", message, "")]
    return [Measurement("lost", _LOST, "", device) for device in sorted(gone)]


# --- judging


def judge(
    check: str,
    node: CheckNode,
    by_gpu: Mapping[str, Mapping[str, Any]],
    values: Mapping[str, Any],
    thresholds: Mapping[str, Threshold],
) -> list[Finding]:
    """Judge the samples. `by_gpu`: device → metric → value; `values`: the node's own measurements."""
    lost = [_gone(check, node, device) for device, known in by_gpu.items() if "lost" in known]
    if "telemetry" in values:
        return [*lost, unmeasured(check, str(values["telemetry"]), action="investigate")]
    findings = _shown(check, by_gpu, values, thresholds)
    if lost:
        return findings + lost
    if "unproven" in values:
        findings.append(unmeasured(check, str(values["unproven"]), action="investigate"))
    elif fewer := values.get("fewer_listed"):
        times = many(int(fewer), "sample")
        message = f"in {times} under load amd-smi did not list all GPUs, and after the test it does"
        findings.append(
            Finding(check, Verdict.FAIL, "node", message, "lost", fewer, "samples", action="investigate")
        )
    ran, seen = float(values.get("ran", 0.0)), float(values.get("sampled", 0.0))
    if "sampled" in values and ran >= _SHORT and seen < _SAMPLED_SHARE * ran:
        message = f"amd-smi sampled the GPUs for {seen:g} s of {ran:g} s and ended"
        findings.append(unmeasured(check, message, action="investigate"))
    return findings


def judge_hours(
    check: str,
    by_gpu: Mapping[str, Mapping[str, Any]],
    values: Mapping[str, Any],
    thresholds: Mapping[str, Threshold],
) -> list[Finding]:
    """Judge all samples of a burn-in (burnin/watch.py). `silent`: seconds that a GPU was missing."""
    findings = _shown(check, by_gpu, values, thresholds)
    for device, metrics in by_gpu.items():
        if "silent" in metrics:
            message = f"amd-smi stopped listing it {metrics['silent']:g} s before the others"
            findings.append(Finding(check, Verdict.FAIL, device, message, "silent", action="power-cycle"))
    return findings


def _shown(
    check: str,
    by_gpu: Mapping[str, Mapping[str, Any]],
    values: Mapping[str, Any],
    thresholds: Mapping[str, Threshold],
) -> list[Finding]:
    sampled = {device: known for device, known in by_gpu.items() if "samples" in known}
    findings = telemetry_rules.links(check, sampled, thresholds, "amd-smi")
    findings += telemetry_rules.throttled(check, sampled, sensors.VIOLATIONS, _SOFT)
    findings += telemetry_rules.heat(check, sampled)
    return findings + telemetry_rules.errors(check, by_gpu, values, "amd-smi beside the load")


def _gone(check: str, node: CheckNode, device: str) -> Finding:
    """Return the finding of a lost GPU, with the serial number and address needed to replace it."""
    address = next((at for at, name in kernel_incidents.devices(node).items() if name == device), "unknown")
    entries = node.facts.get("amdgpu.devices")
    serial = next(
        (
            str(one.get("serial"))[:40]
            for one in (entries if isinstance(entries, list) else ())
            if isinstance(one, dict) and bus_address(str(one.get("address"))) == address and one.get("serial")
        ),
        "unknown",
    )
    message = f"does not answer after the test: {_LOST} (serial {serial}, PCI {address})"
    return Finding(check, Verdict.FAIL, device, message, "lost", action="power-cycle")
