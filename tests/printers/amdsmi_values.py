"""Answers of AMD's library on a machine of a SKU: the table of values below the real amd-smi."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from provision import shipped
from provision.errors import StackError

GIB = 1 << 30
NOT_SUPPORTED, API_FAILED, DRIVER_NOT_LOADED, NO_PERMISSION = 2, 7, 34, 10
ABSENT = {8: 0xFF, 16: 0xFFFF, 32: 0xFFFFFFFF, 64: 0xFFFFFFFFFFFFFFFF}  # the library's "not available"
BUSES = (0x05, 0x15, 0x65, 0x75, 0x85, 0x95, 0xE5, 0xF5)
_HANDLE = 0x1000
EDGE, HOTSPOT, VRAM = 0, 1, 2
CURRENT, CRITICAL, EMERGENCY = 0, 5, 7
UMC, GFX, XGMI = 1, 4, 128
ENABLED, DISABLED = 6, 1
UP, DOWN, OFF = 1, 0, 2  # a link's status
_COUNTED = (1, 2, 4, 8, 32, 64, 128)  # the blocks with counters of errors
_THERMAL = ("prochot_thrm", "ppt_pwr", "socket_thrm", "vr_thrm", "hbm_thrm", "gfx_clk_below_host_limit")

Rows = dict[str, dict[str, Any]]


def since(release: str, first: str) -> bool:
    """Whether `release` is `first` or newer."""
    known, asked = ([int(part) for part in re.findall(r"\d+", one)] for one in (release, first))
    return known >= asked


@dataclass
class Machine:
    """The GPUs of one node as library values: `rows` maps KEY → path → value, and faults change it."""

    name: str
    sku: Mapping[str, Any]
    release: str
    count: int = 8
    guest: bool = False
    buses: tuple[int, ...] = BUSES  # bus numbers; bits above the lower 8 are the PCI domain
    rows: Rows = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # devices that the library has lost

    def __post_init__(self) -> None:
        self.rows = _system(self)
        for index in range(self.count):
            self.rows.update(_device(self, index))
        self.files = _files(self)

    @property
    def mi300(self) -> bool:
        """Whether the driver reports gpu_metrics of MI300, with throttling counters and each xGMI link."""
        return bool(self.sku["architecture"] != "cdna2")

    def since(self, release: str) -> bool:
        """Whether the release of amd-smi is this one or newer; `6.3` for features introduced by ROCm 6.3."""
        return since(self.release, release)

    @property
    def links_per_pair(self) -> int:
        """Number of xGMI links between each pair of GPUs; 0 on boards without full connectivity."""
        return int(self.sku["xgmi"].get("links_per_pair", 0))

    def set(self, function: str, device: int, *arguments: int, **values: object) -> None:
        """Set the answer of a function for a device; `a__b` in a name is the path a.b."""
        key = " ".join([f"amdsmi_{function}", str(_HANDLE + device), *map(str, arguments)])
        row = self.rows.setdefault(key, {})
        row.update({name.replace("__", "."): value for name, value in values.items()})

    def of(self, device: int) -> list[str]:
        """Return the keys of one device's answers."""
        return [key for key in self.rows if key.split()[1:2] == [str(_HANDLE + device)]]

    def unsupported(self, function: str, *devices: int) -> None:
        """Make a function return 'not supported' on these devices, by default on all."""
        for device in devices or range(self.count):
            for key in self.of(device):
                if key.split()[0] == f"amdsmi_{function}":
                    self.rows[key] = {"return": NOT_SUPPORTED}

    def address(self, device: int) -> str:
        """Return the PCI address, such as 0000:05:00.0."""
        return f"{self.buses[device] >> 8:04x}:{self.buses[device] & 0xFF:02x}:00.0"

    def remove(self, device: int) -> None:
        """Make the driver lose a device; the amd-smi numbers of later devices decrease by one."""
        _listed(self.rows, [_HANDLE + index for index in range(self.count) if index != device])
        self.gone.add(device)

    def partition(self, parts: int, *devices: int) -> None:
        """Split these GPUs into `parts` devices each, which differ in the function of their address."""
        handles = []
        for index in range(self.count):
            handles.append(_HANDLE + index)
            if index not in devices:
                continue
            self.set("get_gpu_compute_partition", index, a1="CPX")
            self.set("get_gpu_accelerator_partition_profile", index, profile_type=5, num_partitions=parts)
            if self.since("6.3"):
                self.set("get_gpu_metrics_info", index, num_partition=parts)
            for part in range(1, parts):
                handle = _HANDLE + 0x100 * part + index
                handles.append(handle)
                for key in self.of(index):
                    function, _, *arguments = key.split()
                    self.rows[" ".join([function, str(handle), *arguments])] = dict(self.rows[key])
                self.rows[f"amdsmi_get_gpu_device_bdf {handle}"][f"{_address(self)}.function_number"] = part
                self.rows[f"amdsmi_get_gpu_kfd_info {handle}"]["current_partition_id"] = part
                place = (self.buses[index] << 8) + part
                self.rows[f"amdsmi_get_processor_handle_from_bdf {place}"] = {"a1": handle}
        _listed(self.rows, handles)

    def answer(self, function: str, device: int, *arguments: int) -> dict[str, Any]:
        """Return a device's row; empty if the call fails."""
        row = self.rows.get(" ".join([f"amdsmi_{function}", str(_HANDLE + device), *map(str, arguments)]), {})
        return {} if row.get("return") else row


