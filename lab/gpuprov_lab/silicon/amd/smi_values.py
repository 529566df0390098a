"""amd-smi's values of a GPU: `static` (identity and settings) and `metric` (current readings).

Sources of the forms: smi.py.
"""

import time

import kernel_log

from amd import readings
from amd.products import BLOCKS

PARTS = {
    "static": ("asic", "bus", "vbios", "limit", "driver", "board", "ras", "partition", "numa", "vram"),
    "metric": (
        *("usage", "power", "clock", "temperature", "pcie", "ecc", "ecc_blocks", "xgmi_err", "energy"),
        *("mem_usage", "throttle"),
    ),
}
SHORT = {
    **{"-a": "asic", "-b": "bus", "-V": "vbios", "-l": "limit", "-d": "driver", "-r": "ras", "-v": "vram"},
    "metric": {
        "-p": "power",
        "-t": "temperature",
        "-P": "pcie",
        "-e": "ecc",
        "-k": "ecc_blocks",
        "-m": "mem_usage",
    },
}


def unit(value, unit: str):
    return {"value": value, "unit": unit} if value != "N/A" else "N/A"


def _chosen(command: str, words: list) -> tuple:
    short = SHORT["metric"] if command == "metric" else SHORT
    named = {short.get(word, word.lstrip("-").replace("-", "_")) for word in words}
    return tuple(part for part in PARTS[command] if part in named) or PARTS[command]


def absent(node, word: str, release: tuple) -> bool:
    """Whether `static` lacks this section in a hypervisor's guest (ROCm 6.2, 7.2: amdsmi_parser.py)."""
    part = SHORT.get(word, word.lstrip("-"))
    return bool(node.fault("guest")) and (part in ("limit", "numa") or (part == "ras" and release < (6, 4)))


def static(node, gpus, words, release) -> list:
    parts = [part for part in _chosen("static", words) if not absent(node, part, release)]
    return [{"gpu": i, **_static_of(node, gpu, parts, release)} for i, gpu in enumerate(gpus)]


def _static_of(node, gpu, parts: list, release: tuple) -> dict:
    sku, identity = node.sku, readings.identity(node, gpu)
    link = readings.pcie(node, gpu)
    power = readings.power_limit(node, gpu)
    most = 0 if readings.second(node, gpu) else sku["power"]
    compute, memory = readings.partition(node, gpu)
    version = node.folder / "sys_module/amdgpu/version"
    values = {
        "asic": {
            "market_name": sku["name"] if release >= (7, 0) else sku["product"],
            "vendor_id": "0x1002",
            "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]",
            "subvendor_id": "0x1002",
            "device_id": "0x" + sku["device"],
            "subsystem_id": "0x" + sku["subsystem"],
            "rev_id": "0x00",
            "asic_serial": "0x" + identity["unique_id"].upper(),
            "oam_id": identity["oam"],
            "num_compute_units": sku["units"],
            "target_graphics_version": sku["gfx"],
        },
        "bus": {
            "bdf": gpu["address"],
            "max_pcie_width": link["width_max"],
            "max_pcie_speed": unit({4: 16, 5: 32}[sku["pcie"]], "GT/s"),
            "pcie_interface_version": f"Gen {sku['pcie']}",
            "slot_type": "PCIE" if gpu["integrated"] else "OAM",
        },
        "vbios": {"name": "N/A" if gpu["integrated"] else sku["name"], "part_number": gpu["vbios"]},
        "limit": {
            "max_power": unit(most, "W"),
            "min_power": unit(0, "W"),
            "socket_power": unit(power, "W"),
            "slowdown_hotspot_temperature": unit(sku["temp_limit"], "C"),
            "shutdown_hotspot_temperature": unit(sku["temp_limit"] + 5, "C"),
        },
        "driver": {"name": "amdgpu", "version": version.read_text().strip() if version.exists() else "N/A"},
        "board": {
            "model_number": sku["model"],
            "product_serial": "N/A" if gpu["integrated"] else identity["serial"],
            "fru_id": "N/A",
            "product_name": sku["product"],
            "manufacturer_name": "AMD",
        },
        "ras": {
            "eeprom_version": "0x20000",
            "bad_page_threshold": sku["bad_page_threshold"],
            "parity_schema": "DISABLED",
            "single_bit_schema": "DISABLED",
            "double_bit_schema": "DISABLED",
            "poison_schema": "ENABLED",
            "ecc_block_state": {
                block.upper(): "ENABLED" if block in sku["ras"] else "DISABLED" for block in BLOCKS
            },
        },
        "numa": {"node": gpu["numa"], "affinity": gpu["numa"]},
        "vram": {"type": sku["vram_type"], "vendor": "HYNIX", "size": unit(_mib(node, gpu), "MB")},
    }
    if release >= (7, 2):
        values["limit"]["ppt0"] = {
            "socket_power_limit": unit(power, "W"),
            "max_power_limit": unit(most, "W"),
            "min_power_limit": unit(0, "W"),
        }
        values["limit"]["ppt1"] = dict.fromkeys(values["limit"]["ppt0"], "N/A")
        for name in ("max_power", "min_power", "socket_power"):
            del values["limit"][name]
    if release < (6, 4):  # printed by 7.2, not by 6.3
        del values["ras"]["bad_page_threshold"]
    if release < (6, 2):
        for name in ("subsystem_id", "num_compute_units", "target_graphics_version"):
            del values["asic"][name]
        values["asic"]["rev_id"] = "0x0"
        values["vram"]["type"] = "HBM"  # its enum has no generations of HBM
    if compute and release < (7, 0):
        values["partition"] = {"compute_partition": compute, "memory_partition": memory}
    return {part: values[part] for part in parts if part in values}


