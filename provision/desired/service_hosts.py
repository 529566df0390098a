"""Hosts of the inventory that are not GPU nodes.

Members of a group with a role for that group are provisioned, but not measured. A host that is only in the
group `gpuprov_slurm` has slurmctld or a login there: no verb observes or changes it. A GPU node that is also
in that group stays a node.

They are in the same inventory as the nodes they serve, so variables for all hosts reach them, too. Values
that would make GPU nodes of them are overruled here, in one place; and only they take part in these roles.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from provision.errors import InventoryError
from provision.fleet import GROUPS, Fleet, Kind, Node
from provision.node_names import fold

ROLES = {Kind.MONITORING: "monitoring", Kind.WORKER: "receptor"}
ENABLED = tuple(f"{role}_enabled" for role in ROLES.values())  # variables set by `declared`
# Hardware that a machine must have; whether such a host has a GPU does not matter.
_OF_GPU_NODES = frozenset(
    ("gpuprov_sku", "gpuprov_expected_gpus", "gpuprov_expected_nics", "gpuprov_expected_nvmes")
)


def declared(node: Node, variables: Mapping[str, Any], overrides: Collection[str]) -> dict[str, Any]:
    """Return a node's variables, adjusted to whether it is such a host.

    A list of roles that names one of the host's own was written for this host, and holds. Any other list is
    meant for the GPU nodes; from `--set` (`overrides`), it means that this host gets no role now.
    """
    own = [role for kind, role in ROLES.items() if kind & node.kind]
    foreign = {f"{role}_enabled": False for role in ROLES.values() if role not in own}
    if not own:
        return {**variables, **foreign}
    mine = {f"{role}_enabled": True for role in own} | {
        name: value for name, value in variables.items() if name not in _OF_GPU_NODES
    }
    roles = mine.get("gpuprov_roles")
    if not isinstance(roles, list) or not set(roles) & set(own):
        mine["gpuprov_roles"] = [] if roles is not None and "gpuprov_roles" in overrides else own
    return {**mine, **foreign}


def without(fleet: Fleet, say: Callable[[str], None]) -> Fleet:
    """Return the fleet without such hosts, for verbs that measure GPU nodes.
    `say` prints a line about them. If only such hosts were chosen, they stay."""
    rest = fleet.where(Kind.GPU)
    if not rest or len(rest) == len(fleet.nodes):
        return fleet
    for kind in ROLES:
        if left_out := fleet.where(kind):
            say(f"{fold(left_out)}: left out, no GPU node (group {GROUPS[kind]})")
    return replace(fleet, nodes=rest)


def apart(fleet: Fleet, say: Callable[[str], None] = lambda _line: None) -> Fleet:
    """Return the fleet with Slurm's own hosts among its `others`; `say` prints a line about chosen ones.
    Raises InventoryError if only such hosts were chosen."""
    hosts = fleet.where(Kind.SLURM)
    if not hosts:
        return fleet
    only = f"its only group is {GROUPS[Kind.SLURM]}"
    if len(hosts) == len(fleet.nodes):
        raise InventoryError(
            f"{fold(hosts)}: no GPU node: {only}",
            "choose other nodes; one that has GPUs must be in a group of GPU nodes as well",
        )
    say(f"{fold(hosts)}: left out, no GPU node ({only})")
    return replace(fleet, nodes=fleet.without(Kind.SLURM), others={**fleet.others, **hosts})


def slurms(fleet: Fleet) -> Fleet:
    """Return Slurm's own hosts among the fleet's `others`, which are queried although they are no nodes."""
    return replace(fleet, nodes=replace(fleet, nodes=fleet.others).where(Kind.SLURM))