def _listed(rows: Rows, handles: list[int]) -> None:
    """Give each device a separate socket, as the library lists GPUs."""
    sockets = [handle + 0x1000 for handle in handles]
    rows["amdsmi_get_socket_handles"] = {"a0": len(handles), "a1": sockets}
    for handle, socket in zip(handles, sockets, strict=True):
        rows[f"amdsmi_get_processor_handles {socket}"] = {"a1": 1, "a2": [handle]}
        rows[f"amdsmi_get_processor_handles_by_type {socket} 1"] = {"a2": [handle], "a3": 1}


def _system(machine: Machine) -> Rows:
    rows: Rows = {
        "amdsmi_init": {},
        "amdsmi_shut_down": {},
        "amdsmi_get_rocm_version": {"a0": machine.release},
        "amdsmi_get_processor_type": {"a1": 1},
        **{
            f"amdsmi_get_processor_handle_from_bdf {machine.buses[index] << 8}": {"a1": _HANDLE + index}
            for index in range(machine.count)
        },
        "amdsmi_get_lib_version": {"major": 26 if machine.since("7") else 24},
        "amdsmi_status_code_to_string": {"a1": "the library's words"},
    }
    _listed(rows, [_HANDLE + index for index in range(machine.count)])
    return rows


def _files(machine: Machine) -> dict[str, str]:
    known, virtual = machine.sku["pci_ids"], " hypervisor" if machine.guest else ""
    identity = known[-1 if machine.guest else 0].split(":")[1]
    return {
        "/proc/cpuinfo": f"flags\t\t: fpu sse{virtual}\n",
        "/sys/module/amdgpu/initstate": "live\n",
        **{
            f"/sys/bus/pci/devices/{machine.address(index)}/device": f"0x{identity}\n"
            for index in range(machine.count)
        },
    }


def _device(machine: Machine, index: int) -> Rows:
    rows: Rows = {}

    def put(function: str, *arguments: int, **values: object) -> None:
        key = " ".join([f"amdsmi_{function}", str(_HANDLE + index), *map(str, arguments)])
        rows[key] = {name.replace("__", "."): value for name, value in values.items()}

    for part in (_identity, _static, _sensors, _memory, _counters, _links):
        part(machine, index, put)
    return rows


def _address(machine: Machine) -> str:
    """Return the name, in the library's struct, of the part with the fields of a PCI address."""
    return "bdf" if machine.since("7") else "struct_amdsmi_bdf_t" if machine.since("6.2") else "fields"


def _parts(bus: int) -> dict[str, int]:
    """Return the fields of a PCI address."""
    return {"bus_number": bus & 0xFF, "device_number": 0, "function_number": 0, "domain_number": bus >> 8}


Put = Callable[..., None]


def _identity(machine: Machine, index: int, put: Put) -> None:
    sku, bus = machine.sku, machine.buses[index]
    name = sku["product_names"][-1 if machine.guest else 0]
    asic: dict[str, object] = {
        "market_name": name,
        "vendor_id": 0x1002,
        "vendor_name": "Advanced Micro Devices Inc. [AMD/ATI]",
        "subvendor_id": 0x1002,
        "device_id": int(sku["pci_ids"][-1 if machine.guest else 0].split(":")[1], 16),
        "rev_id": 0,
        "asic_serial": f"{0x692231FDF08D3560 + index:016X}",
        "oam_id": index,
    }
    if machine.since("6.3"):
        graphics = int(sku["gfx"][3:], 16)
        asic |= {"num_of_compute_units": sku["compute_units"], "target_graphics_version": graphics}
    if machine.since("7"):
        asic |= {
            "subsystem_id": int(sku["pci_ids"][0].split(":")[1], 16),
            "flags": 0,
            "physical_acc_id": index,
        }
    put("get_gpu_asic_info", **asic)
    parts = _parts(bus)
    put("get_gpu_device_bdf", **{f"{_address(machine)}__{part}": value for part, value in parts.items()})
    put("get_gpu_device_uuid", a2=f"{index:02x}ff740f-0000-1000-80{index:02x}-{bus:012x}")
    put("get_gpu_kfd_info", kfd_id=9000 + index, node_id=index + 2, current_partition_id=0)
    put("get_gpu_virtualization_mode", a1=3 if machine.guest else 1)
    put("get_gpu_enumeration_info", drm_render=128 + index, drm_card=index, hsa_id=index + 2, hip_id=index)


