"""Monitoring hosts: the members of the inventory's group `gpuprov_monitoring`, which run the role monitoring
and are no GPU nodes (service_hosts.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from provision.desired.node_roles import vendor_of
from provision.desired.skus import DEFAULT_VENDOR
from provision.fleet import Fleet, Node

GROUP = "gpuprov_monitoring"
ROLE = "monitoring"
NODES = "monitoring_nodes"  # the variable that names what is watched


def watching(chosen: Fleet, whole: Callable[[], Fleet]) -> Fleet:
    """The chosen nodes, each monitoring host among them with the nodes of the whole inventory as its `NODES`,
    unless it declares its own. `whole` gives the fleet with rendered addresses, if it is needed."""
    hosts = [node for node in chosen.nodes.values() if GROUP in node.groups and NODES not in node.variables]
    if not hosts:
        return chosen
    known = {NODES: [_target(node) for node in whole().nodes.values() if GROUP not in node.groups]}
    told = {node.name: replace(node, variables={**node.variables, **known}) for node in hosts}
    return replace(chosen, nodes={**chosen.nodes, **told})


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
    """What reads the GPUs of a node that are not the first vendor's: its exporter where it is declared and
    listens where others reach it, else nothing."""
    told = node.variables
    guarded = told.get("gpu_metrics_tls_certificate") or told.get("gpu_metrics_password_hashes")
    hidden = guarded and not told.get("gpu_metrics_amd_address")  # the role's own default
    return "" if hidden or not told.get("gpu_metrics_amd_version") else vendor_of(told)
