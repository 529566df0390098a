"""What a machine is follows from its PCI devices."""

from __future__ import annotations

from typing import Any

import pytest

from provision.desired import skus, stack


def facts(*ids: str, switches: int = 0) -> dict[str, Any]:
    devices = [
        {"address": f"0000:{number:02x}", "device_id": f"10de:{each}"} for number, each in enumerate(ids)
    ]
    return {"gpu.count": len(ids), "gpu.pci": devices, "gpu.nvswitch_count": switches}


@pytest.mark.parametrize(
    ("seen", "sku", "architecture", "fabric"),
    [
        (facts(*["2330"] * 8, switches=4), "h100-sxm", "hopper", "nvswitch"),
        (facts(*["2330"] * 4), "h100-sxm", "hopper", "none"),
        (facts(*["2901"] * 8), "b200", "blackwell", "nvlink5"),
        (facts(*["2941"] * 4), "gb200", "blackwell", "imex"),
        (facts("2342"), "gh200", "hopper", "none"),
        (facts("26b9"), "l40s", "ada", "none"),
        (facts("20B5"), "a100-pcie-80", "ampere", "none"),
        (facts("2330", "2331"), None, "hopper", "none"),
        (facts("2330", "26b9"), None, None, "none"),
        (facts("2330", "ffff"), None, None, "none"),
        (facts("ffff"), None, None, "none"),
        (facts(), None, None, "none"),
        ({}, None, None, "none"),
    ],
)
def test_what_a_machine_is(seen: dict[str, Any], sku: Any, architecture: Any, fabric: str) -> None:
    gpu = stack.describe_node(seen)["gpu"]
    assert (gpu["sku"], gpu["architecture"], gpu["fabric"]) == (sku, architecture, fabric)


def test_no_two_products_share_a_pci_id_and_all_are_described() -> None:
    ids = [pci_id for sku in skus.all_skus().values() for pci_id in sku.pci_ids]
    assert len(ids) == len(set(ids))
    for sku in skus.all_skus().values():
        assert all(pci_id.startswith("10de:") and pci_id == pci_id.lower() for pci_id in sku.pci_ids)
        assert sku.fabric in ("nvswitch", "nvlink5", "imex", "none")
        assert sku.memory_mib > 1000
        assert sku.power_w > 10


def test_every_kind_of_machine_is_thought_of() -> None:
    kinds = set(skus.kinds())
    assert {("hopper", "nvswitch"), ("hopper", "none"), ("blackwell", "nvlink5"), (None, "none")} <= kinds
