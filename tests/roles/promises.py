"""What the roles promise of a node with the default stack."""

from __future__ import annotations

from typing import Any

from provision.desired import expectations, stack


def machine(
    version: str = "13", architecture: str = "hopper", fabric: str = "nvswitch", count: int = 8
) -> dict[str, Any]:
    return {
        "os": {"id": "debian", "version_id": version, "codename": "", "family": "debian", "arch": "x86_64"},
        "kernel": {"release": "6.12.107+deb13-amd64"},
        "gpu": {"sku": None, "count": count, "architecture": architecture, "fabric": fabric, "pci_ids": []},
    }


def promised(
    gpuprov_node: dict[str, Any] | None = None, **declared: Any
) -> dict[str, expectations.Expectation]:
    """fact → expectation of a node with the default stack and these variables."""
    variables = {**stack.load(stack.DEFAULT).variables, **declared}
    found = expectations.of_node(variables, gpuprov_node or machine())
    assert len({(each.role, each.fact) for each in found}) == len(found), "two promises about one fact"
    return {each.fact: each for each in found}
