"""Workers: machines of a Receptor mesh that handle a part of a fleet, set by `gpuprov_receptor_node`.

A worker has gpuprov installed, and is closer to its nodes than the controller or shares the load of a fleet
that is too large for one machine. Workers are the members of the group `gpuprov_workers`, under their names
in the mesh, and are not nodes themselves.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from provision.errors import InventoryError
from provision.fleet import GROUPS, Fleet, Kind, Node
from provision.remote.workers.control import SOCKET

GROUP = GROUPS[Kind.WORKER]
VARIABLE = "gpuprov_receptor_node"
SOCKET_VARIABLE = "gpuprov_receptor_socket"
TLS_VARIABLE = "gpuprov_receptor_tls_client"
PYTHON = "gpuprov_worker_python"
FORMER = "gpuprov_worker"  # variable of the time before gpuprov used Receptor
LINK = "_through_worker"  # node variable that holds a Link as plain data; removed before Ansible runs
TLS_CLIENT = "mesh"  # name that the role receptor uses


class Worker(NamedTuple):
    """A worker's name in the mesh, its own control socket and its Python."""

    name: str
    socket: str = SOCKET
    python: str = "python3"


@dataclass(frozen=True)
class Link:
    """Route to a node: its workers, the controller's Receptor socket, and the tls-client to use there."""

    workers: tuple[Worker, ...]
    socket: str = SOCKET
    tls_client: str = TLS_CLIENT

    def plain(self) -> dict[str, Any]:
        return {**vars(self), "workers": [list(worker) for worker in self.workers]}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Link:
        return cls(**{**plain, "workers": tuple(Worker(*worker) for worker in plain["workers"])})


def apart(fleet: Fleet) -> tuple[Fleet, Fleet]:
    """Split the fleet into nodes and workers."""
    workers = fleet.where(Kind.WORKER)
    if not workers:
        return fleet, replace(fleet, nodes={})
    groups = {
        group: tuple(member for member in members if member not in workers)
        for group, members in fleet.groups.items()
        if group != GROUP
    }
    return replace(fleet, nodes=fleet.without(Kind.WORKER), groups=groups), replace(fleet, nodes=workers)


def linked(fleet: Fleet, workers: Fleet, overrides: Mapping[str, Any]) -> Fleet:
    """Return the fleet with a Link in each node that names workers.
    Raises InventoryError for a name that is not a worker, and for variables from before gpuprov used
    Receptor."""
    links: dict[tuple[Any, ...], dict[str, Any]] = {}  # nodes with the same workers share one
    nodes = {}
    for name, node in fleet.nodes.items():

        def of(variable: str, variables: Mapping[str, Any] = node.variables) -> Any:
            return overrides.get(variable, variables.get(variable))

        if of(FORMER) not in (None, ""):
            raise InventoryError(
                f"{name}: {FORMER} is not known any more: workers are nodes of a Receptor mesh now",
                f"write {VARIABLE}: {of(FORMER)}, with {of(FORMER)} in the mesh (gpuprov docs workers)",
            )
        names = _names(name, of(VARIABLE), workers)
        if not names:
            nodes[name] = node
            continue
        socket = _text(name, SOCKET_VARIABLE, of(SOCKET_VARIABLE), SOCKET)
        tls = _text(name, TLS_VARIABLE, of(TLS_VARIABLE), TLS_CLIENT)
        key = (names, socket, tls)
        if key not in links:
            link_workers = tuple(_worker(workers.nodes[worker]) for worker in names)
            links[key] = Link(link_workers, socket, tls).plain()
        nodes[name] = replace(node, variables={**node.variables, LINK: links[key]})
    if links and os.environ.get("ANSIBLE_CONFIG"):
        raise InventoryError(
            "ANSIBLE_CONFIG is set, and workers are not given that file",
            "unset it, and set what nodes need as variables in the inventory",
        )
    return replace(fleet, nodes=nodes)


def _names(node: str, chosen: Any, workers: Fleet) -> tuple[str, ...]:
    if chosen in (None, "", []):
        return ()
    names = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise InventoryError(f"{node}: {VARIABLE}: {chosen!r} is neither a name nor a list of names", "")
    for one in names:
        if one not in workers.nodes:
            members = ", ".join(sorted(workers.nodes)) or "it has no member"
            raise InventoryError(
                f"{node}: {VARIABLE}: {one!r} is not in the group {GROUP} ({members})",
                f"add it to {GROUP}, by its name in the mesh",
            )
    return tuple(dict.fromkeys(names))


def _worker(node: Node) -> Worker:
    own = node.variables
    return Worker(
        node.name,
        _text(node.name, SOCKET_VARIABLE, own.get(SOCKET_VARIABLE), SOCKET),
        _text(node.name, PYTHON, own.get(PYTHON), "python3"),
    )


def _text(name: str, variable: str, value: Any, default: str) -> str:
    if value in (None, ""):
        return default
    if not isinstance(value, str) or not value.isprintable() or " " in value:
        raise InventoryError(f"{name}: {variable} must be plain text, not {value!r}", "")
    return value


def split(
    hosts: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Mapping[str, Any]], dict[str, Link], dict[str, Mapping[str, Any]]]:
    """Return the hosts to handle locally, the Link of each other host, and those hosts' variables without it.
    A host with the connection `local` is this machine, even if it names workers."""
    here: dict[str, Mapping[str, Any]] = {}
    links: dict[str, Link] = {}
    away: dict[str, Mapping[str, Any]] = {}
    parsed: dict[int, Link] = {}
    for name, variables in hosts.items():
        link = variables.get(LINK)
        if link is None:
            here[name] = variables
            continue
        plain = {key: value for key, value in variables.items() if key != LINK}
        if variables.get("ansible_connection") in ("local", "ansible.builtin.local"):
            here[name] = plain
        else:
            if id(link) not in parsed:
                parsed[id(link)] = Link.of(link)
            links[name] = parsed[id(link)]
            away[name] = plain
    return here, links, away
