"""The GPU products: provision/data/skus/<sku>.yml, told apart by PCI id."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision import shipped
from provision.errors import StackError

NO_GPU = "no NVIDIA GPU on the PCI bus"
NO_GPU_FIX = "check power and seating (lspci -d 10de:)"
NO_GPU_ON_PURPOSE = (
    "none on purpose: leave it out with --nodes, or set nvidia_driver_require_gpu: false and "
    "gpuprov_expected_gpus: 0"
)


@dataclass(frozen=True)
class Sku:
    """One GPU product. `memory_mib` as nvidia-smi prints it.

    `fabric`: what its usual baseboard connects the GPUs with (nvswitch, nvlink5, imex, none)."""

    id: str
    product_names: tuple[str, ...]
    architecture: str
    pci_ids: tuple[str, ...]
    memory_mib: int
    fabric: str
    power_w: int


@functools.cache
def all_skus() -> Mapping[str, Sku]:
    """Every known SKU by id. Raises StackError on a bad data file."""
    return {sku: _read(sku) for sku in shipped.names("skus")}


def _read(sku: str) -> Sku:
    data = shipped.load_mapping(f"skus/{sku}", StackError)
    try:
        return Sku(
            id=sku,
            product_names=tuple(data["product_names"]),
            architecture=data["architecture"],
            pci_ids=tuple(data["pci_ids"]),
            memory_mib=data["memory_mib"],
            fabric=data["fabric"],
            power_w=data["power_w"],
        )
    except (KeyError, TypeError) as trouble:
        file = shipped.file_of(f"skus/{sku}")
        raise StackError(
            f"{file}: missing or misplaced: {trouble}", "compare with another file of that folder"
        ) from None


def kinds() -> tuple[tuple[str | None, str], ...]:
    """Every (architecture, fabric) a node may have, unknown hardware included."""
    seen: dict[tuple[str | None, str], None] = {(None, "none"): None, (None, "nvswitch"): None}
    for sku in all_skus().values():
        seen[sku.architecture, "none"] = None
        seen[sku.architecture, sku.fabric] = None
    return tuple(seen)


@functools.cache
def by_pci_id() -> Mapping[str, dict[str, Any]]:
    """What gpuprov_node takes from the SKU of each PCI id: {sku, architecture, fabric, product_names}."""
    return {
        pci_id: {
            "sku": sku.id,
            "architecture": sku.architecture,
            "fabric": sku.fabric,
            "product_names": list(sku.product_names),
        }
        for sku in all_skus().values()
        for pci_id in sku.pci_ids
    }
