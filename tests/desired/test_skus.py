"""Identification of a machine from its PCI devices."""

from __future__ import annotations

from typing import Any

import pytest

from provision import shipped
from provision.desired import skus, stack


def facts(*ids: str, switches: int = 0) -> dict[str, Any]:
    """Return facts with these PCI device ids, by default NVIDIA's."""
    whole = [each if ":" in each else f"10de:{each}" for each in ids]
    devices = [{"address": f"0000:{number:02x}", "device_id": each} for number, each in enumerate(whole)]
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
        (facts(*["2329"] * 8, switches=4), "h20", "hopper", "nvswitch"),
        (facts(*["2bb5"] * 8), "rtx-pro-6000-server", "blackwell", "none"),
        (facts("2bb1"), "rtx-pro-6000-workstation", "blackwell", "none"),
        (facts(*["2bb4"] * 4), "rtx-pro-6000-max-q", "blackwell", "none"),
        (facts("20B5"), "a100-pcie-80", "ampere", "none"),
        (facts(*["20f3"] * 8, switches=6), "a800-sxm-80", "ampere", "nvswitch"),
        (facts(*["20f5"] * 4), "a800-pcie-80", "ampere", "none"),
        (facts(*["2324"] * 8, switches=4), "h800-sxm", "hopper", "nvswitch"),
        (facts(*["2322"] * 4), "h800-pcie", "hopper", "none"),
        (facts(*["232c"] * 8, switches=4), "h20-3e", "hopper", "nvswitch"),
        (facts(*["26ba"] * 8), "l20", "ada", "none"),
        (facts("27b6"), "l2", "ada", "none"),
        (facts(*["25b6"] * 4), "a2-a16", "ampere", "none"),  # an A2 and an A16 share their id
        (facts("2237"), "a10g", "ampere", "none"),
        (facts(*["2230"] * 4), "rtx-a6000", "ampere", "none"),
        (facts("2e12"), "gb10", "blackwell", "none"),
        (facts(*["1db5"] * 8), "v100-sxm2-32", "volta", "none"),
        (facts(*["1db1"] * 8), "v100-sxm2-16", "volta", "none"),
        (facts("1db6"), "v100-pcie-32", "volta", "none"),
        (facts("1db4"), "v100-pcie-16", "volta", "none"),
        (facts("2330", "2331"), None, "hopper", "none"),
        (facts("2330", "26b9"), None, None, "none"),
        (facts("2330", "ffff"), None, None, "none"),
        (facts("ffff"), None, None, "none"),
        (facts(*["1002:74a1"] * 8), "mi300x", "cdna3", "none"),
        (facts("1002:74B5"), "mi300x", "cdna3", "none"),  # in a guest
        (facts(*["1002:7408"] * 8), "mi250x", "cdna2", "none"),
        (facts(*["1002:75a3"] * 8), "mi355x", "cdna4", "none"),
        (facts(*["1002:75a0"] * 8), "mi350x", "cdna4", "none"),
        (facts(*["1002:75b0"] * 8), "mi350x", "cdna4", "none"),
        (facts("1002:74a1", "1002:74a5"), None, "cdna3", "none"),
        (facts(*["1002:74a2"] * 8), "mi308x", "cdna3", "none"),
        (facts("1002:74b6"), "mi308x", "cdna3", "none"),  # in a guest
        (facts(*["1002:74a8"] * 8), "mi308x-hf", "cdna3", "none"),
        (facts(*["1002:74a9"] * 8), "mi300x-hf", "cdna3", "none"),
        (facts(*["1002:75a8"] * 4), "mi350p", "cdna4", "none"),
        (facts("1002:74a3"), None, None, "none"),  # AMD lists no product with this id
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
        assert {pci_id.partition(":")[0] for pci_id in sku.pci_ids} in ({"10de"}, {"1002"})
        assert all(pci_id == pci_id.lower() for pci_id in sku.pci_ids)
        assert sku.fabric in ("nvswitch", "nvlink5", "imex", "none")
        assert sku.memory_mib > 1000
        assert sku.power_w > 10


@pytest.mark.parametrize(
    ("seen", "vendor"),
    [
        (facts("2330", "26b9"), "nvidia"),
        (facts("ffff"), "nvidia"),
        (facts("1002:74a1"), "amd"),
        (facts("1002:ffff"), "amd"),
        (facts("1002:74a1", "2330"), "mixed"),
        (facts(), None),
    ],
)
def test_whose_gpus_a_machine_has(seen: dict[str, Any], vendor: str | None) -> None:
    assert stack.describe_node(seen)["gpu"]["vendor"] == vendor


@pytest.mark.parametrize("sku", [sku for sku, known in skus.all_skus().items() if known.vendor == "amd"])
def test_an_instinct_is_described_in_the_form_of_the_others(sku: str) -> None:
    data = shipped.load_mapping(f"skus/{sku}")
    known = skus.all_skus()[sku]
    assert known.architecture in ("cdna2", "cdna3", "cdna4")
    assert known.compute_units >= 80
    assert known.fabric == "none"  # their links connect the GPUs directly
    assert all(name.upper().startswith("AMD INSTINCT ") for name in known.product_names)
    stated = {name for names in data["sources"] for name in names.split(", ")}
    assert {"product_names", "pci_ids", "memory_mib", "pcie", "power_w", "compute_units"} <= stated
    if "xgmi" not in data:
        assert sku == "mi350p"  # a card without links
        return
    assert "xgmi" in stated
    assert data["xgmi"]["links"] * data["xgmi"]["gbs_per_link"] >= 300
    peers = data["gpus_per_node"] - 1
    assert data["xgmi"].get("links_per_pair", 0) in (0, data["xgmi"]["links"] / peers)


def test_a_die_of_an_mi250_is_half_a_module() -> None:
    known = skus.all_skus()
    assert {name for name, sku in known.items() if sku.devices_per_module == 2} == {"mi250", "mi250x"}
    assert known["mi250x"].memory_mib == known["mi210"].memory_mib  # the same die
    assert known["mi250x"].power_w < known["mi210"].power_w


def test_all_of_nvidias_say_what_links_they_have() -> None:
    for sku, known in skus.all_skus().items():
        assert ("nvlink" in shipped.load_mapping(f"skus/{sku}")) == (known.vendor == "nvidia")


@pytest.mark.parametrize("sku", [sku for sku, known in skus.all_skus().items() if known.vendor == "nvidia"])
def test_every_value_of_an_nvidia_sku_has_a_source(sku: str) -> None:
    data = shipped.load_mapping(f"skus/{sku}")
    stated = {name for names in data["sources"] for name in names.split(", ")}
    linked = {"nvlink"} if data["nvlink"] else set()
    assert {"pci_ids", "memory_mib", "pcie", "power_w", "fabric"} | linked <= stated


def test_every_kind_of_machine_is_thought_of() -> None:
    kinds = set(skus.kinds())
    assert "cdna3" not in {architecture for architecture, _ in kinds}  # no role provisions them
    assert {("hopper", "nvswitch"), ("hopper", "none"), ("blackwell", "nvlink5"), (None, "none")} <= kinds
