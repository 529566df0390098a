"""The mesh of workers, the members of the inventory's group `gpuprov_workers`.
They run the role receptor and are not GPU nodes (service_hosts.py).

A member's settings depend on all others: it listens if another member connects to it. So the list of nodes is
made here from the whole group, and each member gets it as `receptor_nodes`.
A group without a controller is not a mesh, and is left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision import paths
from provision.desired import inventory
from provision.errors import InventoryError
from provision.fleet import GROUPS, Fleet, Kind, Node
from provision.nearest import did_you_mean
from provision.node_names import fold

GROUP = GROUPS[Kind.WORKER]
# Variables that are set here.
NODES, AUTHORITY, FOLDER = "receptor_nodes", "receptor_authority", "receptor_authority_folder"
PORT = 27199  # the role's default; a test compares
_LOCAL = ("local", "ansible.builtin.local")
# Node names that Receptor accepts and that fit into a certificate.
_NAME = re.compile(r"[.\-_@:a-zA-Z0-9]{1,127}")
_CERTIFICATE, _WORK_PUBLIC, _WORK_PRIVATE = "ca.crt", "work-public-key.pem", "work-private-key.pem"


def is_managed(node: Node) -> bool:
    """Return whether gpuprov sets up Receptor on this node, if there is a mesh."""
    return bool(node.kind & Kind.WORKER) and node.variables.get("receptor_enabled") is not False


def with_members(fleet: Fleet, whole: Fleet) -> Fleet:
    """Return `fleet` (`whole` without the group's members) plus the members of the mesh.
    There is a mesh if a member is a controller, which gives work to the others."""
    members = {name for name, node in whole.nodes.items() if is_managed(node)}
    if not any(_is_controller(whole.nodes[name]) for name in members):
        return fleet
    kept = fleet.nodes.keys() | members
    nodes = {name: node for name, node in whole.nodes.items() if name in kept}
    groups = {group: tuple(name for name in names if name in kept) for group, names in whole.groups.items()}
    return replace(fleet, nodes=nodes, groups=groups)


def chosen(fleet: Fleet, whole: Fleet, pattern: str) -> Fleet:
    """Return the nodes of `fleet`, and of the mesh, in `pattern`.
    Raises InventoryError, also with the reason why members of the group belong to no mesh."""
    try:
        return inventory.select(with_members(fleet, whole), pattern)
    except InventoryError:
        names: list[str] = []
        with contextlib.suppress(InventoryError):
            names = inventory.matching(pattern, list(whole.nodes), whole.groups)
        others = [name for name in names if whole.nodes[name].kind & Kind.WORKER]
        managed = [name for name in others if is_managed(whole.nodes[name])]
        if not others:
            raise
    what, fix = (
        f"{fold(managed)}: the group {GROUP} has no controller",
        "add it there, for example controller: {ansible_connection: local}",
    )
    if not managed:
        what, fix = f"{fold(others)}: receptor_enabled is false, so somebody else sets them up", "remove that"
    again = f"gpuprov up {shlex.quote(str(whole.source))} --nodes {GROUP}"
    raise InventoryError(f"--nodes {pattern}: {what}", f"{fix}; then: {again} (gpuprov docs mesh)")


def meshed(chosen: Fleet, group: Callable[[], Fleet]) -> Fleet:
    """Return the chosen nodes, with the mesh's nodes and authority in the variables of each member.
    A member may declare its own list of nodes. `group`: returns the members with rendered addresses, if
    needed. Raises InventoryError for an impossible mesh."""
    hosts = [node for node in chosen.nodes.values() if is_managed(node)]
    if not hosts:
        return chosen
    nodes = mesh_of(group())
    updated = {}
    for node in hosts:
        folder = authority_folder(node)
        # Ansible does not get $XDG_STATE_HOME, so the role gets the folder itself.
        variables = {AUTHORITY: authority_in(folder), NODES: nodes}
        updated[node.name] = replace(node, variables={**variables, **node.variables, FOLDER: str(folder)})
    return replace(chosen, nodes={**chosen.nodes, **updated})


def mesh_of(group: Fleet) -> list[dict[str, Any]]:
    """Return each member as {name, address, port, controller, peers}. Raises InventoryError."""
    managed = [node for node in group.nodes.values() if is_managed(node)]
    controllers = {node.name for node in managed if _is_controller(node)}
    names = [node.name for node in managed]
    mesh = [_member(node, names, node.name in controllers) for node in managed]
    _refuse_one_place(mesh)
    _refuse_islands(mesh, controllers)
    return mesh


def authority_folder(node: Node) -> Path:
    """Return the folder of the authority on this machine. Raises InventoryError."""
    chosen = node.variables.get(FOLDER)
    if not chosen:
        return (paths.state_home() / "receptor").absolute()
    folder = Path(str(chosen)).expanduser()
    if "{{" in str(chosen) or not folder.is_absolute():
        raise InventoryError(
            f"{node.name}: {FOLDER} must be an absolute path, not {chosen!r}", "for example ~/mesh/authority"
        )
    return folder


def authority_in(folder: Path) -> dict[str, str]:
    """Return the data that nodes are compared with, from the authority's folder; empty without one.
    Only the digest of the private key that signs work is taken. Raises InventoryError."""
    if not (folder / _CERTIFICATE).exists():
        return {}
    try:
        certificate = (folder / _CERTIFICATE).read_text(encoding="ascii")
        return {
            "certificate": certificate,
            "key": _key_identifier(certificate),
            "work_public_key": (folder / _WORK_PUBLIC).read_text(encoding="ascii"),
            "work_private_key_sha256": hashlib.sha256((folder / _WORK_PRIVATE).read_bytes()).hexdigest(),
        }
    except (OSError, ValueError) as trouble:
        raise InventoryError(
            f"{folder}: the authority of the mesh cannot be read: {trouble}",
            "bring the folder back from a copy, or remove it: then all nodes get new certificates",
        ) from None


def _key_identifier(certificate: str) -> str:
    from cryptography import x509

    loaded = x509.load_pem_x509_certificate(certificate.encode("ascii"))
    return loaded.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest.hex()


def _is_controller(node: Node) -> bool:
    chosen = node.variables.get("receptor_controller")
    if chosen is None:
        return node.variables.get("ansible_connection") in _LOCAL
    if not isinstance(chosen, bool):
        raise InventoryError(f"{node.name}: receptor_controller must be true or false, not {chosen!r}", "")
    return chosen


def _member(node: Node, names: list[str], controller: bool) -> dict[str, Any]:
    if not _NAME.fullmatch(node.name) or node.name.lower() == "localhost":
        raise InventoryError(
            f"{node.name}: a node of Receptor cannot have this name (group {GROUP})",
            "give it another one, of letters, digits and . - _ @ :, such as controller",
        )
    others = [name for name in names if name != node.name]
    peers = node.variables.get("receptor_peers")
    if peers is None:
        peers = others if controller else []
    if not isinstance(peers, list) or not all(isinstance(peer, str) for peer in peers):
        raise InventoryError(
            f"{node.name}: receptor_peers must be a list of names, not {peers!r}", "for example [worker-a]"
        )
    for peer in peers:
        if peer == node.name:
            raise InventoryError(f"{node.name}: receptor_peers names {peer} itself", "leave it out")
        if peer not in others:
            raise InventoryError(
                f"{node.name}: receptor_peers: {peer!r} is not in the group {GROUP}",
                did_you_mean(peer, others, f"members: {', '.join(others) or 'no other'}"),
            )
    port = node.variables.get("receptor_port", PORT)
    if type(port) is not int or not 0 < port < 65536:
        raise InventoryError(
            f"{node.name}: receptor_port must be a TCP port, not {port!r}", f"such as {PORT}"
        )
    return {
        "name": node.name,
        "address": _address(node.variables, node.name),
        "port": port,
        "controller": controller,
        "peers": list(dict.fromkeys(peers)),
    }


def _address(variables: Mapping[str, Any], name: str) -> str:
    return str(variables.get("gpuprov_address") or variables.get("ansible_host") or name)


def _refuse_one_place(mesh: list[dict[str, Any]]) -> None:
    called = {peer for each in mesh for peer in each["peers"]}
    places: dict[tuple[str, int], str] = {}
    for each in mesh:
        if each["name"] not in called:
            continue
        first = places.setdefault((each["address"], each["port"]), each["name"])
        if first != each["name"]:
            raise InventoryError(
                f"{first} and {each['name']} have one address, {each['address']} port {each['port']}: "
                "a connection could reach either",
                "correct ansible_host (or gpuprov_address) of one, or give it another receptor_port",
            )


def _refuse_islands(mesh: list[dict[str, Any]], controllers: set[str]) -> None:
    """Raise InventoryError for a member without a route to a controller, over any hops in any direction."""
    links = {each["name"]: set(each["peers"]) for each in mesh}
    for name, peers in list(links.items()):
        for peer in peers:
            links[peer].add(name)
    reached, ahead = set(controllers), list(controllers)
    while ahead:
        new = links[ahead.pop()] - reached
        reached |= new
        ahead += new
    lonely = [each["name"] for each in mesh if each["name"] not in reached]
    if lonely:
        raise InventoryError(
            f"{', '.join(lonely)}: no way leads there from {', '.join(sorted(controllers))}",
            "name it in the receptor_peers of the controller, or of a worker on the way",
        )
