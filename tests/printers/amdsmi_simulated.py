"""Comparison of the simulator's amd-smi with AMD's own on the same values, element by element."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from provision.checks.vendors.amd.smi import number, within
from tests.lab_silicon.silicon import Silicon
from tests.printers import amdsmi_values
from tests.printers.amdsmi import AmdSmi
from tests.printers.amdsmi_values import CURRENT, EMERGENCY, HOTSPOT, VRAM, Machine

COMMANDS = {
    "list": ("list",),
    "static": ("static", "--asic", "--bus", "--vram", "--ras", "--limit"),
    "metric": ("metric", "--usage", "--power", "--temperature", "--pcie", "--ecc", "--mem-usage"),
    "throttle": ("metric", "--throttle"),
    "process": ("process",),
    "bad-pages": ("bad-pages",),
    "xgmi": ("xgmi", "-l"),
}
# amdsmi_gpu_block_t
_BLOCKS = {
    "UMC": 1,
    "SDMA": 2,
    "GFX": 4,
    "MMHUB": 8,
    "ATHUB": 16,
    "PCIE_BIF": 32,
    "HDP": 64,
    "XGMI_WAFL": 128,
}
_KINDS = ("correctable", "uncorrectable", "deferred")
Documents = Mapping[str, Any]


def commands(release: str) -> list[str]:
    """Return the commands with options that this release supports."""
    new = ("throttle", "xgmi")
    return [name for name in COMMANDS if release != "6.1.2" or name not in new]


def simulated(node: Silicon, release: str) -> dict[str, Any]:
    """Return the simulator's documents, by command."""
    return {
        name: json.loads(node.printed("amd-smi", *COMMANDS[name], "--json")) for name in commands(release)
    }


def real(program: AmdSmi, machine: Machine, release: str) -> dict[str, Any]:
    """Return the documents of AMD's program, by command."""
    program.forget()
    return {
        name: json.loads(program.run(machine, *COMMANDS[name], "--json").stdout) for name in commands(release)
    }


def _gpus(document: Any) -> list[Any]:
    nested = document.values() if isinstance(document, dict) else [document]
    return next(iter(nested))


def machine_like(sku: str, release: str, printed: Documents) -> Machine:
    """Build a table with the values in the simulator's output."""
    addresses = [entry["bdf"] for entry in _gpus(printed["list"])]
    data = amdsmi_values.machine(sku, release).sku
    buses = tuple(int(address[:4] + address[5:7], 16) for address in addresses)
    machine = Machine(sku, data, release, len(addresses), buses=buses)
    for index in range(machine.count):
        _listed(machine, index, _gpus(printed["list"])[index])
        _static(machine, index, _gpus(printed["static"])[index])
        _metric(machine, index, _gpus(printed["metric"])[index])
        if machine.links_per_pair:  # the library has as many entries as GPUs, whatever the number of links
            machine.set("get_gpu_xgmi_link_status", index, total_links=min(machine.count, 8))
        if "throttle" in printed:
            _throttle(machine, index, _gpus(printed["throttle"])[index]["throttle"])
    return machine


def _listed(machine: Machine, index: int, entry: Any) -> None:
    machine.set("get_gpu_device_uuid", index, a2=entry["uuid"])
    names = {"kfd_id": "kfd_id", "node_id": "node_id", "current_partition_id": "partition_id"}
    values = {name: entry[key] for name, key in names.items() if key in entry}
    machine.set("get_gpu_kfd_info", index, **values)


def _static(machine: Machine, index: int, entry: Any) -> None:
    asic, ras = entry["asic"], entry["ras"]
    machine.set("get_gpu_asic_info", index, market_name=asic["market_name"], oam_id=asic["oam_id"])
    machine.set("get_gpu_asic_info", index, asic_serial=asic["asic_serial"][2:])
    if machine.since("7"):
        machine.set("get_gpu_asic_info", index, subsystem_id=int(asic["subsystem_id"], 16))
        if ras["bad_page_threshold"] == "N/A":
            machine.unsupported("get_gpu_bad_page_threshold", index)
        else:
            machine.set("get_gpu_bad_page_threshold", index, a1=ras["bad_page_threshold"])
    flags = 8 if ras["poison_schema"] == "ENABLED" else 0
    eeprom = int(ras["eeprom_version"], 16)
    machine.set(
        "get_gpu_ras_feature_info", index, ras_eeprom_version=eeprom, ecc_correction_schema_flag=flags
    )
    slot = {"PCIE": 0, "OAM": 1}[entry["bus"]["slot_type"]]
    machine.set("get_pcie_info", index, pcie_static__slot_type=slot)
    for block, state in ras["ecc_block_state"].items():
        value = {"ENABLED": amdsmi_values.ENABLED, "DISABLED": amdsmi_values.DISABLED}[state]
        machine.set("get_gpu_ras_block_features_enabled", index, _BLOCKS[block], a2=value)
    for kind in (0, 1):
        machine.set("get_gpu_memory_total", index, kind, a2=entry["vram"]["size"]["value"] << 20)
    if machine.since("7"):
        kind = {"HBM": 1, "HBM2E": 3, "HBM3": 4, "HBM3E": 5}[entry["vram"]["type"]]
        machine.set("get_gpu_vram_info", index, vram_type=kind, vram_size=entry["vram"]["size"]["value"])
    else:
        machine.set("get_gpu_vram_info", index, vram_size_mb=entry["vram"]["size"]["value"])
    first = within(entry, "limit", "ppt0")
    names = ("socket_power_limit", "max_power_limit") if first else ("socket_power", "max_power")
    now, most = (int(number(first or entry["limit"], name) or 0) for name in names)
    machine.set("get_power_cap_info", index, 0, power_cap=now * 10**6, max_power_cap=most * 10**6)
    heat = {"slowdown": amdsmi_values.CRITICAL, "shutdown": EMERGENCY}
    for word, metric in heat.items():
        degrees = number(entry, "limit", f"{word}_hotspot_temperature")
        machine.set("get_temp_metric", index, HOTSPOT, metric, a3=degrees)


