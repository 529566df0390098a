"""nvidia-smi --query-gpu and similar queries: CSV."""

import time

from nvidia_smi import silent
from nvidia_smi import tree_fabric as fabric
from nvidia_smi.mig_profiles import profiles

BAD_ARGUMENT = 2
DEPRECATED = "[Requested functionality has been deprecated]"

# field -> (unit or "", value of one reading as text)
_ON_OFF = {True: "Active", False: "Not Active"}


def fields_of(node, driver: str, one: dict) -> dict:
    sku, gpu = node.sku, one["gpu"]
    bus = "0000" + gpu["address"].upper()
    values = {
        "timestamp": ("", _now()),
        "driver_version": ("", driver),
        "count": ("", str(len(node.present()))),
        "index": ("", str(one["index"])),
        "name": ("", sku["name"]),
        "serial": ("", gpu["serial"]),
        "uuid": ("", gpu["uuid"]),
        "pci.bus_id": ("", bus),
        "pci.domain": ("", "0x0000"),
        "pci.bus": ("", "0x" + gpu["bus"]),
        "pci.device": ("", "0x00"),
        "pci.device_id": ("", f"0x{sku['device'].upper()}10DE"),
        "pci.sub_device_id": ("", f"0x{sku['subsystem'].upper()}10DE"),
        "vbios_version": ("", gpu["vbios"]),
        "compute_cap": ("", sku["capability"]),
        "pstate": ("", one["state"]),
        "persistence_mode": ("", "Enabled" if one["persistence"] else "Disabled"),
        "compute_mode": ("", one["settings"]["compute"].title()),
        "display_mode": ("", "Disabled"),
        "display_active": ("", "Disabled"),
        "accounting.mode": ("", "Disabled"),
        "fan.speed": ("%", "[N/A]"),
        "mig.mode.current": ("", _mig(node, one["settings"]["mig"])),
        "mig.mode.pending": ("", _mig(node, one["settings"]["mig_pending"])),
        "gsp.mode.current": ("", "Enabled"),
    }
    for part in (_sensors(sku, one, driver), _clocks(sku, one, driver), _pcie(sku, one), _errors(one)):
        values.update(part)
    return silent.fields(values, one["silent"]) if one["silent"] else values


def _mig(node, on: bool) -> str:
    return "[N/A]" if not profiles(node.sku_name) else "Enabled" if on else "Disabled"


def _enabled(on: bool) -> str:
    return "Enabled" if on else "Disabled"


def _fabric(label: str, text: str, driver: str) -> str:
    """Render a field of the fabric with its label, unless the driver is 590.48 or newer.
    535 to at least 580.95 print the label into the cell (`state  %s` and `cliqueId %u` in the programs)."""
    if text == "N/A":
        return "[N/A]"
    return f"{label} {text}" if int(driver.split(".")[0]) < 590 else text


def _sensors(sku, one: dict, driver: str) -> dict:
    settings = one["settings"]
    domain = [str(part) if one["fabric"][0] == "Completed" else "N/A" for part in one["domain"]]
    values = {
        "utilization.gpu": ("%", "[N/A]" if settings["mig"] else "100 %" if one["load"] else "0 %"),
        "utilization.memory": ("%", "[N/A]" if settings["mig"] else "38 %" if one["load"] else "0 %"),
        "temperature.gpu": ("", str(one["temperature"])),
        "temperature.memory": ("", str(one["memory_temperature"] or "N/A")),
        "temperature.gpu.tlimit": ("", str(one["tlimit"])),
        "power.management": ("", "Enabled"),
        "power.draw": ("W", f"{one['power']:.2f} W"),
        "power.draw.average": ("W", f"{one['power']:.2f} W"),
        "power.draw.instant": ("W", f"{one['power']:.2f} W"),
        "memory.total": ("MiB", f"{one['memory']} MiB"),
        "memory.reserved": ("MiB", f"{sku['reserved']} MiB"),
        "memory.used": ("MiB", f"{one['used']} MiB"),
        "memory.free": ("MiB", f"{one['memory'] - sku['reserved'] - one['used']} MiB"),
        "ecc.mode.current": ("", _enabled(settings["ecc"])),
        "ecc.mode.pending": ("", _enabled(settings["ecc_pending"])),
        "inforom.img": ("", sku["vbios_inforom"]),
        "fabric.state": ("", _fabric("state ", one["fabric"][0], driver)),
        "fabric.status": ("", _fabric("status", one["fabric"][1], driver)),
        "fabric.clusterUuid": ("", _fabric("clusterUuid", domain[0], driver)),
        "fabric.cliqueId": ("", _fabric("cliqueId", domain[1], driver)),
        "gpu_recovery_action": ("", one["recovery"]),
    }
    for limit in ("power.limit", "enforced.power.limit"):
        values[limit] = ("W", f"{settings['power']:.2f} W")
    for limit in ("power.default_limit", "power.max_limit"):
        values[limit] = ("W", f"{sku['power']}.00 W")
    values["power.min_limit"] = ("W", f"{sku['power_min']}.00 W")
    return values


