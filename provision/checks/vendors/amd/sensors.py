"""AMD's GPUs as amd-smi reports them: names, limits, sensors, links → measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from provision.checks.check import Measurement
from provision.checks.kernel.kernel_log import bus_address
from provision.checks.vendors.amd.smi import Entry, count, number, text, within
from provision.errors import ParseError
from provision.node.observe.amd_smi import memory_ecc

# Reasons of throttling. The power limit is not among them: it throttles any healthy GPU under full load.
# MI200 gives no reason (`throttle_status`), so its throttling is not judged.
VIOLATIONS = {
    "prochot": "the board asks for it (PROCHOT)",
    "vr_thermal": "its voltage regulators are too hot",
    "hbm_thermal": "its memory is too hot",
    "socket_thermal": "it is at its limit of temperature",
}
HELD = ("violations", {1 << place: name for place, name in enumerate(VIOLATIONS)})  # bits in a burn-in sample
_AGENTS = ("gpuagent", "amd-metrics-exporter", "amd-smi", "rocm-smi")  # they only monitor
_BUSY = 5.0  # percent of activity above which a GPU is not at rest


def by_device(static: Sequence[Entry], gpus: Mapping[str, str]) -> dict[int, str]:
    """Map amd-smi's numbers to devices by PCI address, which partitions share. Raises ParseError."""
    by_number: dict[int, str] = {}
    for entry in static:
        address = text(entry, "bus", "bdf")
        if not address:
            raise ParseError("amd-smi static gives a GPU without its address", "report the new format")
        device = gpus.get(bus_address(address))
        if device is not None and device not in by_number.values():
            by_number[int(entry["gpu"])] = device
    if gpus and not by_number:  # as from Debian 13's amd-smi on a lab node, with exit status 0
        raise ParseError(
            "amd-smi static gives the address of no GPU on the PCI bus",
            "use the amd-smi of the driver's release",
        )
    return by_number


def of_static(static: Sequence[Entry], devices: Mapping[int, str]) -> Iterator[Measurement]:
    """Yield names and limits. In a module of two GPUs, the first one has the module's power limit."""
    for entry in static:
        device = devices.get(int(entry["gpu"]))
        if device is None:
            continue
        yield Measurement("listed", True, "", device)
        if name := text(entry, "asic", "market_name"):
            yield Measurement("name", name, "", device)
        state = memory_ecc(within(entry, "ras", "ecc_block_state"))  # type: ignore[no-untyped-call]
        if isinstance(state, str) and state not in ("", "N/A"):
            yield Measurement("ecc_mode", state[:20].capitalize(), "", device)
        if (threshold := count(entry, "ras", "bad_page_threshold")) is not None:
            yield Measurement("bad_page_threshold", threshold, "pages", device)
        yield from of_limits(entry, device)


def of_limits(entry: Entry, device: str) -> Iterator[Measurement]:
    """Yield the set power limit (unknown if 0, as of a GPU in the CPU's socket) and the highest one."""
    limit = within(entry, "limit")
    first, older = within(limit, "ppt0"), ("socket_power", "max_power")
    names = ("socket_power_limit", "max_power_limit") if isinstance(first, dict) else older
    for metric, name in zip(("power_limit", "power_default"), names, strict=True):
        watts = number(first if isinstance(first, dict) else limit, name)
        if watts:
            yield Measurement(metric, watts, "W", device)


def of_metric(metric: Sequence[Entry], devices: Mapping[int, str]) -> Iterator[Measurement]:
    """Yield temperatures, throttling reasons, and whether the GPU is busy."""
    for entry in metric:
        device = devices.get(int(entry["gpu"]))
        if device is None:
            continue
        for name, where in (("temperature", "hotspot"), ("memory_temperature", "mem")):
            degrees = number(entry, "temperature", where)
            if degrees is not None:
                yield Measurement(name, degrees, "C", device)
        if text(entry, "throttle", "prochot_violation_status"):
            active = held(entry)
            names = [name for name in VIOLATIONS if name in active]
            yield Measurement("throttle", ", ".join(names), "", device)
        activity = number(entry, "usage", "gfx_activity")
        if activity is not None:
            yield Measurement("busy", bool(activity > _BUSY), "", device)
        if used := count(entry, "mem_usage", "used_vram"):
            yield Measurement("memory_used", used, "MiB", device)
        if level := text(entry, "perf_level"):  # AMDSMI_DEV_PERF_LEVEL_AUTO; in ROCm 6.1 without AMDSMI_DEV_
            yield Measurement("perf_level", level.rpartition("LEVEL_")[2], "", device)
        if errors := text(entry, "xgmi_err"):
            yield Measurement("xgmi_errors", not errors.endswith("NO_ERRORS"), "", device)


