"""The fact amd_smi.gpus: output of `amd-smi static --json` from ROCm 6 to 7, and errors without a GPU.

Forms: an MI210 recorded in the tests of ROCm/device-metrics-exporter (below `gpu_data`, limits as in ROCm
6), an MI355X in public reports (ppt0), the sources of amd-smi (errors) and amd/node-scraper (the warning).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from provision.node.observe.amd_smi import parse_static
from provision.node.observe.files import ReadError
from tests.node.machine import Tree

FACT = "amd_smi.gpus"
MI210: dict[str, Any] = {
    "gpu": 0,
    "asic": {"market_name": "AMD Instinct MI210", "device_id": "0x740f", "oam_id": "N/A"},
    "bus": {"bdf": "0000:0B:00.0", "max_pcie_width": 16, "max_pcie_speed": {"value": 16, "unit": "GT/s"}},
    "limit": {
        "max_power": {"value": 300, "unit": "W"},
        "min_power": {"value": 0, "unit": "W"},
        "socket_power": {"value": 250, "unit": "W"},
    },
    "vram": {"type": "HBM", "size": {"value": 65520, "unit": "MB"}},
    "ras": {"bad_page_threshold": 655, "ecc_block_state": {"UMC": "ENABLED", "XGMI_WAFL": "DISABLED"}},
}
PPT0 = {"socket_power_limit": {"value": 1400, "unit": "W"}, "max_power_limit": {"value": 1400, "unit": "W"}}
MI355X = {
    "gpu": 1,
    "asic": {"market_name": "AMD Instinct MI355X"},
    "bus": {"bdf": "0000:05:00.0"},
    "limit": {"ppt0": PPT0, "ppt1": {"socket_power_limit": "N/A", "max_power_limit": "N/A"}},
    "vram": {"size": {"value": 294896, "unit": "MB"}},
    "ras": "N/A",
}
SEEN = {
    **{"address": "0000:0b:00.0", "name": "AMD Instinct MI210", "memory_mib": 65520},
    **{"power_limit_w": 250, "power_limit_max_w": 300, "memory_ecc": "ENABLED"},
}


def parsed(text: str) -> Any:
    return parse_static([FACT], text)[FACT]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([MI210]),
        json.dumps({"gpu_data": [MI210]}, indent=4),
        "WARNING: User is missing the following required groups: render, video\n"
        "Please add user to these groups.\n" + json.dumps([MI210], indent=4) + "\n",
    ],
)
def test_each_form_of_the_document(text: str) -> None:
    assert parsed(text) == [SEEN]


def test_newer_limits_and_values_that_are_not_there() -> None:
    assert parsed(json.dumps({"gpu_data": [MI355X]})) == [
        {
            **{"address": "0000:05:00.0", "name": "AMD Instinct MI355X", "memory_mib": 294896},
            **{"power_limit_w": 1400, "power_limit_max_w": 1400, "memory_ecc": None},
        }
    ]
    bare = parsed(json.dumps([{"bus": {"bdf": "0000:05:00.0"}, "limit": "N/A", "asic": {"market_name": 7}}]))
    assert set(bare[0].values()) == {"0000:05:00.0", None}


@pytest.mark.parametrize(
    "text",
    [
        "ERROR:root:Unable to get devices, driver not initialized (amdgpu not found in modules)\n",
        "ERROR:root:Unable to detect any GPU devices, check amdgpu version and module status (sudo modprobe "
        "amdgpu)\n",
        "",
        "[",
        json.dumps([MI210])[:-5],
        json.dumps({"gpu_data": "N/A"}),
        json.dumps([{"gpu": 0}]),
        json.dumps([5]),
        "Traceback (most recent call last):\nKeyError: 'bdf'\n",
    ],
)
def test_what_is_no_list_of_gpus_is_a_problem_and_no_empty_list(text: str) -> None:
    with pytest.raises(ReadError, match="amd-smi answered: "):
        parsed(text)


@pytest.mark.parametrize("path", ["/usr/bin/amd-smi", "/opt/rocm/bin/amd-smi"])
def test_it_is_asked_where_rocm_or_the_distribution_has_it(tree: Tree, path: str) -> None:
    shown = json.dumps([MI210])
    script = f"#!/bin/sh\ntest \"$1\" = static && printf '%s\\n' '{shown}'\n"
    tree.file(path, script, 0o755)
    assert tree.value(FACT) == [SEEN]


def test_without_it_there_is_nothing_to_tell(bare: Tree) -> None:
    assert bare.value(FACT) is None


SILENT = "amd_smi.silent"
LISTED = [{"gpu": 0, "bdf": "0000:05:00.0"}, {"gpu": 1, "bdf": "0000:15:00.0"}]


def machine_of(tree: Tree, *addresses: str) -> None:
    """Create GPUs on the bus and a loaded driver that is bound to them."""
    tree.lines("/sys/module/amdgpu", version="6.16.13")
    for address in addresses:
        folder = f"/sys/bus/pci/devices/{address}"
        tree.lines(folder, vendor="0x1002", device="0x74a1", **{"class": "0x120000"})
        tree.link(f"{folder}/driver", "../../../bus/pci/drivers/amdgpu")


def test_the_gpus_that_amd_smi_does_not_list(tree: Tree) -> None:
    machine_of(tree, "0000:05:00.0", "0000:15:00.0")
    tree.tool("amd-smi", f"echo '{json.dumps(LISTED)}'")
    assert tree.values(SILENT) == {SILENT: []}
    tree.tool("amd-smi", f"echo '{json.dumps(LISTED[:1])}'")
    assert tree.values(SILENT) == {SILENT: ["0000:15:00.0: not listed by amd-smi"]}


def test_without_amd_smi_the_compute_driver_is_asked(tree: Tree) -> None:
    machine_of(tree, "0000:05:00.0", "0000:15:00.0")
    tree.file(
        "/sys/class/kfd/kfd/topology/nodes/1/properties",
        f"simd_count 1216\nsimd_per_cu 4\nlocation_id {0x0500}\ndomain 0\n",
    )
    assert tree.values(SILENT) == {SILENT: ["0000:15:00.0: not listed by the compute driver"]}


def test_an_answer_of_amd_smi_that_is_none_is_unread(tree: Tree) -> None:
    machine_of(tree, "0000:05:00.0")
    tree.tool("amd-smi", "echo Traceback")
    assert list(tree.ask(SILENT)[1]) == [SILENT]


def test_without_a_driver_no_gpu_fails_to_answer_it(tree: Tree) -> None:
    machine_of(tree, "0000:05:00.0")
    (tree.root / "sys/module/amdgpu/version").unlink()
    (tree.root / "sys/module/amdgpu").rmdir()
    assert tree.values(SILENT) == {SILENT: []}
