"""Machine descriptions as gpuprov produces them."""

from __future__ import annotations

from typing import Any


def machine(system: str = "debian 13", arch: str = "x86_64", /, **gpu: Any) -> dict[str, Any]:
    """Return the description of a machine, by default with eight Hopper GPUs."""
    os_id, _, version = system.partition(" ")
    family = "debian" if os_id in ("debian", "ubuntu") else "redhat"
    usual = {"sku": None, "count": 8, "architecture": "hopper", "fabric": "nvswitch", "pci_ids": list[str]()}
    return {
        "os": {"id": os_id, "version_id": version, "codename": "", "family": family, "arch": arch},
        "kernel": {"release": "6.12.107+deb13-amd64"},
        "gpu": {**usual, **gpu},
    }
