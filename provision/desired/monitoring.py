"""Monitoring hosts: the members of the inventory's group `gpuprov_monitoring`, which run the role monitoring
and are no GPU nodes.

They stand in the same inventory as the nodes they watch, so variables for all reach them, too. What would
make GPU nodes of them is overruled here, in one place; and only they take part in the role monitoring.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from provision.fleet import Fleet, Node
from provision.node_names import fold

GROUP = "gpuprov_monitoring"
ROLE = "monitoring"
NODES = "monitoring_nodes"  # the variable that names what is watched
# What the machine must have; whether a monitoring host has a GPU is nobody's business.
_OF_GPU_NODES = frozenset(
    ("gpuprov_sku", "gpuprov_expected_gpus", "gpuprov_expected_nics", "gpuprov_expected_nvmes")
)


def is_member(node: Node) -> bool:
    return GROUP in node.groups


def declared(node: Node, variables: Mapping[str, Any], overrides: Collection[str]) -> dict[str, Any]:
    """A node's variables, with what its being a monitoring host, or none, decides.

    A list of roles that names `monitoring` was written for this host, and holds. Any other one is that of the
    GPU nodes; of `--set` (`overrides`) it means that nothing else is to be done now.
    """
    if not is_member(node):
        return {**variables, f"{ROLE}_enabled": False}
    own = {f"{ROLE}_enabled": True} | {
        name: value for name, value in variables.items() if name not in _OF_GPU_NODES
    }
    roles = own.get("gpuprov_roles")
    if not isinstance(roles, list) or ROLE not in roles:
        own["gpuprov_roles"] = [] if roles is not None and "gpuprov_roles" in overrides else [ROLE]
    return own


def watching(chosen: Fleet, whole: Callable[[], Fleet]) -> Fleet:
    """The chosen nodes, each monitoring host among them with the nodes of the whole inventory as its `NODES`,
    unless it declares its own. `whole` gives the fleet with rendered addresses, if it is needed."""
    hosts = [node for node in chosen.nodes.values() if is_member(node) and NODES not in node.variables]
    if not hosts:
        return chosen
    known = {NODES: [_target(node) for node in whole().nodes.values() if not is_member(node)]}
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
    }


def gpu_nodes(fleet: Fleet, names: Sequence[str]) -> list[str]:
    """Those of these nodes that are no monitoring hosts."""
    return [name for name in names if not is_member(fleet.nodes[name])]


def without(fleet: Fleet, say: Callable[[str], None]) -> Fleet:
    """The fleet without its monitoring hosts, for verbs that measure GPU nodes; `say` is told of them. Where
    nothing else was chosen they were meant, and stay."""
    rest = {name: node for name, node in fleet.nodes.items() if not is_member(node)}
    if not rest or len(rest) == len(fleet.nodes):
        return fleet
    left_out = [name for name in fleet.nodes if name not in rest]
    say(f"{fold(left_out)}: left out, no GPU node (group {GROUP})")
    return replace(fleet, nodes=rest)
