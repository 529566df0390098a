"""Faults and healthy look-alikes as changes of NVML values, with the expected verdict and action.

Based on nvml.h and NVIDIA's documents, not on the answers of the checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuprov_lab.silicon.nvidia_smi.nvml_values import LOST, RESET_REQUIRED, UNKNOWN, Machine
from provision.checks.thresholds import for_sku

NOTHING = "nothing"  # the absence of a fault: a healthy machine
FAIL, WARN, PASS, ERROR = "fail", "warn", "pass", "error"

Change = Callable[[Machine], None]


@dataclass(frozen=True)
class Fault:
    """A fault. `verdicts`: allowed for the worst finding; `device`: its device; `actions`: allowed ones.

    `seen`: facts and samples (readers.py) in which the fourth GPU differs from the others. `gone`: the
    readings of the fourth GPU are errors; `doubtful`: a reader may find that it does not answer; `refused`:
    no reader gets a value of any GPU. `hours`: findings of a burn-in (burned.py).
    """

    name: str
    change: Change
    verdicts: tuple[str, ...]
    device: str = ""
    actions: tuple[str, ...] = ()
    needs: str = ""  # key of _HAS: the hardware or driver that the fault requires
    seen: tuple[str, ...] = ()
    gone: bool = False
    doubtful: bool = False
    refused: bool = False
    hours: tuple[str, ...] = ()

    def applies(self, machine: Machine) -> bool:
        """Whether a machine of this SKU has the part, and this driver can report it."""
        return not self.needs or _HAS[self.needs](machine)


_RETIRES_PAGES = ("volta", "turing")  # instead of remapping rows
_HAS: dict[str, Callable[[Machine], bool]] = {
    "remap": lambda machine: machine.sku["architecture"] not in _RETIRES_PAGES,
    "sram": lambda machine: machine.sku["architecture"] not in _RETIRES_PAGES and machine.major >= 550,
    "nvlink": lambda machine: bool(machine.sku.get("nvlink")) and machine.sku["fabric"] != "none",
    "switched": lambda machine: machine.sku["fabric"] != "none",
    "domain": lambda machine: machine.sku["fabric"] == "imex",
    "fabric": lambda machine: machine.has_fabric_state,
    "mig": lambda machine: machine.sku["memory_mib"] > 70_000,
    "width limit": lambda machine: "gpu_inventory.pcie_width" in for_sku(machine.name),
    "no width limit": lambda machine: "gpu_inventory.pcie_width" not in for_sku(machine.name),
    "banks": lambda machine: "nvmlDeviceGetRowRemapperHistogram" in machine.rows,
    "pages": lambda machine: machine.sku["architecture"] in _RETIRES_PAGES,
}


def _set(function: str, device: int | None = 3, *arguments: int, **values: object) -> Change:
    def change(machine: Machine) -> None:
        of = device if device is None or device < machine.count else machine.count - 1
        machine.set(function, of, *arguments, **values)

    return change


def _counter(kind: int, since: int, where: int, count: int) -> Change:
    """Set a memory error counter. kind 1: uncorrected; since 0: since boot; where 2: DRAM, 7: SRAM."""
    return _both(
        _set("nvmlDeviceGetMemoryErrorCounter", 3, kind, since, where, count=count),
        _set("nvmlDeviceGetTotalEccErrors", 3, kind, since, eccCounts=count),
    )


def _remapped(rows: int, *, pending: int = 0, failed: int = 0) -> Change:
    values = {"corrRows": 0, "uncRows": rows, "isPending": pending, "failureOccurred": failed}
    return _set("nvmlDeviceGetRemappedRows", **values)


def _all(function: str, **values: object) -> Change:
    return _set(function, None, **values)


def _links(*links: int) -> Change:
    def change(machine: Machine) -> None:
        for link in links or range(18):
            if f"nvmlDeviceGetNvLinkState 3 {link}" in machine.rows:
                machine.set("nvmlDeviceGetNvLinkState", 3, link, isActive=0)
                machine.set("nvmlDeviceGetFieldValues", 3, 165, link, value=0)
                machine.set("nvmlDeviceGetFieldValues", 3, 164, link, value=0)

    return change


def _lost(code: int) -> Change:
    return lambda machine: machine.fail(3, code)


def _no_handle(machine: Machine) -> None:
    for key in list(machine.rows):
        if key.startswith("nvmlDeviceGetHandleBy") and machine.rows[key].get("device") == 3:
            machine.rows[key] = {"return": LOST}


def _fabric(device: int | None, state: int, status: int = 0) -> Change:
    def change(machine: Machine) -> None:
        for function in ("nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV"):
            values = {**machine.rows[function], "gpuFabricInfo.state": state, "gpuFabricInfo.status": status}
            machine.rows[function if device is None else f"{function} {device}"] = values

    return change


def _no_domain(machine: Machine) -> None:
    for function in ("nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV"):
        row = machine.rows[function]
        row |= {path: 0 for path in row if path.startswith("gpuFabricInfo.cl")}


def _both(*changes: Change) -> Change:
    def change(machine: Machine) -> None:
        for one in changes:
            one(machine)

    return change


def _throttle(bits: int) -> Change:
    """Set bits of nvmlClocksEventReasons."""
    return _both(
        _set("nvmlDeviceGetCurrentClocksThrottleReasons", clocksThrottleReasons=bits),
        _set("nvmlDeviceGetCurrentClocksEventReasons", clocksEventReasons=bits),
    )


def _memory(device: int, part: float) -> Change:
    def change(machine: Machine) -> None:
        for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
            values = machine.rows[function]
            whole = int(part * int(str(values["memory.total"])))
            left = whole - int(str(values.get("memory.reserved", 0)))
            machine.rows[f"{function} {device}"] = {**values, "memory.total": whole, "memory.free": left}

    return change


def _nvlink_errors(kind: int, count: int) -> Change:
    """Set a counter of the fourth GPU's link 2. kind 0: replays, 1: recoveries, 2: flit CRC errors."""
    field = {0: 161, 1: 162, 2: 163}[kind]

    def change(machine: Machine) -> None:
        machine.set("nvmlDeviceGetNvLinkErrorCounter", 3, 2, kind, counterValue=count)
        machine.set("nvmlDeviceGetFieldValues", 3, field, 2, value=count, valueType=1)

    return change


