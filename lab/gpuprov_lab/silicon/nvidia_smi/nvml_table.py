"""The node's current NVML values, from which NVIDIA's own nvidia-smi prints (see real.py)."""

import telemetry
from settings import COMPUTE_MODES

from nvidia_smi import tree_fabric as fabric
from nvidia_smi.mig import mig_uuid
from nvidia_smi.mig_profiles import find, profiles, usable
from nvidia_smi.nvml_values import LOST, MIB, NOT_SUPPORTED, RESET_REQUIRED, UNKNOWN, Machine

NO_DRIVER, MISMATCH = 9, 18  # of nvml.h, like _ERRORS, which translates the simulator's terms
_ERRORS = {"GPU is lost": LOST, "GPU requires reset": RESET_REQUIRED}
_STATUS = {"N/A": 0, "Success": 0, "Insufficient Resources": 23}
_REASONS = {"hw_thermal": 0x48, "hw_power_brake": 0x88, "sw_thermal": 0x20}
# Private functions of nvidia-smi by number: a mode of IBM's machines, the voltage, and for 470 the position
# on the board.
_IBM, _VOLTAGE, _MODULE = 165, 209, 207
# Functions that the driver cannot answer for an unresponsive GPU (silent.py).
_OF_THE_GPU = (
    *(
        "GetTemperature",
        "GetPowerUsage",
        "GetMemoryInfo",
        "GetUtilization",
        "GetClockInfo",
        "GetGpuFabricInfo",
    ),
    *("GetRemappedRows", "GetRowRemapper", "GetMemoryErrorCounter", "GetTotalEcc", "GetSramEcc"),
)
_NOWHERE = 0xFFFFFFFF  # the instance of a process outside of MIG
_REFUSED = {"return": NOT_SUPPORTED}


def table(node) -> Machine:
    """Build the table of the node's GPUs, settings and faults, in the terms of nvml.h."""
    driver, library, gpus = node.driver(), node.library(), node.present()
    version = driver[0] if driver else library
    buses = [int(gpu["bus"], 16) for gpu in gpus]
    machine = Machine(node.sku_name, _described(node.sku), version, len(gpus), buses)
    if driver is None or version != library:
        code = MISMATCH if driver else NO_DRIVER
        for function in ("nvmlInitWithFlags", "nvmlInit_v2"):
            machine.rows[function] = {"return": code}
    _same_for_all(machine, node)
    moment, after = telemetry.Moment(node), len(gpus)
    for index, gpu in enumerate(gpus):
        one = telemetry.read(node, gpu, index, moment)
        for part in (_identity, _settings, _sensors, _links, _memory):
            for function, values in part(machine, node, one):
                name, _, arguments = function.partition(" ")
                machine.rows[f"{name} {index} {arguments}".rstrip()] = values
        machine.rows[f"exported {_MODULE} {index}"] = {"a1": gpu["slot"] + 1}
        machine.rows[f"exported {_VOLTAGE} {index}"] = {"a1": 712500 if one["idle"] else 912500}
        after = _mig(machine, node, one, after)
        if one["silent"]:
            machine.fail(index, _ERRORS.get(one["silent"], UNKNOWN), _OF_THE_GPU)
            for field in (185, 186):  # power
                machine.rows[f"nvmlDeviceGetFieldValues {index} {field} 0"] = {"return": LOST}
        if node.lost(gpu):
            for key in machine.rows:
                if key.startswith("nvmlDeviceGetHandleBy") and machine.rows[key].get("device") == index:
                    machine.rows[key] = {"return": LOST}
    return machine


def _described(sku) -> dict:
    """Describe a SKU in the terms of nvml_values.py."""
    made = sku["architecture"]
    return {
        "product_names": [sku["name"]],
        "architecture": "ada" if made == "Ada Lovelace" else made.lower(),
        "pci_ids": ["10de:" + sku["device"]],
        "memory_mib": sku["memory"],
        "nvlink": {"links": sku["links"], "gbs_per_link": 50} if sku["links"] else None,
        "fabric": sku["fabric"] or "none",
        "pcie": {"gen": sku["pcie"], "width": 16},
        "power_w": sku["power"],
    }


