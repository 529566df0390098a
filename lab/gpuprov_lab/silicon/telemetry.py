"""Current readings of a GPU's sensors and counters, for every output form of nvidia-smi."""

import math
import time

import noise
from settings import Settings

CUDA = [
    (450, "11.0"), (460, "11.2"), (470, "11.4"), (510, "11.6"), (515, "11.7"), (520, "11.8"), (525, "12.0"),
    (530, "12.1"), (535, "12.2"), (545, "12.3"), (550, "12.4"), (555, "12.5"), (560, "12.6"),
    (565, "12.7"), (570, "12.8"), (575, "12.9"), (580, "13.0"), (590, "13.1"), (595, "13.2"), (610, "13.3"),
]  # fmt: skip
HEATING_SECONDS = 25.0


def cuda_version(driver: str) -> str:
    """Return the newest CUDA version that a driver supports (CUDA toolkit release notes)."""
    branch = int(driver.split(".")[0])
    return next((cuda for known, cuda in reversed(CUDA) if branch >= known), "10.2")


class Moment:
    """Data shared by the readings of all GPUs, which is read only once."""

    def __init__(self, node) -> None:
        self.loads = node.loads()
        self.settings = Settings(node)
        self.fabric_ready = node.fabric_ready()


def read(node, gpu, index: int, moment: Moment) -> dict:
    """Read everything about one GPU: numbers without units, booleans, texts such as the fabric state."""
    slot, sku = gpu["slot"], node.sku
    load = moment.loads.get(slot)
    throttle = node.fault("throttle", gpu=slot) if load else None
    settings = moment.settings.of(gpu)
    values = {
        "index": index,
        "gpu": gpu,
        "load": load,
        "persistence": settings["persistence"],
        "settings": settings,
        "silent": node.silent(gpu),
    }
    _changed(node, slot, values)
    values.update(_heat(node, gpu, load, throttle, values["settings"]))
    values.update(_link(node, slot, load))
    values.update(_errors(node, slot))
    values.update(_left_on_it(node, slot))
    values["memory"] = node.given("memory_small", "mib", sku["memory"], gpu=slot)
    values["used"] = (
        int(values["memory"] * 0.9) if load else int(1 + 2 * noise.fraction(node.seed, slot, "used"))
    )
    values["state"] = "P0"
    values["idle"] = load is None
    values["fabric"] = _fabric(node, slot, moment.fabric_ready)
    values["domain"] = _domain(node)
    values["recovery"] = _recovery(node, slot, values["remap_pending"])
    values["fabric_unhealthy"] = node.given("fabric_unhealthy", "what", "", gpu=slot)
    return values


def _left_on_it(node, slot: int) -> dict:
    """Return processes other than the lab's loads: [(pid, type, name, MiB)]."""
    found = [
        (one["pid"], "C", one["name"], one["mib"])
        for one in node.faults
        if one["id"] == "gpu_process" and one["gpu"] == slot
    ]
    agent = node.fault("monitoring_agent")
    return {"processes": [*found, (1207, "C", agent["name"], 4)] if agent else found}


def _changed(node, slot: int, values: dict) -> None:
    """Apply settings that were changed on this GPU, or by the site on all of them."""
    settings = values["settings"]
    cap = node.fault("power_limit", gpu=slot) or node.fault("power_cap_site")
    if cap:
        settings["power"] = float(round(node.sku["power"] * cap["percent"] / 100.0))
    if node.fault("gpu_mode", gpu=slot, mode="ecc_off"):
        settings["ecc"] = settings["ecc_pending"] = False
    if node.fault("gpu_mode", gpu=slot, mode="exclusive"):
        settings["compute"] = "EXCLUSIVE_PROCESS"
    if node.fault("gpu_mode", gpu=slot, mode="persistence_off") or node.fault("slow_first_call"):
        values["persistence"] = False