def _mib(node, gpu) -> int:
    return readings.vram_bytes(node, gpu) // 2**20


def metric(node, gpus, words, release) -> list:
    parts = _chosen("metric", words)
    return [{"gpu": i, **_metric_of(node, gpu, parts, release)} for i, gpu in enumerate(gpus)]


def _metric_of(node, gpu, parts: tuple, release: tuple) -> dict:
    sku, sensors, link = node.sku, readings.sensors(node, gpu), readings.pcie(node, gpu)
    counted = readings.errors(node, gpu)
    total = {kind: sum(block[kind] for block in counted.values()) for kind in readings.KINDS}
    memory = counted.get("umc", dict.fromkeys(readings.KINDS, 0))
    clock = {
        "clk": unit(sensors["clock"], "MHz"),
        "min_clk": unit(sku["clock_idle"], "MHz"),
        "max_clk": unit(sku["clock"], "MHz"),
        "clk_locked": "DISABLED",
        "deep_sleep": "ENABLED",
    }
    second = readings.second(node, gpu)
    held = any(sensors["violations"].values())
    resetting = node.fault("gpu_resetting", gpu=gpu["slot"])
    values = {
        "usage": {
            "gfx_activity": unit(sensors["activity"], "%"),
            "umc_activity": unit(sensors["activity"] // 3, "%"),
            "mm_activity": "N/A",
        },
        "power": {
            "socket_power": unit("N/A" if second else sensors["power"], "W"),
            "gfx_voltage": "N/A",
            "soc_voltage": "N/A",
            "mem_voltage": "N/A",
            # Products that report the throttling limit do not report it here.
            "throttle_status": "N/A" if sku["violations"] else ("THROTTLED" if held else "UNTHROTTLED"),
            "power_management": "ENABLED",
        },
        "clock": {"gfx_0": clock},
        "temperature": {
            "edge": unit(sensors["edge"] if sku["edge"] else "N/A", "C"),
            "hotspot": unit(sensors["hotspot"], "C"),
            "mem": unit(sensors["memory"], "C"),
        },
        "pcie": {
            "width": link["width"],
            "speed": unit({1: 2.5, 2: 5, 3: 8, 4: 16, 5: 32, 6: 64}[link["generation"]], "GT/s"),
            "bandwidth": unit(0, "Mb/s") if sku["violations"] else "N/A",
            "replay_count": link["replays"],
            "l0_to_recovery_count": 1 if sku["violations"] else "N/A",
            "replay_roll_over_count": 0 if sku["violations"] else "N/A",
            "nak_sent_count": 0 if sku["violations"] else "N/A",
            "nak_received_count": 0 if sku["violations"] else "N/A",
        },
        "ecc": {
            "total_correctable_count": total["ce"],
            "total_uncorrectable_count": total["ue"],
            "total_deferred_count": total["de"],
            "cache_correctable_count": total["ce"] - memory["ce"],
            "cache_uncorrectable_count": total["ue"] - memory["ue"],
        },
        "ecc_blocks": {
            block.upper(): {
                "correctable_count": counts["ce"],
                "uncorrectable_count": counts["ue"],
                "deferred_count": counts["de"],
            }
            for block, counts in counted.items()
        },
        "xgmi_err": "N/A",
        "energy": {"total_energy_consumption": unit(float(_awake(node)) * sensors["power"], "J")},
        "mem_usage": {
            "total_vram": unit(_mib(node, gpu), "MB"),
            "used_vram": unit(283, "MB"),
            "free_vram": unit(_mib(node, gpu) - 283, "MB"),
        },
        "throttle": _throttle(node, gpu, sensors["violations"], release),
    }
    if resetting:
        values["ecc"] = dict.fromkeys(values["ecc"], "N/A")
        values["ecc_blocks"] = "N/A"
    return {part: values[part] for part in parts if part in values}


def _awake(node) -> int:
    return int(time.time() - kernel_log.boot_time(node.folder)) + 1


def _throttle(node, gpu, violations: dict, release: tuple):
    if release < (6, 3):
        return "N/A"
    if not node.sku["violations"]:
        names = ["accumulation_counter"]
        for kind in ("accumulated", "violation_status", "violation_activity"):
            names += [f"{name}_{kind}" for name in violations]
        return dict.fromkeys(names, "N/A")
    values = {"accumulation_counter": readings.STEPS}
    values.update(
        (f"{name}_accumulated", n) for name, n in readings.accumulated(node, gpu, violations).items()
    )
    values.update((f"{n}_violation_status", "ACTIVE" if v else "NOT ACTIVE") for n, v in violations.items())
    values.update((f"{n}_violation_activity", unit(v, "%")) for n, v in violations.items())
    return values
