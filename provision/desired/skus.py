"""GPU products from provision/data/skus/<sku>.yml, identified by PCI id."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision import shipped
from provision.errors import StackError
from provision.node.description import DEFAULT_VENDOR
from provision.node.observe.vendors import VENDORS


@dataclass(frozen=True)
class Sku:
    """One GPU product; a module may hold several of its devices.
    `memory_mib` (as the vendor's tool prints it), `compute_units` (0: not stated), `power_w` are per device.

    `fabric`: the connection between GPUs on its usual baseboard (nvswitch, nvlink5, imex, none)."""

    id: str
    product_names: tuple[str, ...]
    architecture: str
    pci_ids: tuple[str, ...]
    memory_mib: int
    fabric: str
    power_w: int
    devices_per_module: int = 1
    compute_units: int = 0

    @property
    def vendor(self) -> str:
        """The vendor, derived from the PCI ids."""
        return VENDORS[self.pci_ids[0].partition(":")[0]]


@functools.cache
def all_skus() -> Mapping[str, Sku]:
    """Return every known SKU by id. Raises StackError on a bad data file."""
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
            devices_per_module=data.get("devices_per_module", 1),
            compute_units=data.get("compute_units", 0),
        )
    except (KeyError, TypeError) as trouble:
        file = shipped.file_of(f"skus/{sku}")
        raise StackError(
            f"{file}: missing or misplaced: {trouble}", "compare with another file of that folder"
        ) from None


def kinds(vendor: str = DEFAULT_VENDOR) -> tuple[tuple[str | None, str], ...]:
    """Return every (architecture, fabric) that a node with this vendor's GPUs may have, known or not."""
    seen: dict[tuple[str | None, str], None] = {(None, "none"): None}
    if vendor == DEFAULT_VENDOR:
        seen[None, "nvswitch"] = None
    for sku in all_skus().values():
        if sku.vendor != vendor:
            continue
        seen[sku.architecture, "none"] = None
        seen[sku.architecture, sku.fabric] = None
    return tuple(seen)


@functools.cache
def by_pci_id() -> Mapping[str, dict[str, Any]]:
    """Return gpuprov_node's fields by PCI id, as {sku, architecture, fabric, product_names}."""
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
