"""Summary of hours of telemetry per device: extremes, alarms, counters, gaps, first signs of a fault.

The samples are read once, in the order they were taken; memory use does not grow with the hours (pure).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from provision.burnin.spool import Row
from provision.checks import vendors
from provision.checks.gpu.gpu_answers import LOST, REQUIRES_RESET, UNKNOWN
from provision.checks.gpu.telemetry_rows import Series
from provision.checks.judge import HOTTER

LOADED = 50.0  # percent of utilisation
_BUCKETS = 240  # of the plots
LASTING = 3  # samples in a row; anything shorter is not a fault
# Metric with the throttling reasons → the alarm of each bit.
_HELD = dict(one.held() for one in vendors.ALL.values())
_COUNTERS = ("ecc_ce", "ecc_ue", "pcie_replays", "nvlink_errors")
_DEVICES = 2000  # per node; more are probably invented names


@dataclass
class Device:
    """One device of one source. Times by the controller's clock."""

    samples: int = 0
    loaded: int = 0
    first: float = 0.0
    last: float = 0.0
    most: dict[str, tuple[float, float]] = field(default_factory=dict)  # metric → (largest, when)
    least: dict[str, tuple[float, float]] = field(default_factory=dict)  # the smallest, under load
    alarms: dict[str, int] = field(default_factory=dict)  # alarm → samples under load
    longest: dict[str, int] = field(default_factory=dict)  # alarm → most samples in a row
    grown: dict[str, float] = field(default_factory=dict)  # counter → growth while it was observed
    onset: dict[str, float] = field(default_factory=dict)  # sign → when it was first seen
    error: int = 0  # worst NVML code for missing readings of a GPU; 0: it always answered
    gaps: list[tuple[float, float]] = field(default_factory=list)
    buckets: dict[int, list[float | None]] = field(default_factory=dict)  # place → [°C, W, MHz]
    early: list[float] = field(default_factory=lambda: [0.0, 0.0])  # sum and count of the clock under load
    late: list[float] = field(default_factory=lambda: [0.0, 0.0])
    heat: list[float] = field(default_factory=lambda: [0.0, 0.0])  # sum and count of °C under load
    _held: int = 0
    _row: dict[str, int] = field(default_factory=dict)
    _boot: str = ""
    _before: dict[str, float] = field(default_factory=dict)
    _width: float = 0.0


@dataclass
class Watch:
    """Samples of one node, by (source, device)."""

    began: float
    ended: float
    interval: float
    devices: dict[tuple[str, str], Device] = field(default_factory=dict)
    boots: dict[str, tuple[float, float]] = field(default_factory=dict)  # boot → first and last sample

    @property
    def gpus(self) -> dict[str, Device]:
        """The GPUs, by name."""
        return {name: one for (source, name), one in self.devices.items() if source == "gpu"}

    def bucket_seconds(self) -> float:
        return max(1.0, (self.ended - self.began) / _BUCKETS)


def watch(
    rows: Iterable[Row], at: Callable[[str, float, float], float], began: float, ended: float, interval: float
) -> Watch:
    """Summarise a node's samples between two moments. `interval`: seconds between two samples."""
    total = Watch(began, max(ended, began + 1.0), interval)
    quarter = (total.ended - began) / 4
    width = total.bucket_seconds()
    for row in rows:
        if len(total.devices) >= _DEVICES and (row.source, row.device) not in total.devices:
            continue
        now = at(row.boot, row.t, row.up)
        one = total.devices.setdefault((row.source, row.device), Device(first=now))
        first, last = total.boots.get(row.boot, (now, now))
        total.boots[row.boot] = (min(first, now), max(last, now))
        _gap(one, row, now, interval)
        one.samples += 1
        one.last = now
        if row.source == "gpu":
            _gpu(one, row, now)
            if one.loaded and (clock := row.number("sm_mhz")) is not None and _is_loaded(row):
                half = (
                    one.early if now < began + quarter else one.late if now > total.ended - quarter else None
                )
                if half is not None:
                    half[0] += clock
                    half[1] += 1
            _bucket(one, row, int((now - began) / width))
        _counters(one, row, now)
        one._boot = row.boot
    return total


def _gap(one: Device, row: Row, now: float, interval: float) -> None:
    """Record a pause longer than the source's sampling explains; reboots are reported separately."""
    # Unchanged counters are written rarely (node/burnin/sampler.py); only GPUs are in each sample.
    usual = {"gpu": interval, "ipmi": 120.0}.get(row.source, max(60.0, interval))
    if (
        one.samples
        and one._boot == row.boot
        and now - one.last > max(3 * usual, 30.0)
        and len(one.gaps) < 500
    ):
        one.gaps.append((one.last, now))