def _lanes(machine: Machine) -> None:
    machine.set("nvmlDeviceGetMaxPcieLinkWidth", None, maxLinkWidth=8)
    machine.set("nvmlDeviceGetCurrPcieLinkWidth", None, currLinkWidth=8)


def _power(watts: int, *devices: int) -> Change:
    def change(machine: Machine) -> None:
        for device in devices or range(machine.count):
            machine.set("nvmlDeviceGetPowerManagementLimit", device, limit=watts * 1000)
            machine.set("nvmlDeviceGetEnforcedPowerLimit", device, limit=watts * 1000)
            for field in (190, 192):
                machine.set("nvmlDeviceGetFieldValues", device, field, 0, value=watts * 1000)

    return change


_RESET = ("reset GPU", "reboot", "power-cycle", "replace part")
FAULTS = (
    Fault(NOTHING, _both(), (PASS,)),
    Fault("one GPU gives no handle: lost", _no_handle, (FAIL,), "gpu3", ("power-cycle", "reboot"),
        gone=True,
        hours=("silent",)),
    Fault("one GPU answers 'GPU is lost' to all", _lost(LOST), (FAIL,), "gpu3", ("power-cycle", "reboot"),
        gone=True,
        hours=("lost",)),
    Fault("one GPU requires a reset", _lost(RESET_REQUIRED), (FAIL,), "gpu3", _RESET[:3], gone=True,
        hours=("lost",)),
    Fault("one GPU answers 'unknown error' to all", _lost(UNKNOWN), (FAIL,), "gpu3", _RESET, gone=True,
        hours=("lost",)),
    Fault("uncorrected DRAM errors since boot", _counter(1, 0, 2, 4), (FAIL,), "gpu3", seen=("ecc_ue",),
        hours=("load_ecc_uncorrectable",)),
    Fault("uncorrected SRAM errors since boot", _both(
        _counter(1, 0, 7, 2),
        _set("nvmlDeviceGetSramEccErrorStatus", status__volatileUncParity=2, status__aggregateUncParity=2),
    ), (FAIL,), "gpu3", needs="remap",
        hours=("load_ecc_uncorrectable",)),
    Fault("SRAM threshold exceeded", _set("nvmlDeviceGetSramEccErrorStatus", status__bThresholdExceeded=1,
        status__aggregateUncParity=12, status__aggregateUncBucketL2=12),
        (FAIL,), "gpu3", ("replace part",), "sram"),
    Fault("few corrected DRAM errors", _counter(0, 0, 2, 3), (PASS,), needs="remap",
        hours=("ecc_ce",)),
    Fault("uncorrected DRAM errors of long ago", _counter(1, 1, 2, 1), (PASS, WARN), needs="remap"),
    Fault("row remap pending", _remapped(1, pending=1, failed=0),
        (FAIL, WARN), "gpu3", ("reset GPU",), "remap"),
    Fault("row remap failed", _remapped(4, pending=0, failed=1),
        (FAIL,), "gpu3", ("replace part",), "remap"),
    Fault("a row remapped long ago", _remapped(1, pending=0, failed=0),
        (PASS, WARN), needs="remap"),
    Fault("ECC off on one GPU", _set("nvmlDeviceGetEccMode", current=0, pending=0), (FAIL, WARN), "gpu3",
        seen=("nvidia_smi.ecc.mode.current", "settings")),
    Fault("one NVLink down", _links(5), (FAIL,), "gpu3", needs="nvlink"),
    Fault("all NVLinks of one GPU down", _links(), (FAIL,), "gpu3", needs="nvlink"),
    Fault("PCIe width 8", _set("nvmlDeviceGetCurrPcieLinkWidth", currLinkWidth=8), (FAIL, WARN), "gpu3",
        ("reseat or check cable",), "switched", seen=("pcie_width",),
        hours=("pcie_width",)),
    Fault("PCIe Gen 1 at rest on all", _all("nvmlDeviceGetCurrPcieLinkGeneration", currLinkGen=1),
        (PASS, WARN)),
    Fault("HW slowdown", _throttle(0x9), (FAIL, WARN), "gpu3", seen=("throttle",),
        hours=("throttled",)),
    Fault("HW thermal slowdown", _throttle(0x49), (FAIL, WARN), "gpu3", seen=("throttle",),
        hours=("throttled",)),
    Fault("HW power brake", _throttle(0x89), (FAIL, WARN), "gpu3", seen=("throttle",),
        hours=("throttled",)),
    Fault("idle alone", _throttle(0x1), (PASS,)),
    Fault("hot at rest", _set("nvmlDeviceGetTemperature", temp=88), (FAIL, WARN), "gpu3",
        seen=("temperature_c",),
        hours=("load_temperature",)),
    Fault("power limit lowered on one GPU", _power(60, 3), (FAIL, WARN), "gpu3",
        seen=("nvidia_smi.power.limit", "settings")),
    Fault("persistence off on one GPU", _set("nvmlDeviceGetPersistenceMode", mode=0), (WARN, FAIL), "gpu3",
        seen=("nvidia_smi.persistence_mode",)),
    Fault("MIG on one GPU", _set("nvmlDeviceGetMigMode", currentMode=1, pendingMode=1),
        (WARN, FAIL), "gpu3", needs="mig", seen=("nvidia_smi.mig.mode.current", "mig")),
    Fault("compute mode prohibited on one GPU", _set("nvmlDeviceGetComputeMode", mode=2),
        (WARN, FAIL), "gpu3", seen=("nvidia_smi.compute_mode", "settings")),
    Fault("half the memory on one GPU", _memory(3, 0.5), (FAIL,), "gpu3", seen=("nvidia_smi.memory.total",)),
    Fault("fabric: one GPU in progress", _fabric(3, 2), (FAIL,), "gpu3", needs="fabric",
        seen=("nvidia_smi.fabric.state",)),
    Fault("fabric: none has started", _fabric(None, 1), (FAIL,), needs="fabric"),
    Fault("fabric: completed with an unknown error", _fabric(3, 3, UNKNOWN), (FAIL,), "gpu3", needs="fabric",
        seen=("nvidia_smi.fabric.status",)),
    Fault("fabric: insufficient resources", _fabric(3, 3, 23), (FAIL,), "gpu3", needs="fabric",
        seen=("nvidia_smi.fabric.status",)),
    Fault("fabric: in no domain", _no_domain, (FAIL,), needs="domain"),
    Fault("another VBIOS on one GPU", _set("nvmlDeviceGetVbiosVersion", version="96.00.61.00.01"),
        (WARN, FAIL), "gpu3", seen=("nvidia_smi.vbios_version",)),
    Fault("another product on one GPU", _set("nvmlDeviceGetName", name="NVIDIA GeForce RTX 4090"),
        (FAIL, WARN), "gpu3", seen=("nvidia_smi.name",)),
    Fault("driver and library differ", lambda m: m.set("nvmlInitWithFlags", **{"return": 18}), (FAIL, ERROR),
        refused=True),
    Fault("driver not loaded", lambda m: m.set("nvmlInitWithFlags", **{"return": 9}), (FAIL, ERROR),
        refused=True),
    # Taken from public reports of fleets; the values are from nvml.h, the verdicts from NVIDIA's documents on
    # GPU debugging, memory errors and nvidia-smi.
    Fault("one GPU is missing from the driver", lambda m: m.set("nvmlDeviceGetCount_v2", deviceCount=3),
        (FAIL,), doubtful=True,
        hours=("silent",)),
    Fault("many replays of PCIe, of no known time", _set("nvmlDeviceGetPcieReplayCounter", value=100_000),
        (PASS, WARN),
        hours=("load_replays",)),
    Fault("few replays of PCIe", _set("nvmlDeviceGetPcieReplayCounter", value=3), (PASS,),
        hours=("pcie_replays",)),
    Fault("8 lanes of all GPUs that are to have 16", _lanes, (FAIL, WARN), needs="width limit",
        hours=("pcie_width of all",)),
    Fault("8 lanes of all GPUs without a limit", _lanes, (PASS, WARN), needs="no width limit",
        hours=("pcie_width of all",)),
    Fault("NVLink recoveries on one link", _nvlink_errors(1, 6), (FAIL, WARN), "gpu3", needs="nvlink",
        hours=("nvlink_errors",)),
    Fault("many NVLink replays on one link", _nvlink_errors(0, 50_000), (FAIL, WARN), "gpu3", needs="nvlink",
        hours=("nvlink_errors",)),
    Fault("corrected flits on one link", _nvlink_errors(2, 4), (PASS, WARN), needs="nvlink",
        hours=("nvlink_errors",)),
    Fault("ECC off on all GPUs", _all("nvmlDeviceGetEccMode", current=0, pending=0), (PASS, WARN)),
    Fault("ECC off after the next reboot", _set("nvmlDeviceGetEccMode", current=1, pending=0),
        (FAIL, WARN), "gpu3",
        seen=("settings",)),
    Fault("12 rows remapped for corrected errors", _set(
        "nvmlDeviceGetRemappedRows", corrRows=12, uncRows=0, isPending=0, failureOccurred=0
    ), (FAIL, WARN), "gpu3", needs="remap"),
    Fault("a bank without spare rows", _set(
        "nvmlDeviceGetRowRemapperHistogram", values__max=639, values__none=1
    ), (FAIL, WARN), "gpu3", needs="banks"),
    Fault("a page to be retired", _set("nvmlDeviceGetRetiredPagesPendingStatus", isPending=1),
        (FAIL, WARN), "gpu3", needs="pages"),
    Fault("64 pages retired for double-bit errors", _set("nvmlDeviceGetRetiredPages", 3, 1, pageCount=64),
        (FAIL, WARN), "gpu3", needs="pages"),
    Fault("two pages retired long ago", _set("nvmlDeviceGetRetiredPages", 3, 0, pageCount=2),
        (PASS, WARN), needs="pages"),
    Fault("power limit lowered on all GPUs", _power(65), (PASS, WARN)),
    Fault("SW thermal slowdown", _throttle(0x21), (FAIL, WARN), "gpu3", seen=("throttle",),
        hours=("throttled",)),
    Fault("power cap for a moment", _throttle(0x4), (PASS,), seen=("throttle",)),
    Fault("held by the clocks that a user set", _throttle(0x2), (PASS, WARN), seen=("throttle",)),
    Fault("warmer than the others at rest", _set("nvmlDeviceGetTemperature", temp=46), (PASS, WARN),
        seen=("temperature_c",)),
    Fault("two approved VBIOS, half and half", _both(*(
        _set("nvmlDeviceGetVbiosVersion", device, version="96.00.61.00.01") for device in (2, 3)
    )), (PASS, WARN)),
    Fault("an unread temperature", _set("nvmlDeviceGetTemperature", **{"return": UNKNOWN}),
        (ERROR, FAIL, WARN), doubtful=True),
    Fault("counters that need a permission", _set("nvmlDeviceGetTotalEccErrors", **{"return": 4}),
        (PASS, WARN, ERROR)),
    Fault("corrupted infoROM", _both(
        _set("nvmlDeviceGetInforomImageVersion", **{"return": 14}),
        _set("nvmlDeviceGetInforomVersion", **{"return": 14}),
        _set("nvmlDeviceGetInforomConfigurationChecksum", **{"return": 14}),
        _set("nvmlDeviceValidateInforom", **{"return": 14}),
    ), (FAIL, WARN, ERROR)),
)  # fmt: skip