def held(entry: Entry) -> frozenset[str]:
    """Return the VIOLATIONS that throttle the GPU right now."""
    status = {name: text(entry, "throttle", f"{name}_violation_status").upper() for name in VIOLATIONS}
    return frozenset(name for name in VIOLATIONS if status[name] == "ACTIVE")


def of_replays(
    earlier: Sequence[Entry], later: Sequence[Entry], devices: Mapping[int, str]
) -> Iterator[Measurement]:
    """Yield the replays of each PCIe link between two readings."""
    before = {int(entry["gpu"]): count(entry, "pcie", "replay_count") for entry in earlier}
    for entry in later:
        device, now = devices.get(int(entry["gpu"])), count(entry, "pcie", "replay_count")
        then = before.get(int(entry["gpu"]))
        if device is not None and now is not None and then is not None:
            yield Measurement("pcie_replays_more", max(0, now - then), "replays", device)


def of_links(rows: Sequence[Entry], devices: Mapping[int, str]) -> Iterator[Measurement]:
    """Yield how many of a GPU's links are up or down, from `xgmi -l`. Raises ParseError.

    Its letters (U up, D down, X disabled, or N/A) stand for the links in order, at most as many as there are
    GPUs (`xgmi_told`). They do not show where a link leads; links that a machine has not wired may read D.

    From ROCm 7.1 on they stand for the links to each GPU, including itself (SELF): U/U is two links. A state
    without room is N/A, at one end or both; `xgmi_down` counts reported states other than up, by the worse
    end."""
    reported = {device: _states(row) for row in rows if (device := devices.get(int(row["gpu"])))}
    if not any("SELF" in states for states in reported.values()):
        for device, states in reported.items():
            if {"U", "D", "X"} & set(states):
                yield Measurement("xgmi_up", states.count("U"), "links", device)
                yield Measurement("xgmi_told", len(states), "links", device)
        return
    names = [devices.get(int(row["gpu"]), "") for row in rows]
    letters = {
        (one, other): state.split("/")
        for one, states in reported.items()
        for other, state in zip(names, states, strict=False)
        if set(state.split("/")) <= {"U", "D", "X"}
    }
    for one in reported:
        if any(one in pair for pair in letters):
            down = [max(_down(letters.get(pair, ())) for pair in ((one, at), (at, one))) for at in names]
            yield Measurement("xgmi_down", sum(down), "links", one)
            own = [state for pair, state in letters.items() if pair[0] == one]
            if own:
                yield Measurement("xgmi_up", sum(state.count("U") for state in own), "links", one)


def _down(states: Sequence[str]) -> int:
    return len(states) - states.count("U")


def _states(row: Entry) -> list[str]:
    states = within(row, "link_status")
    if not isinstance(states, list) or not all(isinstance(state, str) for state in states):
        raise ParseError(
            "amd-smi xgmi -l gives a GPU without the states of its links", "report the new format"
        )
    return [state.upper() for state in states]


def of_processes(rows: Sequence[Entry], devices: Mapping[int, str]) -> Iterator[Measurement]:
    """Yield the programs on each GPU as text; empty if there are none."""
    for row in rows:
        device, listed = devices.get(int(row["gpu"])), within(row, "process_list")
        if "process_info" in row:  # ROCm 6.1 gives the last of several programs
            listed = [row]
        if device is None or not isinstance(listed, list):
            continue
        programs = [found for found in (_program(one) for one in listed) if found]
        yield Measurement("processes", ", ".join(programs[:4]), "", device)


def _program(entry: Any) -> str:
    info = within(entry, "process_info")
    if not isinstance(info, dict):
        return ""  # a sentence: No running processes detected
    pid, name = count(info, "pid"), text(info, "name")
    watches = any(agent in name for agent in _AGENTS)
    return "" if pid is None or watches else f"{name or 'a program'} ({pid})"
