"""DCGM's fields: the current value for a GPU, or None if DCGM has none (the line is omitted then).

Names and types as in NVIDIA/go-dcgm pkg/dcgm/const_fields.go and dcgm_fields.h: an int64 is printed as a
whole number, a double with six decimals (toString in internal/pkg/collector/gpu_collector.go of
NVIDIA/dcgm-exporter; NVIDIA's user guide, "DCGM-Exporter", has a sample with 409.692000 W and 0.995630).
"""

import re
import time

import kernel_log
from nvidia_smi import query
from nvidia_smi.mig_profiles import find

from dcgm.hostengine import since

XID = "DCGM_FI_DEV_XID_ERRORS"
XID_LINE = re.compile(r"NVRM: Xid \(PCI:([0-9a-f:]+)[^)]*\): (\d+),")

# Field -> nvidia-smi's name for it, and the type of its value.
OF_NVIDIA_SMI = {
    "DCGM_FI_DEV_SM_CLOCK": ("clocks.sm", int),
    "DCGM_FI_DEV_MEM_CLOCK": ("clocks.memory", int),
    # The name from before driver 535, which later drivers accept, too.
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("clocks_throttle_reasons" + ".active", int),
    "DCGM_FI_DEV_MEMORY_TEMP": ("temperature.memory", int),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature.gpu", int),
    "DCGM_FI_DEV_POWER_USAGE": ("power.draw", float),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": ("power.limit", float),
    "DCGM_FI_DEV_GPU_UTIL": ("utilization.gpu", int),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("utilization.memory", int),
    "DCGM_FI_DEV_FB_FREE": ("memory.free", int),
    "DCGM_FI_DEV_FB_USED": ("memory.used", int),
    "DCGM_FI_DEV_FB_RESERVED": ("memory.reserved", int),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc.errors.corrected.volatile.total", int),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc.errors.uncorrected.volatile.total", int),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": ("ecc.errors.corrected.aggregate.total", int),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": ("ecc.errors.uncorrected.aggregate.total", int),
}
# Field -> the reading of telemetry.py.
OF_TELEMETRY = {
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "replays",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "remapped_correctable",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "remapped_uncorrectable",
    "DCGM_FI_DEV_ROW_REMAP_PENDING": "remap_pending",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "remap_failure",
}
# Field -> the performance counter's value while a load runs; zero otherwise.
OF_LOADS = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.995,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.61,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.38,
    "DCGM_FI_PROF_PCIE_TX_BYTES": 1.2e9,
    "DCGM_FI_PROF_PCIE_RX_BYTES": 2.4e9,
}
# Field -> the throttling reasons; it counts their duration in nanoseconds.
OF_THROTTLING = {
    "DCGM_FI_DEV_POWER_VIOLATION": ("hw_power_brake",),
    "DCGM_FI_DEV_THERMAL_VIOLATION": ("hw_thermal", "sw_thermal"),
}
# Field -> factors for the errors of all links: of `nvlink_errors`, and of errors during link training.
OF_NVLINK = {
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": (1, 1),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": (1, 0),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": (1, 0),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": (0.01, 0),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": (0, 0),
}
# Known to the exporter, and identical on every GPU of the lab: no fans, no video, no vGPU.
CONSTANT = {
    "DCGM_FI_DEV_FAN_SPEED": None,
    "DCGM_FI_DEV_ENC_UTIL": 0,
    "DCGM_FI_DEV_DEC_UTIL": 0,
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": 0,
}
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
TEXTS = ("DCGM_FI_DRIVER_VERSION", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_VBIOS_VERSION")
KNOWN = {*OF_NVIDIA_SMI, *OF_TELEMETRY, *OF_LOADS, *OF_THROTTLING, *OF_NVLINK, *CONSTANT, *TEXTS, ENERGY, XID}
# Fields with a separate value for each MIG instance; all others repeat the GPU's value.
OF_INSTANCE = "DCGM_FI_DEV_FB_"


def profiling(name: str) -> bool:
    """Whether the field is read from the hardware performance counters."""
    return name.startswith("DCGM_FI_PROF_")


def value(node, one: dict, name: str, instance) -> str:
    """Return a field of one GPU, or of one of its MIG instances, as text; empty without a value."""
    if name == TEXTS[0]:
        return node.driver()[0]
    if name in TEXTS:
        return one["gpu"]["serial" if name == TEXTS[1] else "vbios"]
    if name == XID:
        return last_xid(node, one["gpu"])
    if one["silent"] or node.lost(one["gpu"]):
        return ""  # an unresponsive GPU has no readings; the host engine itself keeps the last Xid
    found = _of_instance(node, name, instance) if instance and OF_INSTANCE in name else _read(node, one, name)
    return "" if found is None else f"{found:f}" if isinstance(found, float) else str(found)


def _of_instance(node, name: str, instance) -> int:
    whole = int(find(node.sku_name, instance["profile"])["gib"] * 1024)
    return whole if name.endswith("FREE") else 0


def _read(node, one: dict, name: str):
    load = one["load"]
    if name in OF_NVIDIA_SMI:
        column, kind = OF_NVIDIA_SMI[name]
        return _number(query.fields_of(node, node.driver()[0], one)[column][1], kind)
    if name in OF_TELEMETRY:
        return int(one[OF_TELEMETRY[name]])
    if name in OF_LOADS:
        return OF_LOADS[name] if load else 0.0
    if name in OF_THROTTLING:
        held = load and one["throttled"] in OF_THROTTLING[name]
        return int((time.time() - load["since"]) * node.speed * 1e9) if held else 0
    if name in OF_NVLINK:
        return _errors_of_links(node, one["gpu"]["slot"], *OF_NVLINK[name])
    if name == ENERGY:  # mJ of an idle GPU; the energy of loads is not recorded
        seconds = max(0.0, time.time() - kernel_log.boot_time(node.folder))
        return int(node.sku["power_idle"] * seconds * 1000)
    return CONSTANT[name]


def _number(text: str, kind):
    """Parse `700.00 W` or `0x0000000000000001`; None for [N/A]."""
    word = text.split()[0]
    if word.startswith("0x"):
        return int(word, 16)
    return kind(float(word)) if re.match(r"[0-9.]+\Z", word) else None


def _errors_of_links(node, slot: int, each: float, training: float):
    if not node.sku["links"]:
        return None
    shares = {"nvlink_errors": each, "nvlink_errors_old": training}
    faults = (one for one in node.faults if one["id"] in shares and one["gpu"] == slot)
    return int(sum(fault["count"] * shares[fault["id"]] for fault in faults))


def last_xid(node, gpu) -> str:
    """Return the number of the GPU's last Xid since the host engine's start; empty without one."""
    begun = (since(node) or time.time()) - kernel_log.boot_time(node.folder)
    bus, found = gpu["address"].rpartition(".")[0], ""
    for when, text in kernel_log.read(node.folder):
        match = XID_LINE.match(text)
        if match and match.group(1) == bus and when >= begun:
            found = match.group(2)
    return found