def _static(machine: Machine, _index: int, put: Put) -> None:
    sku = machine.sku
    speed = {3: 8000, 4: 16000, 5: 32000}[sku["pcie"]["gen"]]
    put(
        "get_pcie_info",
        pcie_static__max_pcie_width=sku["pcie"]["width"],
        pcie_static__max_pcie_speed=speed,
        pcie_static__pcie_interface_version=sku["pcie"]["gen"],
        pcie_static__slot_type=0 if sku["power_w"] <= 300 and not sku.get("devices_per_module") else 1,
        pcie_metric__pcie_width=sku["pcie"]["width"],
        pcie_metric__pcie_speed=speed,
        pcie_metric__pcie_bandwidth=1 if machine.mi300 else ABSENT[32],
        pcie_metric__pcie_replay_count=0,
        **{
            f"pcie_metric__pcie_{name}": 0 if machine.mi300 else ABSENT[64]
            for name in (
                "l0_to_recovery_count",
                "replay_roll_over_count",
                "nak_sent_count",
                "nak_received_count",
            )
        },
    )
    size = "vram_size" if machine.since("6.2") else "vram_size_mb"
    hynix = "HYNIX" if machine.since("7") else 5 if machine.since("6.4") else 6
    vram = {size: sku["memory_mib"], "vram_type": 4 if machine.since("6.2") else 6, "vram_vendor": hynix}
    put("get_gpu_vram_info", **vram, **({"vram_bit_width": 8192} if machine.since("6.3") else {}))
    put("get_gpu_driver_info", driver_name="amdgpu", driver_version="6.16.13")
    watts = sku["power_w"] * 1_000_000
    if not machine.guest:
        put("get_supported_power_cap", a1=1, a2=[0], a3=[0])
        put("get_power_cap_info", 0, power_cap=watts, default_power_cap=watts, max_power_cap=watts)
        put("get_gpu_bad_page_threshold", a1=256)
        put("get_gpu_ras_feature_info", ras_eeprom_version=0x20010, ecc_correction_schema_flag=0xF)
    put("get_gpu_bad_page_info", a1=0, a2=[])
    for block in (1 << bit for bit in range(63)):
        counted = block in _COUNTED
        put("get_gpu_ras_block_features_enabled", block, a2=ENABLED if counted else DISABLED)


def _sensors(machine: Machine, _index: int, put: Put) -> None:
    chip, memory, absent = 45, 38, ABSENT[16]
    edge = absent if machine.mi300 else 40
    for kind, degrees in ((EDGE, edge), (HOTSPOT, chip), (VRAM, memory)):
        if degrees != absent:
            put("get_temp_metric", kind, CURRENT, a3=degrees)
            put("get_temp_metric", kind, CRITICAL, a3=100 if kind != VRAM else 94)
            put("get_temp_metric", kind, EMERGENCY, a3=110 if kind != VRAM else 104)
    metrics: dict[str, object] = {"every byte": 0xFF}
    metrics |= {
        "temperature_edge": edge,
        "temperature_hotspot": chip,
        "temperature_mem": memory,
        "temperature_vrsoc": 41 if machine.mi300 else absent,
        "average_gfx_activity": 0,
        "average_umc_activity": 0,
        "energy_accumulator": 123_456_789,
        "current_gfxclk": 132,
        "current_uclk": 900,
        "throttle_status": 0 if not machine.mi300 else ABSENT[32],
        "indep_throttle_status": 0 if not machine.mi300 else ABSENT[64],
        "pcie_link_width": machine.sku["pcie"]["width"],
        "pcie_link_speed": {4: 160, 5: 320}[machine.sku["pcie"]["gen"]],
        "common_header.structure_size": 1664,
        "common_header.format_revision": 1,
        "common_header.content_revision": 8 if machine.mi300 else 3,
    }
    if machine.mi300:
        metrics |= {"current_socket_power": 140, "pcie_replay_count_acc": 0, "current_gfxclks": [132] * 8}
    else:
        metrics |= {"average_socket_power": 42, "temperature_hbm": [memory] * 4}
    if machine.since("7"):
        metrics["apu_metrics"] = None
    if machine.since("6.3"):
        metrics["num_partition"] = 1 if machine.mi300 else absent
    put("get_gpu_metrics_info", **metrics)
    put("is_gpu_power_management_enabled", a1=True)
    watts, none = 140 if machine.mi300 else 42, ABSENT[32]
    power: dict[str, object] = {"gfx_voltage": 800, "soc_voltage": ABSENT[16], "mem_voltage": ABSENT[16]}
    unknown = ABSENT[32 if machine.since("7") else 16]
    power |= {
        "current_socket_power": watts if machine.mi300 else unknown,
        "average_socket_power": unknown if machine.mi300 else watts,
        "power_limit": machine.sku["power_w"],
    }
    power |= {"socket_power": watts} if machine.since("6.4") else {}
    put("get_power_info", **power, **({"ubb_power": none} if machine.since("7") else {}))
    put("get_gpu_activity", gfx_activity=0, umc_activity=0, mm_activity=ABSENT[16])
    clocks = {0: (132, 500, 2100), 4: (900, 900, 1300)}
    for kind, (now, low, high) in clocks.items():
        values = {"clk" if machine.since("6.2") else "cur_clk": now, "min_clk": low, "max_clk": high}
        put("get_clock_info", kind, **values)
    put("get_gpu_perf_level", a1=0)
    if machine.mi300 and not machine.guest:
        put("get_violation_status", **{"every byte": 0xFF}, **_calm())