def _metric(machine: Machine, index: int, entry: Any) -> None:
    temperatures = {HOTSPOT: "hotspot", VRAM: "mem", amdsmi_values.EDGE: "edge"}
    for kind, name in temperatures.items():
        degrees = number(entry, "temperature", name)
        if degrees is not None:
            machine.set("get_temp_metric", index, kind, CURRENT, a3=degrees)
    usage = {name: number(entry, "usage", name) for name in ("gfx_activity", "umc_activity")}
    machine.set("get_gpu_activity", index, **usage)
    absent = amdsmi_values.ABSENT[32 if machine.since("7") else 16]
    watts = int(number(entry, "power", "socket_power") or absent)
    name = "current_socket_power" if machine.mi300 else "average_socket_power"
    machine.set("get_power_info", index, gfx_voltage=amdsmi_values.ABSENT[16], **{name: watts})
    if machine.since("7"):
        machine.set("get_power_info", index, socket_power=watts)
    link = entry["pcie"]
    for name in ("replay", "l0_to_recovery", "replay_roll_over", "nak_sent", "nak_received"):
        value = link[f"{name}_count"]
        if value != "N/A":
            machine.set("get_pcie_info", index, **{f"pcie_metric__pcie_{name}_count": value})
    width, speed = link["width"], int(link["speed"]["value"] * 1000)
    machine.set("get_pcie_info", index, pcie_metric__pcie_width=width, pcie_metric__pcie_speed=speed)
    if isinstance(link["bandwidth"], dict):
        machine.set("get_pcie_info", index, pcie_metric__pcie_bandwidth=link["bandwidth"]["value"])
    errors = {f"{kind}_count": entry["ecc"][f"total_{kind}_count"] for kind in _KINDS}
    machine.set("get_gpu_total_ecc_count", index, **errors)
    for kind in (0, 1):
        used = int(number(entry, "mem_usage", "used_vram") or 0)
        machine.set("get_gpu_memory_usage", index, kind, a2=used << 20)


def _throttle(machine: Machine, index: int, entry: Any) -> None:
    names = {"prochot": "prochot_thrm", "ppt": "ppt_pwr", "socket_thermal": "socket_thrm"}
    names |= {"vr_thermal": "vr_thrm", "hbm_thermal": "hbm_thrm"}
    if not machine.mi300:
        return
    values = {"acc_counter": entry["accumulation_counter"]}
    for name, short in names.items():
        values[f"acc_{short}"] = entry[f"{name}_accumulated"]
        values[f"per_{short}"] = number(entry, f"{name}_violation_activity")
        values[f"active_{short}"] = int(entry[f"{name}_violation_status"] == "ACTIVE")
    machine.set("get_violation_status", index, **values)


def elements(document: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, value) of each element; list entries (GPUs, links) are numbered."""
    if isinstance(document, dict) and document:
        for name, value in document.items():
            yield from elements(value, f"{path}/{name}")
    elif isinstance(document, list) and document:
        for place, value in enumerate(document):
            yield from elements(value, f"{path}/{place}")
    else:
        yield path, json.dumps(document)


def differences(ours: Any, theirs: Any) -> Counter[str]:
    """Count `+ PATH: VALUE` (only the simulator's) and `- PATH: VALUE` (only AMD's); `N` is a GPU number."""
    mine, real = dict(elements(_gpus(ours))), dict(elements(_gpus(theirs)))
    found: Counter[str] = Counter()
    for sign, here, there in (("+", mine, real), ("-", real, mine)):
        for path, value in here.items():
            if there.get(path) != value:
                found[f"{sign} {_without_number(path)}: {value if path in there else 'only here'}"] += 1
    return found


def _without_number(path: str) -> str:
    return "/".join("N" if part.isdecimal() else part for part in path.split("/"))


@cache
def listed() -> dict[tuple[str, str, str], str]:
    """Return (release, command, difference) → reason, from amdsmi_differences.yml."""
    file = Path(__file__).with_name("amdsmi_differences.yml")
    return {
        (release, entry["command"], line): entry["why"]
        for entry in yaml.safe_load(file.read_text(encoding="utf-8"))
        for release in entry["releases"]
        for line in entry["lines"]
    }