def _same_for_all(machine, node) -> None:
    sku, clocks = node.sku, fabric.graphics_clocks(node.sku)
    bar = {"Total": sku["bar1"], "Used": 1, "Free": sku["bar1"] - 1}
    sizes = {"memory.total": 0, "memory.used": 0, "memory.free": 0}
    shown = {f"clocksMHz[{place}]": clock for place, clock in enumerate(clocks)}
    machine.rows.update(
        {
            "nvmlDeviceGetDisplayMode": {"display": 1},
            "nvmlDeviceGetBoardPartNumber": {"partNumber": sku["board_part"]},
            "nvmlDeviceGetInforomImageVersion": {"version": sku["vbios_inforom"]},
            "nvmlDeviceGetGpuOperationMode": _REFUSED,
            f"exported {_IBM}": _REFUSED,
            "nvmlDeviceGetBAR1MemoryInfo": {f"bar1Memory.bar1{x}": mib * MIB for x, mib in bar.items()},
            "nvmlDeviceGetConfComputeProtectedMemoryUsage": sizes if machine.major < 550 else _REFUSED,
            "nvmlDeviceGetSupportedMemoryClocks": {"count": 1, "clocksMHz[0]": sku["memory_clock"]},
            "nvmlDeviceGetSupportedGraphicsClocks": dict(shown, count=len(clocks)),
        }
    )


def _identity(machine, node, one) -> list:
    gpu, sku = one["gpu"], node.sku
    rows = [
        ("nvmlDeviceGetSerial", {"serial": gpu["serial"]}),
        ("nvmlDeviceGetUUID", {"uuid": gpu["uuid"]}),
        ("nvmlDeviceGetMinorNumber", {"minorNumber": gpu["slot"]}),
        ("nvmlDeviceGetModuleId", {"moduleId": gpu["slot"] + 1}),
        ("nvmlDeviceGetVbiosVersion", {"version": gpu["vbios"]}),
        ("nvmlDeviceGetInforomVersion 1", {"version": "7.16" if sku["pcie"] > 4 else "6.16"}),
        ("nvmlDeviceGetInforomVersion 2", _REFUSED),
    ]
    for function in ("PciInfo_v3", "PciInfoExt"):  # the second one since 550
        known = machine.rows["nvmlDeviceGet{} {}".format(function, one["index"])]
        subsystem = int(sku["subsystem"] + "10de", 16)
        rows.append(("nvmlDeviceGet" + function, dict(known, **{"pci.pciSubSystemId": subsystem})))
    return rows


def _settings(_machine, node, one) -> list:
    settings = one["settings"]
    milliwatts = {"limit": int(settings["power"] * 1000)}
    mig = {"currentMode": int(settings["mig"]), "pendingMode": int(settings["mig_pending"])}
    rows = [
        ("nvmlDeviceGetPersistenceMode", {"mode": int(one["persistence"])}),
        ("nvmlDeviceGetComputeMode", {"mode": COMPUTE_MODES.index(settings["compute"])}),
        ("nvmlDeviceGetEccMode", {"current": int(settings["ecc"]), "pending": int(settings["ecc_pending"])}),
        ("nvmlDeviceGetMigMode", mig if profiles(node.sku_name) else _REFUSED),
        ("nvmlDeviceGetPowerManagementLimit", milliwatts),
        ("nvmlDeviceGetEnforcedPowerLimit", milliwatts),
        (
            "nvmlDeviceGetPowerManagementLimitConstraints",
            {"minLimit": node.sku["power_min"] * 1000, "maxLimit": node.sku["power"] * 1000},
        ),
    ]
    for kind in range(4):
        applied = settings["applications"][0 if kind == 2 else 1]
        best = node.sku["memory_clock" if kind == 2 else "clock"]
        now = best if kind == 2 else one["clock"]
        rows += [
            (f"nvmlDeviceGetClockInfo {kind}", {"clock": now}),
            (f"nvmlDeviceGetMaxClockInfo {kind}", {"clock": best}),
            (f"nvmlDeviceGetApplicationsClock {kind}", {"clockMHz": applied}),
            (f"nvmlDeviceGetDefaultApplicationsClock {kind}", {"clockMHz": best}),
        ]
    rows.append(("nvmlDeviceGetClock 0 3", {"clockMHz": node.sku["clock"]}))
    fields = {187: node.sku["power_min"] * 1000, 190: milliwatts["limit"], 192: milliwatts["limit"]}
    return rows + [_field(number, value) for number, value in fields.items()]


