"""DCGM's fields: what each says of a GPU right now, or None where DCGM has no value (no line then).

Names and types as in NVIDIA/go-dcgm pkg/dcgm/const_fields.go and dcgm_fields.h: an int64 is printed as a whole
number, a double with six decimals (toString in NVIDIA/dcgm-exporter internal/pkg/collector/gpu_collector.go; a
public sample with 409.692000 W and 0.995630 is in NVIDIA's DCGM user guide, "DCGM-Exporter").
"""

import re
import time

import kernel_log
from nvidia_smi import query
from nvidia_smi.mig_profiles import find

from dcgm.hostengine import since

DRIVER_VERSION = "DCGM_FI_DRIVER_VERSION"
XID = "DCGM_FI_DEV_XID_ERRORS"
FIRST_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-f:]+)[^)]*\): (\d+),")
NVLINK = "DCGM_FI_DEV_NVLINK_"


def _smi(name: str, kind):
    """What nvidia-smi calls `name`, without unit."""
    return lambda node, one, smi: _number(smi[name][1], kind)


def _number(text: str, kind):
    word = text.split()[0]
    if word.startswith("0x"):
        return int(word, 16)
    return None if not re.match(r"[0-9.]+\Z", word) else kind(float(word))


def _of(name: str):
    """A reading of telemetry.py."""
    return lambda node, one, smi: int(one[name])


def _active(share: float):
    """A ratio of the profiling counters: of a GPU that computes, or nothing at all."""
    return lambda node, one, smi: share * 1.0 if one["load"] else 0.0


def _throttled(*reasons: str):
    """Nanoseconds for which a load has been held down by one of these."""

    def value(node, one, smi):
        del smi
        held = one["load"] and one["throttled"] in reasons
        return int((time.time() - one["load"]["since"]) * node.speed * 1e9) if held else 0

    return value


def _energy(node, one, smi) -> int:
    """mJ since boot, of an idle GPU: what loads took is not kept."""
    del smi, one
    seconds = max(0.0, time.time() - kernel_log.boot_time(node.folder))
    return int(node.sku["power_idle"] * seconds * 1000)


def _nvlink(errors: float, trained: int):
    """Errors of all links of a GPU: so many for each that a fault counts, and those of its training."""

    def value(node, one, smi):
        del smi
        if not node.sku["links"]:
            return None
        counts = {"nvlink_errors": 0, "nvlink_errors_old": 0}
        for fault in node.faults:
            if fault["id"] in counts and fault["gpu"] == one["gpu"]["slot"]:
                counts[fault["id"]] += fault["count"]
        return int(counts["nvlink_errors"] * errors) + counts["nvlink_errors_old"] * trained

    return value


