"""The firmware family, on trees modelled on a machine's /sys and /proc."""

from __future__ import annotations

import pytest

from tests.node.machine import Tree

# Output of an H100's driver once a program has opened the GPU.
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


def card(tree: Tree, address: str, vbios: str) -> None:
    tree.file(f"/proc/driver/nvidia/gpus/{address}/information", INFORMATION.format(vbios=vbios))


def firmware(tree: Tree, *names: str) -> dict[str, object]:
    found = tree.values(*(f"firmware.{name}" for name in names))
    return {fact.removeprefix("firmware."): value for fact, value in found.items()}


def test_the_machine_and_its_bios(tree: Tree) -> None:
    bios = {"bios_vendor": "American Megatrends", "bios_version": "1.4b", "bios_date": "11/02/2026"}
    tree.lines("/sys/class/dmi/id", **bios, sys_vendor="Supermicro", product_name="SYS-821GE")
    tree.file("/proc/cpuinfo", "processor\t: 0\nmicrocode\t: 0x2b000603\n" + "flags: a b c\n" * 10000)
    others = {"system": "Supermicro SYS-821GE", "cpu_microcode": "0x2b000603"}
    assert firmware(tree, *bios, *others) == {**bios, **others}


def test_what_the_machine_does_not_say_is_null(tree: Tree) -> None:
    nothing = dict.fromkeys(("bios_version", "system", "cpu_microcode", "gpu_vbios"))
    assert firmware(tree, *nothing, "rdma") == {**nothing, "rdma": []}


def test_gpus_in_address_order(tree: Tree) -> None:
    card(tree, "0000:9b:00.0", "96.00.74.00.02")
    card(tree, "0000:1b:00.0", "96.00.74.00.01")
    assert firmware(tree, "gpu_vbios", "gpu_gsp", "gpu_uuid", "gpu_model") == {
        "gpu_vbios": ["96.00.74.00.01", "96.00.74.00.02"],
        "gpu_gsp": ["580.126.09", "580.126.09"],
        "gpu_uuid": ["GPU-8a56a4bc-e184-a047-2620-be19fdf913d5"] * 2,
        "gpu_model": ["NVIDIA H100 80GB HBM3"] * 2,
    }


@pytest.mark.parametrize("vbios", ["??.??.??.??.??"])
def test_a_gpu_that_was_never_started_is_not_known(tree: Tree, vbios: str) -> None:
    card(tree, "0000:1b:00.0", vbios)
    assert "has not started the GPU at 0000:1b:00.0" in tree.problem("firmware.gpu_vbios")
    assert tree.value("firmware.gpu_uuid") == ["GPU-8a56a4bc-e184-a047-2620-be19fdf913d5"]


def test_rdma_cards(tree: Tree) -> None:
    cards = "/sys/class/infiniband"
    tree.lines("/sys/devices/pci0000:15/0000:18:00.0", current_link_width=8, max_link_width=16)
    tree.lines(f"{cards}/mlx5_0", fw_ver="28.39.3004", board_id="MT_0000000838")
    tree.link(f"{cards}/mlx5_0/device", "../../../devices/pci0000:15/0000:18:00.0")
    (tree.root / cards.lstrip("/") / "rxe0").mkdir()  # a software device without board and firmware
    names = ("device", "address", "board_id", "firmware", "link_width", "link_width_max")
    assert [tuple(one[name] for name in names) for one in tree.value("firmware.rdma")] == [
        ("mlx5_0", "0000:18:00.0", "MT_0000000838", "28.39.3004", 8, 16),
        ("rxe0", None, None, None, None, None),
    ]
    assert all(one.keys() == set(names) for one in tree.value("firmware.rdma"))
