"""Early signs of GPU faults in a burn-in's samples, against the node's other GPUs and over time (pure)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from provision.burnin.watch import LASTING, Device, Watch
from provision.checks.gpu.nvml_error import LOST, REQUIRES_RESET, UNKNOWN

_HOTTER = 12.0  # degrees above the peers, as provision/checks/gpu/telemetry_rules.py has it
_SLOWER = 0.10  # of the clock below the peers
_PEERS = 3  # others, below which there is no comparing
# NVML's codes in the samples (provision/node/burnin/tool_output.py).
_ERRORS = {15: LOST, 16: REQUIRES_RESET, 999: UNKNOWN}
# What a finding measures → the telemetry's sign of it that shows when it began.
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
        for place in sorted(one.buckets):
            heat, _, clock = one.buckets[place]
            seen = {
                "temperature": _beyond(heat, _peers(others, place, 0), lambda v, m: v - m > _HOTTER),
                "clock": _beyond(clock, _peers(others, place, 2), lambda v, m: v < m * (1 - _SLOWER)),
            }
            for sign, far in seen.items():
                runs[sign] = [*runs[sign], place] if far else []
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
    """GPU → its clock under load in the last quarter of the time over that in the first, minus what its peers
    did: -0.05 is 5 % slower than it was, while the others kept theirs. Nothing without enough peers."""
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
    """GPU → what provision/checks/gpu/telemetry_rules.py judges, of all the hours together."""
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
