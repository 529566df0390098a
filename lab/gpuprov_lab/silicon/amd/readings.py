"""Current readings of one AMD GPU: its identity, sensors, links and error counters."""

import json
import math
import time

import noise
from load import sharers

from amd.products import BLOCKS

KINDS = ("ue", "ce", "de")
MEMORY_MODE = "run/memory_partition"  # set while the driver was unloaded, reset by a boot
POWER_CAPS = "run/amd_power_caps"  # limits that were set; reset by a boot
# The accumulator steps per second of an MI300X's firmware are unpublished; this is plausible.
STEPS = 3_800_000
HEATING_SECONDS = 25.0


def identity(node, gpu) -> dict:
    """Return the serial numbers of the GPU in this slot, which belong to the GPU, not to the slot."""
    unique = noise.hexadecimal(16, "unique", gpu["uuid"])
    return {
        "unique_id": unique,
        "uuid": f"{unique[:2]}ff{node.sku['device']}-0000-1000-80{unique[2:4]}-{unique[4:16]}",
        "serial": gpu["serial"],
        "kfd_id": int(noise.fraction("kfd", gpu["uuid"]) * 60000) + 1000,
        "oam": gpu["slot"],
    }


def links(node, gpu) -> list:
    """Return the number of xGMI links to each of the node's GPUs by slot, itself included (0).
    Only links that trained at boot count."""
    own = gpu["slot"]
    return [_between(node, own, other["slot"]) for other in node.gpus]


def _between(node, a: int, b: int) -> int:
    low, high = min(a, b), max(a, b)
    if low == high or node.fault("xgmi_down", a=low, b=high, since="boot"):
        return 0
    return wired(node).get((low, high), 0)