def _is_loaded(row: Row) -> bool:
    used = row.number("util_pct")
    return used is not None and used >= LOADED


def _gpu(one: Device, row: Row, now: float) -> None:
    if code := row.number("nvml_error"):
        one.error = min(one.error or int(code), int(code))
        one.onset.setdefault("gone", now)
    loaded = _is_loaded(row)
    one.loaded += loaded
    for metric in ("temperature_c", "memory_c", "power_w", "sm_mhz"):
        if (value := row.number(metric)) is None:
            continue
        if value > one.most.get(metric, (-1e9, 0.0))[0]:
            one.most[metric] = (value, now)
        if loaded and value < one.least.get(metric, (1e9, 0.0))[0]:
            one.least[metric] = (value, now)
        if loaded and metric == "temperature_c":
            one.heat[0] += value
            one.heat[1] += 1
    _throttle(one, row, now, loaded)
    width = row.number("pcie_width")
    if width is not None and loaded:
        if width < one._width:
            one.onset.setdefault("pcie_width", now)
        one._width = max(one._width, width)


def _throttle(one: Device, row: Row, now: float, loaded: bool) -> None:
    metric = "violations" if "violations" in row.values else "throttle"
    reasons, alarms = int(row.number(metric) or 0), _HELD[metric]
    throttled = loaded and bool(reasons & sum(alarms))
    for bit, name in alarms.items():
        row_now = one._row.get(name, 0) + 1 if loaded and reasons & bit else 0
        one._row[name] = row_now
        if row_now:
            one.alarms[name] = one.alarms.get(name, 0) + 1
            one.longest[name] = max(one.longest.get(name, 0), row_now)
    if not throttled:
        if loaded:  # idle time between two loads does not end a throttling, which may continue in the next
            one._held = 0
        return
    if one._held == 0:
        one._before["throttle"] = now
    one._held += 1
    if one._held >= LASTING:
        one.onset.setdefault("throttle", one._before["throttle"])


def _counters(one: Device, row: Row, now: float) -> None:
    """Record the growth of counters while they are observed; they restart with each boot."""
    for name in _COUNTERS:
        value = row.number(name)
        if value is None:
            continue
        before = one._before.get(name)
        if before is not None and one._boot == row.boot and value > before:
            one.grown[name] = one.grown.get(name, 0.0) + value - before
            one.onset.setdefault(name, now)
        one._before[name] = value


def _bucket(one: Device, row: Row, place: int) -> None:
    """Keep the hottest value, the most power and the lowest clock under load, so that peaks stay visible."""
    kept = one.buckets.setdefault(max(0, min(place, _BUCKETS)), [None, None, None])
    for number, (metric, choose) in enumerate((("temperature_c", max), ("power_w", max), ("sm_mhz", min))):
        value = row.number(metric)
        if value is not None and (metric != "sm_mhz" or _is_loaded(row)):
            before = kept[number]
            kept[number] = value if before is None else choose(before, value)


def series(found: Watch) -> dict[str, Series]:
    """Return device → its samples, thinned for plots, in seconds since the beginning."""
    width = found.bucket_seconds()
    drawn: dict[str, Series] = {}
    for name, one in sorted(found.gpus.items(), key=lambda item: _number(item[0])):
        each = Series()
        before: int | None = None
        for slot in sorted(one.buckets):
            if before is not None and (slot - before) * width > max(4 * found.interval, 4 * width):
                # Draw no line over a time without samples.
                for values in (each.temperatures, each.powers, each.clocks):
                    values.append(None)
                each.seconds.append((before + 1) * width)
            before = slot
            each.seconds.append(slot * width)
            heat, power, clock = one.buckets[slot]
            each.temperatures.append(heat)
            each.powers.append(power)
            each.clocks.append(clock)
        drawn[name] = each
    return drawn


def _number(name: str) -> int:
    digits = "".join(letter for letter in name if letter.isdigit())
    return int(digits[:9]) if digits else 0


def extremes(one: Device) -> Mapping[str, object]:
    """Return a device's extremes as JSON: values in the unit of their names."""
    shares = {name: round(count / one.loaded, 4) for name, count in one.alarms.items() if one.loaded}
    return {
        "samples": one.samples,
        "samples_under_load": one.loaded,
        "most": {metric: value for metric, (value, _) in one.most.items()},
        "least_under_load": {metric: value for metric, (value, _) in one.least.items()},
        "mean_celsius_under_load": round(one.heat[0] / one.heat[1], 1) if one.heat[1] else None,
        "throttled_share": shares,
        "counters_grown": {name: round(value) for name, value in one.grown.items()},
    }