def _field(number: int, value, link: int = 0) -> tuple:
    values = {"value": value, "valueType": 1 if value >= 0 else 4} if value is not None else _REFUSED
    return (f"nvmlDeviceGetFieldValues {number} {link}", values)


def _sensors(machine, node, one) -> list:
    load, sku, drawn = one["load"], node.sku, int(round(one["power"], 2) * 1000)
    reasons = _REASONS.get(one["throttled"], 1 if one["idle"] else 4 if load else 0)
    busy = {"utilization.gpu": 100 if load else 0, "utilization.memory": 38 if load else 0}
    rows = [
        ("nvmlDeviceGetTemperature", {"temp": one["temperature"]}),
        ("nvmlDeviceGetPowerUsage", {"power": drawn}),
        ("nvmlDeviceGetUtilizationRates", _REFUSED if one["settings"]["mig"] else busy),
        ("nvmlDeviceGetCurrentClocksThrottleReasons", {"clocksThrottleReasons": reasons}),
        ("nvmlDeviceGetCurrentClocksEventReasons", {"clocksEventReasons": reasons}),
        ("nvmlDeviceGetCurrPcieLinkGeneration", {"currLinkGen": one["generation"]}),
        ("nvmlDeviceGetMaxPcieLinkWidth", {"maxLinkWidth": one["width_max"]}),
        ("nvmlDeviceGetCurrPcieLinkWidth", {"currLinkWidth": one["width"]}),
        ("nvmlDeviceGetPcieReplayCounter", {"value": one["replays"]}),
        ("nvmlDeviceGetPcieThroughput", {"value": 1215 if load else 0}),
    ]
    # Either the distance to a limit or the limit itself, by architecture and release.
    relative = machine.major >= 535 and sku["architecture"] in ("Hopper", "Blackwell", "Ada Lovelace")
    limits = (sku["temp_max"] + 7, sku["temp_max"] + 4, 95, sku["temp_max"])
    for kind, limit in enumerate(limits):
        rows.append((f"nvmlDeviceGetTemperatureThreshold {kind}", _REFUSED if relative else {"temp": limit}))
    left = {193: -8, 194: -2, 195: 0, 196: 0}
    fields = {number: value if relative else None for number, value in left.items()}
    fields.update({82: one["memory_temperature"], 185: drawn, 186: drawn})
    return rows + [_field(number, value) for number, value in fields.items()]


