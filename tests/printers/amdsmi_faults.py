"""Faults and healthy look-alikes as changes to the answers of AMD's library, with expected verdicts.

Based on amdsmi.h, AMD's documents of amd-smi and its acceptance guide, not on the answers of the checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.printers.amdsmi_values import (
    API_FAILED,
    CURRENT,
    DISABLED,
    DOWN,
    DRIVER_NOT_LOADED,
    GFX,
    HOTSPOT,
    NOT_SUPPORTED,
    OFF,
    UMC,
    VRAM,
    Machine,
)

FAIL, WARN, PASS, ERROR = "fail", "warn", "pass", "error"
BAD = (FAIL, WARN)

Change = Callable[[Machine], None]


@dataclass(frozen=True)
class Fault:
    """A fault. `verdicts`: allowed for the worst finding; `device`: its device; `actions`: allowed ones."""

    name: str
    change: Change
    verdicts: tuple[str, ...]
    device: str = ""
    actions: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # keys of _HAS: the hardware or release that the fault requires
    later: Change | None = None  # the changes when a command is run a second time
    gone: bool = False  # the fourth GPU is no longer there
    hours: tuple[str, ...] = ()  # findings of a burn-in (burned.py)

    def applies(self, machine: Machine) -> bool:
        """Whether a machine of this SKU has the part, and this release of amd-smi can report it."""
        return all(_HAS[need](machine) for need in self.needs)


_HAS: dict[str, Callable[[Machine], bool]] = {
    "host": lambda machine: not machine.guest,
    "units": lambda machine: machine.since("6.3"),
    "threshold": lambda machine: machine.since("7"),
    "ras": lambda machine: machine.since("7") or not machine.guest,
    "throttling": lambda machine: machine.mi300 and machine.since("6.3") and not machine.guest,
    "one word of throttling": lambda machine: not machine.mi300,
    "links": lambda machine: machine.mi300 and machine.since("6.4"),
    "ends": lambda machine: machine.since("7"),
    "no ends": lambda machine: not machine.since("7"),
    "gen5": lambda machine: bool(machine.sku["pcie"]["gen"] == 5),
    "partitions": lambda machine: machine.mi300 and not machine.guest,
}


def _set(function: str, *arguments: int, device: int = 3, **values: object) -> Change:
    return lambda machine: machine.set(function, device, *arguments, **values)


def _all(function: str, *arguments: int, **values: object) -> Change:
    def change(machine: Machine) -> None:
        for device in range(machine.count):
            machine.set(function, device, *arguments, **values)

    return change


def _both(*changes: Change) -> Change:
    def change(machine: Machine) -> None:
        for one in changes:
            one(machine)

    return change


def _dead(code: int) -> Change:
    """Make every function of the fourth GPU fail with this code; its address stays readable."""

    def change(machine: Machine) -> None:
        for key in machine.of(3):
            if key.split()[0] not in ("amdsmi_get_gpu_device_bdf", "amdsmi_get_processor_type"):
                machine.rows[key] = {"return": code}

    return change


def _errors(block: int, kind: str, count: int) -> Change:
    return _both(
        _set("get_gpu_total_ecc_count", **{f"{kind}_count": count}),
        _set("get_gpu_ecc_count", block, **{f"{kind}_count": count}),
    )


def _pages(count: int) -> Change:
    pages = [{"page_address": 0x1000 * page, "page_size": 4096, "status": 0} for page in range(count)]
    return _set("get_gpu_bad_page_info", a1=count, a2=pages)


def _throttled(kind: str) -> Change:
    """Return one kind of throttling that has been active for a while."""
    values = {f"acc_{kind}": 900_000, f"per_{kind}": 87, f"active_{kind}": 1}
    return _set("get_violation_status", **values)


def _links(*pairs: tuple[int, int], status: int = DOWN) -> Change:
    """Set the status of links, each given as (from, to); a GPU lists its links in the order of its peers."""

    def change(machine: Machine) -> None:
        for here, there in pairs:
            path = f"status[{(there - (there > here)) * machine.links_per_pair}]"
            machine.set("get_gpu_xgmi_link_status", here, **{path: status})

    return change


def _all_links(status: int) -> Change:
    def change(machine: Machine) -> None:
        for device in range(machine.count):
            machine.set("get_gpu_xgmi_link_status", device, status=[status] * 8)

    return change


def _link_of(device: int) -> Change:
    """Take down every link of a GPU, at both ends."""

    def change(machine: Machine) -> None:
        peers = [other for other in range(machine.count) if other != device]
        _links(*((device, other) for other in peers), *((other, device) for other in peers))(machine)

    return change


def _memory(part: float) -> Change:
    def change(machine: Machine) -> None:
        mib = int(machine.sku["memory_mib"] * part)
        machine.set("get_gpu_vram_info", 3, **{"vram_size" if machine.since("6.2") else "vram_size_mb": mib})
        machine.set("get_gpu_vram_usage", 3, vram_total=mib)
        for kind in (0, 1):
            machine.set("get_gpu_memory_total", 3, kind, a2=mib << 20)

    return change


def _ras_off(*devices: int) -> Change:
    def change(machine: Machine) -> None:
        for device in devices or range(machine.count):
            for bit in range(63):
                machine.set("get_gpu_ras_block_features_enabled", device, 1 << bit, a2=DISABLED)

    return change


def _heat(kind: int, degrees: int, *devices: int) -> Change:
    def change(machine: Machine) -> None:
        name = {HOTSPOT: "temperature_hotspot", VRAM: "temperature_mem"}[kind]
        for device in devices or range(machine.count):
            machine.set("get_temp_metric", device, kind, CURRENT, a3=degrees)
            machine.set("get_gpu_metrics_info", device, **{name: degrees})

    return change


def _cap(watts: int, *devices: int) -> Change:
    def change(machine: Machine) -> None:
        for device in devices or range(machine.count):
            machine.set("get_power_cap_info", device, 0, power_cap=watts * 1_000_000)
            machine.set("get_power_info", device, power_limit=watts)

    return change


def _program(name: str) -> Change:
    values = {"name": name, "pid": 4711, "mem": 60 << 30, "memory_usage.vram_mem": 60 << 30}
    return _both(
        _set("get_gpu_process_list", a1=1, a2=[values]),
        _set("get_gpu_memory_usage", 0, a2=60 << 30),
        _set("get_gpu_vram_usage", vram_used=60 << 10),
    )


def _unloaded(machine: Machine) -> None:
    del machine.files["/sys/module/amdgpu/initstate"]
    machine.rows["amdsmi_init"] = {"return": DRIVER_NOT_LOADED}


def _lacks(function: str) -> Change:
    return lambda machine: machine.unsupported(function, 3)


def _replays(count: int) -> Change:
    return _both(
        _set("get_pcie_info", pcie_metric__pcie_replay_count=count),
        _set("get_gpu_pci_replay_counter", a1=count),
    )


_RESET = ("reset GPU", "reboot", "power-cycle", "replace part")
_MISSING = (FAIL, WARN, ERROR)
FAULTS = (
    Fault("nothing", _both(), (PASS,)),
    Fault("one GPU is gone from the driver", lambda m: m.remove(3), (FAIL,), "gpu3",
        ("power-cycle", "reboot"), gone=True,
        hours=("silent",)),
    Fault("every answer of one GPU fails", _dead(API_FAILED), (FAIL, ERROR), "gpu3"),
    Fault("one GPU supports no reading", _dead(NOT_SUPPORTED), (FAIL, ERROR), "gpu3"),
    Fault("uncorrectable errors of the memory", _errors(UMC, "uncorrectable", 2), (FAIL,), "gpu3", _RESET,
        hours=("load_ecc_uncorrectable",)),
    Fault("uncorrectable errors of the GFX block", _errors(GFX, "uncorrectable", 1), (FAIL,), "gpu3", _RESET,
        hours=("load_ecc_uncorrectable",)),
    Fault("few correctable errors", _errors(UMC, "correctable", 3), (PASS, WARN),
        hours=("ecc_ce",)),
    Fault("deferred errors", _errors(UMC, "deferred", 1), BAD, "gpu3"),
    Fault("three retired pages", _pages(3), (PASS, WARN)),
    Fault("bad pages near the threshold", _pages(250), BAD, "gpu3", needs=("threshold", "host")),
    Fault("more bad pages than the threshold", _pages(300), (FAIL,), "gpu3", ("replace part",),
        ("threshold", "host")),
    Fault("PROCHOT", _throttled("prochot_thrm"), BAD, "gpu3", needs=("throttling",),
        hours=("throttled",)),
    Fault("HBM throttles", _throttled("hbm_thrm"), BAD, "gpu3", needs=("throttling",),
        hours=("throttled",)),
    Fault("voltage regulator throttles", _throttled("vr_thrm"), BAD, "gpu3", needs=("throttling",),
        hours=("throttled",)),
    Fault("socket throttles by heat", _throttled("socket_thrm"), BAD, "gpu3", needs=("throttling",),
        hours=("throttled",)),
    Fault("at the power limit", _throttled("ppt_pwr"), (PASS, WARN), needs=("throttling",)),
    Fault("throttled long ago", _set("get_violation_status", acc_hbm_thrm=900_000, acc_prochot_thrm=77),
        (PASS,), needs=("throttling",)),
    # In public reports, a card at 16 W and 33 °C is THROTTLED: without a reason, the status is meaningless.
    Fault("throttled for an unnamed reason", _set("get_gpu_metrics_info", throttle_status=1,
        indep_throttle_status=1), (PASS, WARN), needs=("one word of throttling",)),
    # Either end of a link may be to blame, so the finding names the pair.
    Fault("xGMI link down at one end", _links((3, 1)), (FAIL,), "gpu1-gpu3",
        needs=("links", "ends", "host")),
    Fault("xGMI link down at one end, its other end not shown", _links((3, 1)), (FAIL,), "gpu3",
        needs=("links", "no ends", "host")),
    Fault("xGMI link down at both ends", _links((3, 2), (2, 3)), (FAIL,), "gpu2-gpu3",
        needs=("links", "host")),
    Fault("all xGMI links of one GPU down", _link_of(3), (FAIL,), "gpu3", needs=("links", "host")),
    Fault("all xGMI links disabled", _all_links(OFF), BAD, needs=("links", "host")),
    Fault("xGMI errors on one GPU", _set("gpu_xgmi_error_status", a1=1), BAD, "gpu3", needs=("host",)),
    Fault("PCIe width 8", _set("get_pcie_info", pcie_metric__pcie_width=8), BAD, "gpu3",
        hours=("pcie_width",)),
    Fault("PCIe Gen 4 on one", _set("get_pcie_info", pcie_metric__pcie_speed=16000), BAD, "gpu3",
        needs=("gen5",)),
    Fault("PCIe Gen 3 on one", _set("get_pcie_info", pcie_metric__pcie_speed=8000), BAD, "gpu3"),
    Fault("PCIe Gen 4 on all", _all("get_pcie_info", pcie_metric__pcie_speed=16000), BAD, needs=("gen5",)),
    Fault("five PCIe replays of long ago", _replays(5), (PASS, WARN),
        hours=("pcie_replays",)),
    Fault("PCIe replays that grow", _replays(5), BAD, "gpu3", later=_replays(90_000),
        hours=("load_replays",)),
    Fault("power limit lowered on one GPU", _cap(150, 3), BAD, "gpu3", needs=("host",)),
    Fault("power limit lowered on all", _cap(250), (PASS, WARN), needs=("host",)),
    Fault("RAS off on one GPU", _ras_off(3), BAD, "gpu3", needs=("ras",)),
    Fault("RAS off on all", _ras_off(), BAD, needs=("ras",)),
    Fault("chip hot at rest", _heat(HOTSPOT, 104, 3), BAD, "gpu3",
        hours=("load_temperature",)),
    Fault("memory hot at rest", _heat(VRAM, 103, 3), BAD, "gpu3"),
    Fault("all warm", _both(_heat(HOTSPOT, 62), _heat(VRAM, 55)), (PASS, WARN)),
    Fault("half the memory on one GPU", _memory(0.5), (FAIL,), "gpu3"),
    Fault("fewer compute units on one GPU", _set("get_gpu_asic_info", num_of_compute_units=38), BAD, "gpu3",
        needs=("units",)),
    Fault("another product on one GPU", _set("get_gpu_asic_info", market_name="AMD Instinct MI100",
        device_id=0x738C), BAD, "gpu3"),
    Fault("all partitioned CPX", lambda m: m.partition(8, *range(m.count)), (PASS, WARN),
        needs=("partitions",)),
    Fault("one GPU partitioned CPX", lambda m: m.partition(8, 3), BAD, "gpu3", needs=("partitions",)),
    Fault("a program on one GPU", _program("python3"), (WARN, FAIL), "gpu3"),
    Fault("AMD's exporter on one GPU", _both(_set("get_gpu_process_list", a1=1, a2=[
        {"name": "gpuagent", "pid": 901, "mem": 0}])), (PASS,)),
    Fault("memory taken by no program", _both(_set("get_gpu_memory_usage", 0, a2=60 << 30),
        _set("get_gpu_vram_usage", vram_used=60 << 10)), BAD, "gpu3"),
    Fault("performance level low on one GPU", _set("get_gpu_perf_level", a1=1), BAD, "gpu3",
        needs=("host",)),
    Fault("one GPU counts no errors", _both(_lacks("get_gpu_total_ecc_count"), _lacks("get_gpu_ecc_count")),
        _MISSING, "gpu3"),
    Fault("one GPU knows no throttling", _lacks("get_violation_status"), _MISSING, "gpu3",
        needs=("throttling",)),
    Fault("one GPU knows no power limit", _both(_lacks("get_power_cap_info"),
        _lacks("get_supported_power_cap")), _MISSING, "gpu3", needs=("host",)),
    Fault("one GPU knows no temperatures", _lacks("get_temp_metric"), _MISSING, "gpu3"),
    Fault("one GPU knows no link states", _lacks("get_gpu_xgmi_link_status"), _MISSING, "gpu3",
        needs=("links", "host")),
    Fault("one GPU knows no PCIe link", _lacks("get_pcie_info"), _MISSING, "gpu3"),
    Fault("driver not loaded", _unloaded, (FAIL, ERROR)),
    Fault("the library cannot start", lambda m: m.rows.update(amdsmi_init={"return": API_FAILED}),
        (FAIL, ERROR)),
)  # fmt: skip