def _clocks(sku, one: dict, driver: str) -> dict:
    values = {}
    applied = one["settings"]["applications"]
    for prefix, core, memory in (
        ("clocks.current", one["clock"], sku["memory_clock"]),
        ("clocks.max", sku["clock"], sku["memory_clock"]),
        ("clocks.applications", applied[1], applied[0]),
        ("clocks.default_applications", sku["clock"], sku["memory_clock"]),
    ):
        for kind in ("graphics", "sm", "video"):
            values[f"{prefix}.{kind}"] = ("MHz", f"{core} MHz")
        values[f"{prefix}.memory"] = ("MHz", f"{memory} MHz")
    if int(driver.split(".")[0]) >= 590:  # 580.105 answers with clocks, 590.44 with this
        for prefix in ("clocks.applications", "clocks.default_applications"):
            values[prefix + ".graphics"] = values[prefix + ".memory"] = ("MHz", DEPRECATED)
    for kind in ("graphics", "sm", "memory", "video"):
        values["clocks." + kind] = values["clocks.current." + kind]
    values["clocks.gr"], values["clocks.mem"] = values["clocks.graphics"], values["clocks.memory"]
    reasons = {
        "gpu_idle": (1, one["idle"]),
        "applications_clocks_setting": (2, False),
        "sw_power_cap": (4, bool(one["load"]) and not one["throttled"]),
        "hw_slowdown": (8, one["throttled"] in ("hw_thermal", "hw_power_brake")),
        "sync_boost": (16, False),
        "sw_thermal_slowdown": (32, one["throttled"] == "sw_thermal"),
        "hw_thermal_slowdown": (64, one["throttled"] == "hw_thermal"),
        "hw_power_brake_slowdown": (128, one["throttled"] == "hw_power_brake"),
    }
    mask = sum(bit for bit, active in reasons.values() if active)
    for prefix in ("clocks_event_reasons", "clocks_throttle_reasons"):
        values[prefix + ".active"] = ("", f"0x{mask:016X}")
        values[prefix + ".supported"] = ("", "0x00000000000001FF")
        for name, (_, active) in reasons.items():
            values[f"{prefix}.{name}"] = ("", _ON_OFF[active])
    return values


def _pcie(sku, one: dict) -> dict:
    best = str(sku["pcie"])
    return {
        "pcie.link.gen.current": ("", str(one["generation"])),
        "pcie.link.gen.gpucurrent": ("", str(one["generation"])),
        "pcie.link.gen.max": ("", best),
        "pcie.link.gen.gpumax": ("", best),
        "pcie.link.gen.hostmax": ("", best),
        "pcie.link.width.current": ("", str(one["width"])),
        "pcie.link.width.max": ("", str(one["width_max"])),
    }


