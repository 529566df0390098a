"""Monitoring hosts, the members of the inventory's group `gpuprov_monitoring`.
They run the role monitoring and are not GPU nodes (service_hosts.py)."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

from provision.desired.role import vendor_of
from provision.fleet import Fleet, Kind, Node
from provision.node.description import DEFAULT_VENDOR
from provision.node_names import fold

NODES = "monitoring_nodes"  # the variable with the monitored nodes
EXPORTERS = "gpu_metrics_enabled"  # the variable that installs exporters on the nodes


def watching(
    chosen: Fleet, whole: Callable[[], Fleet], overrides: Container[str], say: Callable[[str], None]
) -> Fleet:
    """Return the chosen nodes, where monitoring hosts get the nodes of the whole inventory as `NODES`.
    A host may declare its own list. `whole`: returns the fleet with rendered addresses, if needed; `say`:
    prints a line about nodes that leave open whether they have exporters."""
    hosts = [node for node in chosen.where(Kind.MONITORING).values() if NODES not in node.variables]
    if not hosts:
        return chosen
    watched = whole().without(Kind.MONITORING)
    targets = {NODES: [_target(node) for node in watched.values()]}
    undeclared = [name for name, node in watched.items() if EXPORTERS not in node.variables]
    if undeclared and EXPORTERS not in overrides:
        say(
            f"{fold(undeclared)}: scraped by {fold(node.name for node in hosts)}, and nothing declares "
            f"{EXPORTERS}: a node without a node exporter is the critical alert NodeDown. "
            "Set it to true for gpuprov's exporters, to false for your own"
        )
    updated = {node.name: replace(node, variables={**node.variables, **targets}) for node in hosts}
    return replace(chosen, nodes={**chosen.nodes, **updated})


def _target(node: Node) -> dict[str, Any]:
    address, rack = node.variables.get("ansible_host"), node.variables.get("gpuprov_rack")
    return {
        "name": node.name,
        "address": str(address or node.name),
        "rack": "" if rack is None else str(rack),
        "sku": str(node.variables.get("gpuprov_sku") or ""),
        "gpus": node.variables.get("gpuprov_expected_gpus") != 0,
        **({} if vendor_of(node.variables) == DEFAULT_VENDOR else {"exporter": _exporter(node)}),
    }


def _exporter(node: Node) -> str:
    """Return the vendor of a node's GPUs if their exporter is declared and reachable, else ''.
    Only for vendors other than the default one."""
    variables = node.variables
    guarded = variables.get("gpu_metrics_tls_certificate") or variables.get("gpu_metrics_password_hashes")
    hidden = guarded and not variables.get("gpu_metrics_amd_address")  # the role's own default
    return "" if hidden or not variables.get("gpu_metrics_amd_version") else vendor_of(variables)