def _heat(node, gpu, load, throttle, settings) -> dict:
    sku, slot = node.sku, gpu["slot"]
    extra = node.given("hot_gpu", "degrees", 0, gpu=slot)
    extra += node.given("airflow_gradient", "degrees", 0) * slot / float(max(1, len(node.gpus) - 1))
    wobble = noise.jitter(node, "temperature", slot, 0.02)
    cold = sku["temp_idle"] + extra * 0.4
    if load is None:
        power = sku["power_idle"] * noise.jitter(node, "power", slot, 0.015)
        return _sensors(sku, cold * wobble, power, sku["clock_idle"], None)
    simulated = (time.time() - load["since"]) * node.speed
    warmth = 1.0 - math.exp(-simulated / HEATING_SECONDS)
    temperature = (cold + (sku["temp_load"] + extra - cold) * warmth) * wobble
    clock = round(sku["clock"] * 0.93 * noise.jitter(node, "clock", slot, 0.006) / 15) * 15
    if settings["locked"]:
        clock = min(clock, settings["locked"][1])
    clock = min(clock, settings["applications"][1])
    power = min(sku["power"], settings["power"]) * 0.975 * noise.jitter(node, "power", slot, 0.006)
    clock = int(clock * capped(node, settings) // 15) * 15
    if simulated < node.given("power_cap_brief", "seconds", 0, gpu=slot) and not throttle:
        throttle = {"factor": 0.9, "reason": "hw_power_brake"}
    if throttle:
        clock, power = clock * throttle["factor"], power * (0.4 + 0.5 * throttle["factor"])
        if throttle["reason"] != "hw_power_brake":
            temperature = max(temperature, sku["temp_max"] + 1)
    return _sensors(
        sku, temperature, min(power, settings["power"]), int(clock), throttle and throttle["reason"]
    )


def capped(node, settings: dict) -> float:
    """Return the fraction of the clock under a lowered limit: power grows with about its third power."""
    return (settings["power"] / float(node.sku["power"])) ** (1 / 3.0)


def _sensors(sku, temperature: float, power: float, clock: int, throttled) -> dict:
    return {
        "temperature": round(temperature),
        # The driver shows no sensor of GDDR6: 595 printed N/A for an L40S.
        "memory_temperature": None if sku["architecture"] == "Ada Lovelace" else round(temperature) + 3,
        "tlimit": sku["temp_max"] - round(temperature),
        "power": power,
        "clock": clock,
        "throttled": throttled,
    }


def _link(node, slot: int, load) -> dict:
    best, lanes = node.sku["pcie"], node.given("pcie_wired", "width", 16)
    storm, replays = (
        node.fault("pcie_replays", gpu=slot),
        node.given("pcie_replays_old", "count", 0, gpu=slot),
    )
    if storm:
        minutes = (time.time() - storm.get("struck", storm.get("since", time.time()))) * node.speed / 60.0
        replays += int(storm["count"] * (1 + max(0.0, minutes)))
    under_load = min(node.given("pcie_gen", "gen", best, gpu=slot), best)
    return {
        "width": min(node.given("pcie_width", "width", lanes, gpu=slot), lanes),
        "width_max": lanes,
        # An idle link saves power: it reports generation 1 until it is used.
        "generation": under_load if load else 1,
        "replays": replays,
    }


def _errors(node, slot: int) -> dict:
    pending, failed = node.fault("row_remap_pending", gpu=slot), node.fault("row_remap_failure", gpu=slot)
    clean = node.given("remapped_clean", "rows", 0, gpu=slot)
    sram = node.given("sram_threshold", "count", 0, gpu=slot)
    count = node.given("ecc_uncorrectable", "count", 0, gpu=slot)
    return {
        "uncorrectable": count,
        "uncorrectable_ever": count,
        "corrected_ever": node.given("ecc_aggregate_old", "count", 0, gpu=slot),
        "sram_ever": sram,
        "sram_threshold": sram > 0,
        "remapped_correctable": node.given("remapped_many", "rows", 0, gpu=slot),
        "remapped_uncorrectable": clean + (1 if pending or failed else 0),
        "remap_banks": tuple(node.given("remap_banks_used", key, 0, gpu=slot) for key in ("low", "none")),
        "remap_pending": pending is not None,
        "remap_failure": failed is not None,
    }


def _fabric(node, slot: int, ready: bool) -> tuple:
    """Return the (state, status) of the NVLink fabric."""
    # Ampere has no fabric state, whatever fabric manager does (A100-SXM4 on 535 in telegraf's samples).
    if not node.sku["fabric"] or node.sku["architecture"] == "Ampere":
        return "N/A", "N/A"
    failed = node.fault("fabric_failed", gpu=slot)
    if failed and ready:
        return "Completed", failed["status"]
    return ("Completed", "Success") if ready else ("In Progress", "N/A")


def _recovery(node, slot: int, pending: bool) -> str:
    """Return the recovery action in the terms of NVIDIA's "Error Recovery and Response Flags"."""
    requested = node.given("recovery_action", "action", "Reset" if pending else "None", gpu=slot)
    driver = node.driver()
    # Driver 595 was the first to have it (ctrl2080gpu.h of the open driver).
    if requested == "Recover IMEX Domain" and (driver is None or int(driver[0].split(".")[0]) < 595):
        return "None"
    return requested


_NO_DOMAIN = "00000000-0000-0000-0000-000000000000", 0


def _domain(node) -> tuple:
    """Return (ClusterUUID, CliqueId): zeros except on trays of an NVL72 (leptonai/gpud issue 1106).

    Each rack has a ClusterUUID; the clique number is the same in all (meta-pytorch/torchcomms issue 3612)."""
    wrong = node.given("nvlink_domain", "what", "")
    if node.sku["fabric"] != "imex" or wrong == "none":
        return _NO_DOMAIN
    rack = "other" if wrong == "cluster" else node.given("nvl72_rack", "number", "rack")
    # The seeds of a lab's nodes differ in their last three digits (lab/gpuprov_lab/node.py).
    lab = node.seed // 1000
    return noise.identity("nvlink domain", lab, rack), 4026 if wrong == "clique" else 32766