# --- early signs of faults, against the node's other GPUs and over time


_SLOWER = 0.10  # of the clock below the peers
_PEERS = 3  # other GPUs needed for a comparison
# NVML's codes in the samples (provision/node/burnin/tool_output.py), the worst first.
_ERRORS = {15: LOST, 16: REQUIRES_RESET, 999: UNKNOWN}
# Metric of a finding → sign in the telemetry that shows when it began.
SIGNS = {
    "throttled": "throttle",
    "load_temperature": "temperature",
    "load_pcie_width": "pcie_width",
    "load_replays": "pcie_replays",
    "load_ecc_uncorrectable": "ecc_ue",
    "lost": "gone",
    "silent": "gone",
    "rate": "clock",
    "xid.79": "gone",
    "amdgpu.lost": "gone",
}


def compare_peers(found: Watch) -> None:
    """Add the signs that only peers show: hotter, slower, or gone while the others answer."""
    gpus = found.gpus
    width = found.bucket_seconds()
    for name, one in gpus.items():
        others = [other for peer, other in gpus.items() if peer != name]
        if len(others) < _PEERS:
            continue
        runs: dict[str, list[int]] = {"temperature": [], "clock": []}
        for slot in sorted(one.buckets):
            heat, _, clock = one.buckets[slot]
            seen = {
                "temperature": _beyond(heat, _peers(others, slot, 0), lambda v, m: v - m > HOTTER),
                "clock": _beyond(clock, _peers(others, slot, 2), lambda v, m: v < m * (1 - _SLOWER)),
            }
            for sign, far in seen.items():
                runs[sign] = [*runs[sign], slot] if far else []
                if len(runs[sign]) >= LASTING and sign not in one.onset:
                    one.onset[sign] = found.began + runs[sign][0] * width
        end = max(other.last for other in others)
        if end - one.last > max(5 * found.interval, 30.0) and not one.error:
            one.onset["gone"] = one.last


def _peers(others: Sequence[Device], place: int, number: int) -> list[float]:
    values = (other.buckets.get(place, [None, None, None])[number] for other in others)
    return [value for value in values if value is not None]


def _beyond(value: float | None, peers: Sequence[float], far: Callable[[float, float], bool]) -> bool:
    return value is not None and len(peers) >= _PEERS and far(value, statistics.median(peers))


def drift(found: Watch) -> dict[str, float]:
    """Return GPU → change of its clock under load from first to last quarter, relative to its peers.

    -0.05 is 5 % slower than before, while the others stayed the same. Empty without enough peers."""
    ratios = {
        name: (one.late[0] / one.late[1]) / (one.early[0] / one.early[1])
        for name, one in found.gpus.items()
        if one.early[1] >= LASTING and one.late[1] >= LASTING and one.early[0] > 0
    }
    moved = {}
    for name, ratio in ratios.items():
        others = [other for peer, other in ratios.items() if peer != name]
        if len(others) >= _PEERS:
            moved[name] = ratio - statistics.median(others)
    return moved


def measured(found: Watch) -> dict[str, dict[str, float | str]]:
    """Return GPU → values of all hours for provision/checks/gpu/telemetry_rules.py."""
    counted = {name: one for (source, name), one in found.devices.items() if source == "errors"}
    values: dict[str, dict[str, float | str]] = {}
    for name, one in found.gpus.items():
        mine: dict[str, float | str] = {"samples": one.loaded}
        for alarm, count in one.alarms.items():
            mine[f"throttled.{alarm}"] = round(count / max(one.loaded, 1), 3)
            mine[f"throttled.{alarm}.longest"] = one.longest.get(alarm, 0)
        if one.heat[1] >= LASTING:
            mine["load_temperature"] = round(one.heat[0] / one.heat[1], 1)
        grown = {**one.grown, **(counted[name].grown if name in counted else {})}
        mine["load_replays"] = grown.get("pcie_replays", 0.0)
        mine["load_ecc_uncorrectable"] = grown.get("ecc_ue", 0.0)
        if one.error:
            words = _ERRORS.get(one.error, UNKNOWN)
            mine["lost"] = f"nvidia-smi prints {words!r} in place of its readings"
        elif "gone" in one.onset:
            mine["silent"] = round(found.ended - one.onset["gone"])
        values[name] = mine
    return values
