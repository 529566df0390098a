"""Which roles a node takes part in: those that its gpuprov_roles lists; where it has none, those for any
machine and those for the GPUs that it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.desired import skus
from provision.desired.role import Role, all_roles
from provision.node.description import DEFAULT_VENDOR, MIXED

# What decides, of a node's variables.
VARIABLES = ("gpuprov_roles", "gpuprov_sku")


def roles_of(declared: Mapping[str, Any], gpuprov_node: Mapping[str, Any] | None = None) -> list[Role]:
    """A node's roles, in the order in which they are applied. `gpuprov_node`: what it is; None before that
    is known. A machine with GPUs of several vendors would take part in all, and is refused."""
    chosen = declared.get("gpuprov_roles")
    if chosen is not None:
        return [role for name, role in all_roles().items() if name in chosen]
    vendor = vendor_of(declared, gpuprov_node)
    return [role for role in all_roles().values() if vendor == MIXED or role.vendor in (None, vendor)]


def possible(declared: Mapping[str, Any]) -> list[Role]:
    """The roles in which a node may take part, before it is known whose GPUs it has."""
    known = declared.get("gpuprov_roles") is not None or declared.get("gpuprov_sku") is not None
    return roles_of(declared) if known else list(all_roles().values())


def vendor_of(declared: Mapping[str, Any], gpuprov_node: Mapping[str, Any] | None = None) -> str:
    """Whose GPUs the node has; where none were seen, or nobody has looked, those of the SKU it must have."""
    seen = gpuprov_node["gpu"].get("vendor") if gpuprov_node is not None else None
    sku = skus.all_skus().get(str(declared.get("gpuprov_sku")))
    return str(seen or (sku.vendor if sku is not None else DEFAULT_VENDOR))
