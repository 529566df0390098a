"""The firmware family: what it reads of a tree that looks like a machine's /sys and /proc."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from provision.remote import node_program, protocol

# As an H100's driver prints it once a program has opened the GPU.
INFORMATION = """\
Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 430
GPU UUID: \t GPU-8a56a4bc-e184-a047-2620-be19fdf913d5
Video BIOS: \t {vbios}
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t 0000:1b:00.0
Device Minor: \t 0
GPU Firmware: \t 580.126.09
GPU Excluded:\t No
"""


def ask(root: Path, *facts: str) -> tuple[dict[str, Any], dict[str, str]]:
    names = [f"firmware.{fact}" for fact in facts]
    request = {"facts": names, "root": str(root)}
    text = node_program.packed_for(names) + f"\n\nmain({request!a})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-"], input=text.encode("ascii"), capture_output=True, timeout=60
    )
    assert done.stderr == b""
    document = json.loads(protocol.unframed(done.stdout))
    facts_found = {
        name.partition(".")[2]: value
        for name, value in document["facts"].items()
        if name not in protocol.BASE_FACTS
    }
    return facts_found, document["problems"]


def put(root: Path, path: str, text: str) -> None:
    full = root / path.lstrip("/")
    full.parent.mkdir(parents=True, exist_ok=True)
    full.write_text(text)


def card(root: Path, address: str, vbios: str) -> None:
    put(root, f"/proc/driver/nvidia/gpus/{address}/information", INFORMATION.format(vbios=vbios))


def test_the_machine_and_its_bios(tmp_path: Path) -> None:
    for name, text in (
        ("bios_vendor", "American Megatrends"),
        ("bios_version", "1.4b"),
        ("bios_date", "11/02/2026"),
        ("sys_vendor", "Supermicro"),
        ("product_name", "SYS-821GE"),
    ):
        put(tmp_path, f"/sys/class/dmi/id/{name}", text + "\n")
    put(tmp_path, "/proc/cpuinfo", "processor\t: 0\nmicrocode\t: 0x2b000603\n" + "flags: a b c\n" * 10000)
    facts, problems = ask(tmp_path, "bios_vendor", "bios_version", "bios_date", "system", "cpu_microcode")
    assert problems == {}
    assert facts == {
        "bios_vendor": "American Megatrends",
        "bios_version": "1.4b",
        "bios_date": "11/02/2026",
        "system": "Supermicro SYS-821GE",
        "cpu_microcode": "0x2b000603",
    }


def test_what_the_machine_does_not_say_is_null(tmp_path: Path) -> None:
    facts, problems = ask(tmp_path, "bios_version", "system", "cpu_microcode", "gpu_vbios", "rdma")
    assert problems == {}
    assert facts == {
        "bios_version": None,
        "system": None,
        "cpu_microcode": None,
        "gpu_vbios": None,
        "rdma": [],
    }


def test_gpus_in_address_order(tmp_path: Path) -> None:
    card(tmp_path, "0000:9b:00.0", "96.00.74.00.02")
    card(tmp_path, "0000:1b:00.0", "96.00.74.00.01")
    facts, problems = ask(tmp_path, "gpu_vbios", "gpu_gsp", "gpu_uuid", "gpu_model")
    assert problems == {}
    assert facts["gpu_vbios"] == ["96.00.74.00.01", "96.00.74.00.02"]
    assert facts["gpu_gsp"] == ["580.126.09", "580.126.09"]
    assert facts["gpu_uuid"] == ["GPU-8a56a4bc-e184-a047-2620-be19fdf913d5"] * 2
    assert facts["gpu_model"] == ["NVIDIA H100 80GB HBM3"] * 2


@pytest.mark.parametrize("vbios", ["??.??.??.??.??"])
def test_a_gpu_that_was_never_started_is_not_known(tmp_path: Path, vbios: str) -> None:
    card(tmp_path, "0000:1b:00.0", vbios)
    facts, problems = ask(tmp_path, "gpu_vbios", "gpu_uuid")
    assert "gpu_vbios" not in facts
    assert "has not started the GPU at 0000:1b:00.0" in problems["firmware.gpu_vbios"]
    assert facts["gpu_uuid"] == ["GPU-8a56a4bc-e184-a047-2620-be19fdf913d5"]


def test_rdma_cards(tmp_path: Path) -> None:
    device = tmp_path / "sys/devices/pci0000:15/0000:18:00.0"
    device.mkdir(parents=True)
    (device / "current_link_width").write_text("8\n")
    (device / "max_link_width").write_text("16\n")
    put(tmp_path, "/sys/class/infiniband/mlx5_0/fw_ver", "28.39.3004\n")
    put(tmp_path, "/sys/class/infiniband/mlx5_0/board_id", "MT_0000000838\n")
    link = tmp_path / "sys/class/infiniband/mlx5_0/device"
    link.symlink_to("../../../devices/pci0000:15/0000:18:00.0")
    (tmp_path / "sys/class/infiniband/rxe0").mkdir()  # made in software: no board, no firmware
    facts, problems = ask(tmp_path, "rdma")
    assert problems == {}
    assert facts["rdma"] == [
        {
            "device": "mlx5_0",
            "address": "0000:18:00.0",
            "board_id": "MT_0000000838",
            "firmware": "28.39.3004",
            "link_width": 8,
            "link_width_max": 16,
        },
        {
            "device": "rxe0",
            "address": None,
            "board_id": None,
            "firmware": None,
            "link_width": None,
            "link_width_max": None,
        },
    ]
