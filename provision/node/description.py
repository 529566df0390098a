"""The description `gpuprov_node` of a node from its base facts, for controller and module node_facts."""

from typing import Any

from provision.node.observe.vendors import VENDORS

MIXED = "mixed"  # instead of a vendor's name: GPUs of several vendors in one machine
DEFAULT_VENDOR = "nvidia"  # assumed vendor of a node's GPUs before the node was observed


def describe(facts: Any, products: Any) -> Any:
    """Return the description. `products`: PCI id -> {sku, architecture, fabric, product_names}."""
    return {
        "os": {key: facts.get("os." + key) for key in ("id", "version_id", "codename", "family", "arch")},
        "kernel": {key: facts.get("kernel." + key) for key in ("release", "boot_release")},
        "gpu": describe_gpus(facts, products),
    }


def describe_gpus(facts: Any, products: Any) -> Any:
    """Describe the GPUs; `sku` and `architecture` are None if not shared by all, `vendor` without GPUs."""
    ids = sorted({str(device.get("device_id", "")).lower() for device in facts.get("gpu.pci") or ()})
    matching = [products.get(pci_id) or {} for pci_id in ids]
    skus = {product.get("sku") for product in matching}
    product = matching[0] if len(skus) == 1 else {}
    vendors = {VENDORS[vendor] for vendor in (pci_id[:4] for pci_id in ids) if vendor in VENDORS}
    architectures = {product.get("architecture") for product in matching}
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
    """Return the fabric. Switches of B200 and B300 are not on PCI, an NVL72's are in separate trays."""
    if nvswitches > 0:
        return "nvswitch"
    return product["fabric"] if product.get("fabric") in ("nvlink5", "imex") else "none"