def _errors(one: dict) -> dict:
    values = {}
    for span, corrected, uncorrected in (
        ("volatile", 0, one["uncorrectable"]),
        ("aggregate", one["corrected_ever"], one["uncorrectable_ever"]),
    ):
        for kind, count in (("corrected", corrected), ("uncorrected", uncorrected)):
            base = f"ecc.errors.{kind}.{span}"
            values[base + ".total"] = values[base + ".dram"] = values[base + ".device_memory"] = (
                "",
                str(count),
            )
            values[base + ".sram"] = ("", "0")
    values["retired_pages.pending"] = ("", "[N/A]")
    values["retired_pages.single_bit_ecc.count"] = values["retired_pages.double_bit.count"] = ("", "[N/A]")
    return values


def gpu_rows(node, driver: str, readings: list, fields: str, form: str) -> int:
    """Run --query-gpu=FIELD,…"""
    return _table([fields_of(node, driver, one) for one in readings], fields, form)


def remapped_rows(node, driver: str, readings: list, fields: str, form: str) -> int:
    """Run --query-remapped-rows=FIELD,…"""
    del node, driver
    rows = []
    for one in readings:
        rows.append(
            {
                "gpu_name": ("", ""),
                "gpu_bus_id": ("", "0000" + one["gpu"]["address"].upper()),
                "gpu_serial": ("", one["gpu"]["serial"]),
                "gpu_uuid": ("", one["gpu"]["uuid"]),
                "remapped_rows.correctable": ("", str(one["remapped_correctable"])),
                "remapped_rows.uncorrectable": ("", str(one["remapped_uncorrectable"])),
                "remapped_rows.pending": ("", str(int(one["remap_pending"]))),
                "remapped_rows.failure": ("", str(int(one["remap_failure"]))),
            }
        )
    return _table(rows, fields, form)


def compute_apps(node, driver: str, readings: list, fields: str, form: str) -> int:
    """Run --query-compute-apps=FIELD,…, which lists the running load tools."""
    del driver
    rows = [
        {
            "gpu_name": ("", node.sku["name"]),
            "gpu_bus_id": ("", "0000" + one["gpu"]["address"].upper()),
            "gpu_serial": ("", one["gpu"]["serial"]),
            "gpu_uuid": ("", one["gpu"]["uuid"]),
            "pid": ("", str(pid)),
            "process_name": ("", name),
            "name": ("", name),
            "used_gpu_memory": ("MiB", f"{mib} MiB"),
            "used_memory": ("MiB", f"{mib} MiB"),
        }
        for one in readings
        for pid, _, name, mib in fabric.running(one)
    ]
    return _table(rows, fields, form) if rows else 0


def supported_clocks(node, driver: str, readings: list, fields: str, form: str) -> int:
    """Run --query-supported-clocks=FIELD,…: a row for each pair of clocks, GPU by GPU."""
    del driver
    rows = [
        {
            "timestamp": ("", _now()),
            "gpu_name": ("", node.sku["name"]),
            "gpu_bus_id": ("", "0000" + one["gpu"]["address"].upper()),
            "gpu_serial": ("", one["gpu"]["serial"]),
            "gpu_uuid": ("", one["gpu"]["uuid"]),
            "memory": ("MHz", f"{node.sku['memory_clock']} MHz"),
            "graphics": ("MHz", f"{clock} MHz"),
        }
        for one in readings
        for clock in fabric.graphics_clocks(node.sku)
    ]
    return _table(rows, fields, form)


def _table(rows: list, fields: str, form: str) -> int:
    names = [name.strip() for name in fields.split(",")]
    for name in names:
        if name not in rows[0]:
            print(f'Field "{name}" is not a valid field to query.\n')
            return BAD_ARGUMENT
    options = form.split(",")
    units = "nounits" not in options
    if "noheader" not in options:
        print(", ".join(name + (f" [{rows[0][name][0]}]" if rows[0][name][0] else "") for name in names))
    for row in rows:
        print(", ".join(text if units else _bare(unit, text) for unit, text in (row[name] for name in names)))
    return 0


def _bare(unit: str, text: str) -> str:
    return text[: -len(unit) - 1] if unit and text.endswith(" " + unit) else text


def _now() -> str:
    return time.strftime("%Y/%m/%d %H:%M:%S.000")