def _calm() -> dict[str, object]:
    """Return running throttling counters of a GPU that is not throttled."""
    values: dict[str, object] = {
        "acc_counter": 5_000_000,
        "reference_timestamp": 1,
        "violation_timestamp": 2,
    }
    for kind in _THERMAL[:5]:
        values |= {f"acc_{kind}": 0, f"per_{kind}": 0, f"active_{kind}": 0}
    return values


def _memory(machine: Machine, _index: int, put: Put) -> None:
    total = machine.sku["memory_mib"] << 20
    for kind, size, used in ((0, total, 283 << 20), (1, total, 283 << 20), (2, 512 * GIB, 16 << 20)):
        put("get_gpu_memory_total", kind, a2=size)
        put("get_gpu_memory_usage", kind, a2=used)
    put("get_gpu_vram_usage", vram_total=total >> 20, vram_used=283)
    put("get_gpu_process_list", a1=0, a2=[])


def _counters(_machine: Machine, _index: int, put: Put) -> None:
    none = {"correctable_count": 0, "uncorrectable_count": 0, "deferred_count": 0}
    put("get_gpu_total_ecc_count", **none)
    for block in _COUNTED:
        put("get_gpu_ecc_count", block, **none)
    put("get_gpu_pci_replay_counter", a1=0)
    put("get_gpu_compute_partition", a1="SPX")
    put("get_gpu_memory_partition", a1="NPS1")
    put("get_gpu_accelerator_partition_profile", profile_type=1, num_partitions=1)
    put("gpu_xgmi_error_status", a1=0)


def _links(machine: Machine, index: int, put: Put) -> None:
    if machine.sku.get("devices_per_module") or machine.sku["architecture"] == "cdna2":
        put("get_xgmi_info", xgmi_lanes=16, xgmi_hive_id=1, xgmi_node_id=index, index=index)
    peers = [other for other in range(machine.count) if other != index]
    each = machine.links_per_pair
    ends = [other for other in peers for _ in range(each)]
    if each:
        status = [UP] * len(ends) + [OFF] * (8 - len(ends))
        put("get_gpu_xgmi_link_status", total_links=len(ends), status=status)
    rate = round(machine.sku["xgmi"]["gbs_per_link"] / 4)
    values: dict[str, object] = {"num_links": len(ends)}
    prefix = f"bdf.{_address(machine)}"
    for place, other in enumerate(ends):
        parts = {f"{prefix}.{part}": value for part, value in _parts(machine.buses[other]).items()}
        link = parts | {
            "bit_rate": rate,
            "max_bandwidth": rate * 16,
            "link_type": 2 if machine.since("7") else 1,
        }
        values |= {f"links[{place}].{name}": value for name, value in link.items()}
    put("get_link_metrics", **values)
    for other in peers:
        put("topo_get_link_type", _HANDLE + other, a2=1, a3=2)


def machine(sku: str, release: str, *, guest: bool = False) -> Machine:
    """Return a healthy machine of a SKU with its usual number of GPUs; unknown SKUs raise StackError."""
    data = shipped.load_mapping(f"skus/{sku}", StackError)
    return Machine(sku, data, release, data["gpus_per_node"], guest)