def _links(machine, node, one) -> list:
    slot, rows = one["gpu"]["slot"], []
    for link in range(node.sku["links"]):
        where = {"gpu": slot, "link": link}
        if node.fault("nvlink_down", **where):
            rows += [(f"nvmlDeviceGetNvLinkState {link}", {"isActive": 0})]
            rows += [_field(164, 0, link), _field(165, 0, link)]
            rows += [_field(84 + link if link < 6 else 126 + link, 0)] if link < 12 else []
        count = node.given("nvlink_errors", "count", 0, **where)
        wrong = count + node.given("nvlink_errors_old", "count", 0, **where)
        for kind, value in enumerate((count, count // 100, wrong)):
            rows += [
                (f"nvmlDeviceGetNvLinkErrorCounter {link} {kind}", {"counterValue": value}),
                _field(161 + kind, value, link),
            ]
    for function in ("nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV"):
        if function in machine.rows:
            state, status = one["fabric"]
            values = dict(machine.rows[function])
            values["gpuFabricInfo.state"] = 3 if state == "Completed" else 2
            values["gpuFabricInfo.status"] = _STATUS.get(status, UNKNOWN)
            values["gpuFabricInfo.healthMask"] = 1 if one["fabric_unhealthy"] == "bandwidth" else 2
            rows.append((function, values))
    return rows


def _memory(machine, node, one) -> list:
    kept, whole, used = (part * MIB for part in (node.sku["reserved"], one["memory"], one["used"]))
    sizes = {"memory.total": whole, "memory.used": used, "memory.free": whole - used - kept}
    ever, since, broken = one["uncorrectable_ever"], one["uncorrectable"], one["sram_ever"]
    sram = dict(machine.rows["nvmlDeviceGetSramEccErrorStatus"])
    sram.update(
        {"status.aggregateUncParity": broken, "status.bThresholdExceeded": int(one["sram_threshold"])}
    )
    used_up, (low, none) = 1 if one["remapped_uncorrectable"] else 0, one["remap_banks"]
    banks = {"Ampere": 640, "Hopper": 2560, "Blackwell": 4096, "Ada Lovelace": 192}[node.sku["architecture"]]
    histogram = {"max": banks - used_up - low - none, "high": used_up, "low": low, "none": none}
    remapped = {
        "corrRows": one["remapped_correctable"],
        "uncRows": one["remapped_uncorrectable"],
        "isPending": int(one["remap_pending"]),
        "failureOccurred": int(one["remap_failure"]),
    }
    rows = [
        ("nvmlDeviceGetMemoryInfo", sizes),
        ("nvmlDeviceGetMemoryInfo_v2", dict(sizes, **{"memory.reserved": kept})),
        ("nvmlDeviceGetRemappedRows", remapped),
        ("nvmlDeviceGetRowRemapperHistogram", {f"values.{name}": n for name, n in histogram.items()}),
        ("nvmlDeviceGetSramEccErrorStatus", sram),
    ]
    # Kind 1: uncorrected; span 1: over its lifetime; in 2: DRAM, in 7: SRAM.
    counted = {(0, 1, 2): one["corrected_ever"], (1, 0, 2): since, (1, 1, 2): ever, (1, 1, 7): broken}
    for (kind, span, where), count in counted.items():
        rows.append((f"nvmlDeviceGetMemoryErrorCounter {kind} {span} {where}", {"count": count}))
    for kind, span, count in ((0, 1, one["corrected_ever"]), (1, 0, since), (1, 1, ever)):
        rows.append((f"nvmlDeviceGetTotalEccErrors {kind} {span}", {"eccCounts": count}))
    return rows + _processes(machine, one)


def _processes(machine, one) -> list:
    known = fabric.running(one)
    values = {"infoCount": len(known)}
    for place, (pid, _, name, mib) in enumerate(known):
        numbers = {"pid": pid, "usedGpuMemory": mib * MIB}
        numbers.update({"gpuInstanceId": _NOWHERE, "computeInstanceId": _NOWHERE})
        values.update({f"infos[{place}].{field}": value for field, value in numbers.items()})
        machine.rows[f"nvmlSystemGetProcessName {pid}"] = {"name": name}
    return [(f"nvmlDeviceGetComputeRunningProcesses_{form}", values) for form in ("v2", "v3")]


def _mig(machine, node, one, after: int) -> int:
    """Add the MIG devices of a GPU as devices numbered from `after` on; returns the next number."""
    for place, each in enumerate(usable(one["settings"])):
        profile = find(node.sku_name, each["profile"])
        whole, decoders = int(profile["gib"] * 1024) * MIB, profile["decoders"]
        parts = {"multiprocessorCount": profile["processors"], "sharedCopyEngineCount": profile["engines"]}
        parts.update({"sharedDecoderCount": decoders, "sharedJpegCount": decoders})
        parts.update({"sharedOfaCount": profile["ofa"], "sharedEncoderCount": 0})
        sizes = {"memory.total": whole, "memory.used": 12 * MIB, "memory.free": whole - 12 * MIB}
        bar = {"Total": whole, "Used": 0, "Free": whole}
        known = {
            "MigDeviceHandleByIndex {} {}".format(one["index"], place): {"migDevice": after},
            f"DeviceHandleFromMigDeviceHandle {after}": {"device": one["index"]},
            f"Index {after}": {"index": place},
            f"GpuInstanceId {after}": {"id": each["id"]},
            f"ComputeInstanceId {after}": {"id": 0},
            f"UUID {after}": {"uuid": mig_uuid(one["gpu"], each)},
            f"Name {after}": {"name": "{} MIG {}".format(node.sku["name"], each["profile"])},
            f"Attributes_v2 {after}": {f"attributes.{name}": value for name, value in parts.items()},
            f"MemoryInfo {after}": sizes,
            f"MemoryInfo_v2 {after}": dict(sizes, **{"memory.reserved": 0}),
            f"BAR1MemoryInfo {after}": {f"bar1Memory.bar1{x}": n for x, n in bar.items()},
        }
        machine.rows.update({f"nvmlDeviceGet{words}": values for words, values in known.items()})
        machine.rows[f"nvmlDeviceIsMigDeviceHandle {after}"] = {"isMigDevice": 1}
        after += 1
    return after
