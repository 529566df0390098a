"""The GPU products: provision/data/skus/<sku>.yml, told apart by PCI id."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision import paths, yamlfile
from provision.errors import StackError


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
    return {file.stem: _read(file.stem) for file in sorted((paths.DATA / "skus").glob("*.yml"))}


def _read(sku: str) -> Sku:
    file = paths.DATA / "skus" / f"{sku}.yml"
    data = yamlfile.load_mapping(file, StackError)
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
        raise StackError(
            f"{file}: missing or misplaced: {trouble}", "compare with another file of that folder"
        ) from None


@functools.cache
def _by_pci_id() -> Mapping[str, Sku]:
    return {pci_id: sku for sku in all_skus().values() for pci_id in sku.pci_ids}


def kinds() -> tuple[tuple[str | None, str], ...]:
    """Every (architecture, fabric) a node may have, unknown hardware included."""
    seen: dict[tuple[str | None, str], None] = {(None, "none"): None, (None, "nvswitch"): None}
    for sku in all_skus().values():
        seen[sku.architecture, "none"] = None
        seen[sku.architecture, sku.fabric] = None
    return tuple(seen)


def describe_gpus(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The `gpu` part of `gpuprov_node` from the base facts `gpu.count`, `gpu.pci`, `gpu.nvswitch_count`.

    GPUs of several products have no SKU (`sku` is None); `architecture` is given if they share it.
    """
    devices: Sequence[Mapping[str, Any]] = facts.get("gpu.pci") or ()
    ids = sorted({str(device.get("device_id", "")).lower() for device in devices})
    found = {_by_pci_id().get(pci_id) for pci_id in ids}
    sku = found.pop() if len(found) == 1 else None
    return {
        "sku": sku.id if sku else None,
        "count": int(facts.get("gpu.count") or 0),
        "architecture": _shared_architecture(ids),
        "fabric": _fabric(sku, int(facts.get("gpu.nvswitch_count") or 0)),
        "pci_ids": ids,
        "product_names": list(sku.product_names) if sku else [],
    }


def _shared_architecture(ids: Sequence[str]) -> str | None:
    architectures = {sku.architecture if (sku := _by_pci_id().get(pci_id)) else None for pci_id in ids}
    return architectures.pop() if len(architectures) == 1 else None


def _fabric(sku: Sku | None, nvswitches: int) -> str:
    """B200 and B300 baseboards have switches that are no PCI devices, those of an NVL72 rack are in
    trays of their own; all before show theirs."""
    if nvswitches > 0:
        return "nvswitch"
    return sku.fabric if sku is not None and sku.fabric in ("nvlink5", "imex") else "none"
