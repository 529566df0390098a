"""Hosts on which a scheduler's commands run, and which are no nodes themselves.

A host whose only group is `gpuprov_slurm` has slurmctld or a login there, and no GPUs: no verb looks at it or
changes it, though variables for all reach it, too. A GPU node that is in that group as well stays a node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from provision.errors import InventoryError
from provision.fleet import Fleet, Node
from provision.node_names import fold

GROUP = "gpuprov_slurm"


def is_alone(node: Node) -> bool:
    """Whether a node's only group is that of Slurm's hosts. (Ansible has every host in `all`, and none in
    `ungrouped` that is in another.)"""
    return set(node.groups) - {"all"} == {GROUP}


def apart(fleet: Fleet, say: Callable[[str], None] = lambda _line: None) -> Fleet:
    """The fleet with such hosts among its `others`; `say` is told of those that had been chosen. Raises
    InventoryError where nothing else was."""
    hosts = {name: node for name, node in fleet.nodes.items() if is_alone(node)}
    if not hosts:
        return fleet
    if len(hosts) == len(fleet.nodes):
        raise InventoryError(
            f"{fold(hosts)}: no GPU node: its only group is {GROUP}",
            "choose other nodes; one that has GPUs must be in a group of GPU nodes as well",
        )
    say(f"{fold(hosts)}: left out, no GPU node (its only group is {GROUP})")
    nodes = {name: node for name, node in fleet.nodes.items() if name not in hosts}
    return replace(fleet, nodes=nodes, others={**fleet.others, **hosts})


def of(fleet: Fleet) -> Fleet:
    """Such hosts of the inventory, which are asked though they are no nodes."""
    return replace(fleet, nodes={name: node for name, node in fleet.others.items() if is_alone(node)})
