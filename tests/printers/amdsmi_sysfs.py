"""Facts of the same machine from sysfs, which is also the source of AMD's library."""

from __future__ import annotations

from typing import Any

from tests.printers.amdsmi_values import UMC, Machine

_COUNTED = {"uncorrected": "uncorrectable_count", "corrected": "correctable_count"}
_COUNTED |= {"deferred": "deferred_count"}


def facts(machine: Machine) -> dict[str, Any]:
    """Return the facts that gpuprov's observers find without amd-smi."""
    loaded = machine.files.get("/sys/module/amdgpu/initstate") == "live\n"
    identity = machine.sku["pci_ids"][-1 if machine.guest else 0]
    here = [machine.address(index) for index in range(machine.count)]
    return {
        **{"os.id": "debian", "os.version_id": "13", "os.codename": "trixie", "os.family": "debian"},
        **{"os.arch": "x86_64", "kernel.release": "6.12.0", "gpu.nvswitch_count": 0},
        **{"gpu.count": machine.count, "gpu.pci": [{"address": at, "device_id": identity} for at in here]},
        "amdgpu.loaded_version": "6.16.13" if loaded else None,
        "amdgpu.rocm": machine.release,
        "amdgpu.devices": [_device(machine, index) for index in range(machine.count)],
        **{"firmware.bios_version": "1.2", "firmware.system": "A server", "firmware.rdma": []},
    }


def _device(machine: Machine, index: int) -> dict[str, Any]:
    link = machine.answer("get_pcie_info", index)
    pages = machine.answer("get_gpu_bad_page_info", index)
    errors = machine.answer("get_gpu_total_ecc_count", index)
    memory = machine.answer("get_gpu_memory_total", index, 0).get("a2")
    peers = machine.count - 1
    links = peers * machine.links_per_pair
    speeds = [link.get(f"pcie_{name}_speed") for name in ("metric.pcie", "static.max_pcie")]
    now, most = (f"{speed / 1000:.1f} GT/s PCIe" if speed else None for speed in speeds)
    counted = {name: errors.get(key) for name, key in _COUNTED.items()}
    block = "umc" if machine.answer("get_gpu_ecc_count", index, UMC).get("uncorrectable_count") else "gfx"
    kind = next((kind for kind, name in (("ue", "uncorrected"), ("de", "deferred")) if counted[name]), "")
    return {
        "address": machine.address(index),
        "driver": "amdgpu",
        "serial": f"69{index}",
        "unique_id": f"dc9128{index}",
        "vbios": "113-M3000100-102",
        "memory_bytes": memory,
        "compute_units": machine.answer("get_gpu_asic_info", index).get(
            "num_of_compute_units", machine.sku["compute_units"]
        ),
        "partitions": 1,
        "compute_partition": machine.answer("get_gpu_compute_partition", index).get("a1"),
        "memory_partition": machine.answer("get_gpu_memory_partition", index).get("a1"),
        **{"link_speed": now, "link_speed_max": most},
        **{"link_width": link.get("pcie_metric.pcie_width")},
        **{"link_width_max": link.get("pcie_static.max_pcie_width")},
        **{"xgmi_links": links or None, "xgmi_peers": peers if links else None},
        **counted,
        "blocks": f"{block} {kind} 1" if kind else "",
        "unread": "" if errors else "umc: Query currently inaccessible",
        **{"bad_pages": pages.get("a1"), "bad_pages_in_use": 0 if pages else None},
    }