def wired(node) -> dict:
    """Return (GPU, GPU) -> number of links between them, by slot, the lower first; empty without bridges."""
    cards = node.given("bridges", "cards", 0)
    if not cards:
        return node.sku["wired"]
    return {pair: n for pair, n in node.sku["wired"].items() if pair[0] // cards == pair[1] // cards}


def hive(node, gpu) -> list:
    """Return the slots of the GPUs reachable over this one's links, directly or indirectly, and its own."""
    found, pairs = {gpu["slot"]}, wired(node)
    while True:
        more = {slot for pair in pairs if found & set(pair) for slot in pair} - found
        if not more:
            return sorted(found)
        found |= more


def link_states(node, gpu) -> list:
    """Return (other GPU, up or down) of each of the GPU's links in order."""
    own, found = gpu["slot"], []
    for other in node.gpus:
        low, high = min(own, other["slot"]), max(own, other["slot"])
        gone = other not in answering(node)
        down = gone or node.fault("xgmi_down", a=low, b=high)
        found += [(other, "D" if down else "U")] * wired(node).get((low, high), 0)
    return found


def errors(node, gpu) -> dict:
    """Return block -> {ue, ce, de} of errors since the driver was loaded, for blocks with counters."""
    found = {block: dict.fromkeys(KINDS, 0) for block in BLOCKS}
    for fault in node.faults:
        if fault.get("gpu") != gpu["slot"]:
            continue
        if fault["id"] == "ecc_uncorrectable":
            found["umc"]["ue"] += fault["count"]
        elif fault["id"] in ("ras_errors", "ras_corrected_few"):
            found[fault.get("block", "umc")][fault.get("kind", "ce")] += fault["count"]
    return {block: found[block] for block in BLOCKS if block in node.sku["ras"]}


def bad_pages(node, gpu) -> list:
    """Return (page number, state) of each bad page of memory: reserved, pending or unreservable."""
    pages = []
    for fault in node.faults:
        if fault["id"] in ("bad_pages", "bad_pages_few") and fault["gpu"] == gpu["slot"]:
            state = fault.get("state", "reserved")
            first = 0x100000 + 0x1000 * len(pages)
            pages += [(first + 7 * number, state) for number in range(fault["count"])]
    return pages


def sensors(node, gpu) -> dict:
    """Return temperatures in C, power in W, clock in MHz, activity in percent.
    `violations`: what throttles the clocks, in percent of the time."""
    slot, sku, load = gpu["slot"], node.sku, node.loads().get(gpu["slot"])
    extra = node.given("hot_gpu", "degrees", 0, gpu=slot)
    extra += node.given("airflow_gradient", "degrees", 0) * slot / float(max(1, len(node.gpus) - 1))
    simulated = (time.time() - load["since"]) * node.speed if load else 0.0
    warmth = 1.0 - math.exp(-simulated / HEATING_SECONDS)
    rise = (sku["temp_load"] - sku["temp_idle"]) * warmth
    hotspot = (sku["temp_idle"] + extra + rise) * noise.jitter(node, "temperature", slot, 0.02)
    power = sku["power_idle"] * noise.jitter(node, "power", slot, 0.015)
    violations = dict.fromkeys(("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal"), 0)
    if load:
        power = sku["power"] * capped(node, gpu) ** 3 * 0.985 * noise.jitter(node, "power", slot, 0.006)
        violations["ppt"] = 60  # at its power limit, which is normal under load
        if simulated < node.given("power_cap_brief", "seconds", 0, gpu=slot):
            violations["prochot"] = 10
    throttle = node.fault("throttle", gpu=slot)
    if throttle:
        reason = {"hw_thermal": "prochot", "hw_power_brake": "ppt"}.get(throttle["reason"], "socket_thermal")
        violations[reason] = round(100 * (1 - throttle["factor"]))
        if reason == "socket_thermal":
            hotspot = max(hotspot, sku["temp_limit"] + 1)
    clock = sku["clock_load"] * capped(node, gpu) * node.factor("throttle", gpu=slot)
    return {
        "hotspot": round(hotspot),
        "edge": round(hotspot) - 3,
        "memory": round(hotspot) + 4,
        "power": round(power),
        "clock": round(clock * noise.jitter(node, "clock", slot, 0.006)) if load else sku["clock_idle"],
        "activity": 100 if load else 0,
        "violations": violations,
    }


def capped(node, gpu) -> float:
    """Return the fraction of the clock under a lowered limit: power grows with about its third power."""
    return (_limit(node, gpu["slot"]) / float(node.sku["power"])) ** (1 / 3.0)


def rate(node, gpu) -> float:
    """Return the GPU's current rate of multiplication, in Gflop/s of bf16."""
    slot = gpu["slot"]
    left = node.factor("gpu_slow", gpu=slot) * node.factor("throttle", gpu=slot) * capped(node, gpu)
    return node.sku["gemm"] * left * noise.jitter(node, "burn", slot, 0.006) / sharers(node, slot)


def accumulated(node, gpu, violations: dict) -> dict:
    """Return how many steps of the firmware's clock each limit has throttled the clocks since it started."""
    words = (node.seed, node.name, "accumulated", gpu["slot"])
    # An aged GPU has spent most of that at the power limit, some at the temperature limit.
    usual = {"ppt": int(0.15 * STEPS), "socket_thermal": int(0.005 * STEPS * noise.fraction(*words))}
    return {name: usual.get(name, 0) + STEPS * share // 100 for name, share in violations.items()}


def second(node, gpu) -> bool:
    """Whether the GPU is the second die of a module; the first one reports the power of both."""
    return bool(gpu["slot"] % node.sku.get("dies", 1))


def power_limit(node, gpu) -> int:
    """Return the limit in W; 0 for the second die of a module and for a GPU inside a CPU."""
    return 0 if second(node, gpu) or gpu["integrated"] else _limit(node, gpu["slot"])


def _limit(node, slot: int) -> int:
    """Return the effective limit in W of the GPU in this slot; a set limit applies to the whole module."""
    cap = node.fault("power_limit", gpu=slot) or node.fault("power_cap_site")
    usual = round(node.sku["power"] * cap["percent"] / 100.0) if cap else node.sku["power"]
    return power_caps(node).get(slot - slot % node.sku.get("dies", 1), usual)


def power_caps(node) -> dict:
    """Return slot -> W of the limits that `amd-smi set` set since the last boot."""
    try:
        return {
            int(slot): watts for slot, watts in json.loads((node.folder / POWER_CAPS).read_text()).items()
        }
    except OSError:
        return {}


def pcie(node, gpu) -> dict:
    """Return the slot's link: lanes and generation, current and maximum, and replays."""
    slot, best = gpu["slot"], node.sku["pcie"]
    lanes = node.given("pcie_wired", "width", 16)
    storm, replays = node.fault("pcie_replays", gpu=slot), 0
    if storm:
        began = storm.get("struck", storm.get("since", time.time()))
        minutes = (time.time() - began) * node.speed / 60.0
        replays = int(storm["count"] * (1 + max(0.0, minutes)))
    return {
        "width": min(node.given("pcie_width", "width", lanes, gpu=slot), lanes),
        "width_max": lanes,
        "generation": min(node.given("pcie_gen", "gen", best, gpu=slot), best),
        "replays": replays + node.given("pcie_replays_old", "count", 0, gpu=slot),
    }


def partition(node, gpu) -> tuple:
    """Return the (compute, memory) partition modes; empty if the product has none."""
    changed = node.fault("partition_mode", gpu=gpu["slot"]) or node.fault("partition_site")
    if changed and node.sku["partition"]:
        return changed["mode"], node.sku["memory_partition"]
    requested = node.folder / MEMORY_MODE
    if node.sku["partition"] and requested.exists():
        memory = requested.read_text().strip()
        return node.sku["partition"] if memory == node.sku["memory_partition"] else "CPX", memory
    return node.sku["partition"], node.sku["memory_partition"]


def vram_bytes(node, gpu) -> int:
    small = node.fault("memory_small", gpu=gpu["slot"])
    return small["mib"] * 2**20 if small else node.sku["vram_bytes"]


def answering(node) -> list:
    """Return the GPUs that the driver accepted and that still respond."""
    return [gpu for gpu in node.present() if not node.lost(gpu)]
