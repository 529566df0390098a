"""The description of a node, `gpuprov_node`, from its base facts: the same on the controller and in the
module node_facts."""

from typing import Any

from provision.node.observe.vendors import VENDORS

MIXED = "mixed"  # in place of a vendor's name: GPUs of several in one machine
DEFAULT_VENDOR = "nvidia"  # whose GPUs a node is taken to have before it was looked at


def describe(facts: Any, products: Any) -> Any:
    """`products`: PCI id -> {sku, architecture, fabric, product_names} of the product that has it."""
    return {
        "os": {key: facts.get("os." + key) for key in ("id", "version_id", "codename", "family", "arch")},
        "kernel": {key: facts.get("kernel." + key) for key in ("release", "boot_release")},
        "gpu": describe_gpus(facts, products),
    }


def describe_gpus(facts: Any, products: Any) -> Any:
    """GPUs of several products have no SKU (`sku` is None); `architecture` is given if they share it.
    `vendor` is None without GPUs."""
    ids = sorted({str(device.get("device_id", "")).lower() for device in facts.get("gpu.pci") or ()})
    known = [products.get(pci_id) or {} for pci_id in ids]
    skus = {product.get("sku") for product in known}
    product = known[0] if len(skus) == 1 else {}
    vendors = {VENDORS[vendor] for vendor in (pci_id[:4] for pci_id in ids) if vendor in VENDORS}
    architectures = {product.get("architecture") for product in known}
    return {
        "vendor": vendors.pop() if len(vendors) == 1 else MIXED if vendors else None,
        "sku": product.get("sku"),
        "count": int(facts.get("gpu.count") or 0),
        "architecture": architectures.pop() if len(architectures) == 1 else None,
        "fabric": fabric(product, int(facts.get("gpu.nvswitch_count") or 0)),
        "pci_ids": ids,
        "product_names": list(product.get("product_names", ())),
    }


def fabric(product: Any, nvswitches: int) -> Any:
    """B200 and B300 baseboards have switches that are no PCI devices, those of an NVL72 rack are in trays of
    their own; all before show theirs."""
    if nvswitches > 0:
        return "nvswitch"
    return product["fabric"] if product.get("fabric") in ("nvlink5", "imex") else "none"