# The field of the exporter's own list -> its value of (node, readings, nvidia-smi's fields).
FIELDS = {
    "DCGM_FI_DEV_SM_CLOCK": _smi("clocks.sm", int),
    "DCGM_FI_DEV_MEM_CLOCK": _smi("clocks.memory", int),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": _smi("clocks_event_reasons.active", int),
    "DCGM_FI_DEV_MEMORY_TEMP": _smi("temperature.memory", int),
    "DCGM_FI_DEV_GPU_TEMP": _smi("temperature.gpu", int),
    "DCGM_FI_DEV_POWER_USAGE": _smi("power.draw", float),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": _smi("power.limit", float),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": _energy,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": _of("replays"),
    "DCGM_FI_DEV_GPU_UTIL": _smi("utilization.gpu", int),
    "DCGM_FI_DEV_MEM_COPY_UTIL": _smi("utilization.memory", int),
    "DCGM_FI_DEV_POWER_VIOLATION": _throttled("hw_power_brake"),
    "DCGM_FI_DEV_THERMAL_VIOLATION": _throttled("hw_thermal", "sw_thermal"),
    "DCGM_FI_DEV_FB_FREE": _smi("memory.free", int),
    "DCGM_FI_DEV_FB_USED": _smi("memory.used", int),
    "DCGM_FI_DEV_FB_RESERVED": _smi("memory.reserved", int),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": _smi("ecc.errors.corrected.volatile.total", int),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": _smi("ecc.errors.uncorrected.volatile.total", int),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": _smi("ecc.errors.corrected.aggregate.total", int),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": _smi("ecc.errors.uncorrected.aggregate.total", int),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": _of("remapped_correctable"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": _of("remapped_uncorrectable"),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": _of("remap_pending"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": _of("remap_failure"),
    NVLINK + "CRC_FLIT_ERROR_COUNT_TOTAL": _nvlink(1, 1),
    NVLINK + "CRC_DATA_ERROR_COUNT_TOTAL": _nvlink(1, 0),
    NVLINK + "REPLAY_ERROR_COUNT_TOTAL": _nvlink(1, 0),
    NVLINK + "RECOVERY_ERROR_COUNT_TOTAL": _nvlink(0.01, 0),
    NVLINK + "BANDWIDTH_TOTAL": _nvlink(0, 0),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": _active(0.995),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": _active(0.61),
    "DCGM_FI_PROF_DRAM_ACTIVE": _active(0.38),
    "DCGM_FI_PROF_PCIE_TX_BYTES": _active(1.2e9),
    "DCGM_FI_PROF_PCIE_RX_BYTES": _active(2.4e9),
    # Known to the exporter, without a value in the lab: a GPU without fans, video engines in use or a vGPU license.
    "DCGM_FI_DEV_FAN_SPEED": lambda node, one, smi: None,
    "DCGM_FI_DEV_ENC_UTIL": lambda node, one, smi: 0,
    "DCGM_FI_DEV_DEC_UTIL": lambda node, one, smi: 0,
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": lambda node, one, smi: 0,
}
TEXTS = {
    DRIVER_VERSION: lambda node, one: node.driver()[0],
    "DCGM_FI_DEV_SERIAL": lambda node, one: one["gpu"]["serial"],
    "DCGM_FI_DEV_VBIOS_VERSION": lambda node, one: one["gpu"]["vbios"],
}
# What has a value of its own for each MIG instance; everything else is the GPU's, said of each.
OF_INSTANCE = ("DCGM_FI_DEV_FB_",)


def known(name: str) -> bool:
    """Whether the exporter knows a field of this name."""
    return name in FIELDS or name in TEXTS or name == XID


def profiling(name: str) -> bool:
    """Whether the field is read from the hardware performance counters."""
    return name.startswith("DCGM_FI_PROF_")


def value(node, one: dict, name: str, instance) -> str:
    """A field of one GPU, or of one MIG instance of it, as text; empty where there is none."""
    answers = not one["silent"] and not node.lost(one["gpu"])
    if name in TEXTS:
        return TEXTS[name](node, one)
    if name == XID:
        number = last_xid(node, one["gpu"])
        return str(number) if number else ""
    if not answers:
        return ""  # a GPU that does not answer has no readings; its last Xid is the host engine's own
    found = _reading(node, one, name, instance)
    return "" if found is None else f"{found:f}" if isinstance(found, float) else str(found)


def _reading(node, one: dict, name: str, instance):
    if instance and name.startswith(OF_INSTANCE):
        whole = int(find(node.sku_name, instance["profile"])["gib"] * 1024)
        return {"FREE": whole, "USED": 0, "RESERVED": 0}[name.rpartition("_")[2]]
    return FIELDS[name](node, one, query._fields(node, node.driver()[0], one))


def last_xid(node, gpu):
    """The number of the GPU's last Xid since the host engine was started; None without one."""
    started = since(node)
    begun = (started or time.time()) - kernel_log.boot_time(node.folder)
    bus, found = gpu["address"].rpartition(".")[0], None
    for when, text in kernel_log.read(node.folder):
        match = FIRST_XID.match(text)
        if match and match.group(1) == bus and when >= begun:
            found = int(match.group(2))
    return found
