"""Assignment of nodes to workers, by the inventory's `gpuprov_worker`.

A worker is a machine with gpuprov on it that is nearer to its nodes than the controller, or that takes a part
of a fleet too large for one. Workers are the members of the group `gpuprov_workers`, and no nodes themselves.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from provision.errors import InventoryError
from provision.fleet import Fleet, Node
from provision.remote.ssh.config import ConfigFiles, NotUnderstoodError
from provision.remote.ssh.connection import Route, route_of

GROUP = "gpuprov_workers"
VARIABLE = "gpuprov_worker"
PYTHON = "gpuprov_worker_python"
LINK = "_through_worker"  # among a node's variables: how its worker is reached; taken out before Ansible runs
_PATH = re.compile(r"[A-Za-z0-9_./+-]+")


@dataclass(frozen=True)
class Worker:
    """One worker: `route` leads there, `python` is an interpreter there that has gpuprov."""

    name: str
    python: str
    route: Route = field(repr=False)


@dataclass(frozen=True)
class Share:
    """What one worker does: its hosts, with their variables."""

    worker: Worker
    hosts: dict[str, Mapping[str, Any]]


def apart(fleet: Fleet) -> tuple[Fleet, Fleet]:
    """The fleet without its workers, and the workers."""
    names = frozenset(fleet.groups.get(GROUP, ()))
    if not names:
        return fleet, replace(fleet, nodes={})
    groups = {
        group: tuple(member for member in members if member not in names)
        for group, members in fleet.groups.items()
        if group != GROUP
    }
    nodes = {name: node for name, node in fleet.nodes.items() if name not in names}
    there = {name: fleet.nodes[name] for name in names}
    return replace(fleet, nodes=nodes, groups=groups), replace(fleet, nodes=there)


def linked(fleet: Fleet, workers: Fleet, overrides: Mapping[str, Any]) -> Fleet:
    """The fleet, each node that names a worker with the way there. `workers`: their connection variables are
    rendered. Raises InventoryError for a name that is no worker's, and a worker that cannot be used."""
    links: dict[str, dict[str, Any]] = {}
    nodes = {}
    for name, node in fleet.nodes.items():
        chosen = overrides.get(VARIABLE, node.variables.get(VARIABLE))
        if chosen in (None, ""):
            nodes[name] = node
            continue
        if not isinstance(chosen, str) or chosen not in workers.nodes:
            known = ", ".join(sorted(workers.nodes)) or "it has no member"
            raise InventoryError(
                f"{name}: {VARIABLE}: {chosen!r} is not in the group {GROUP} ({known})",
                f"add it to {GROUP}, with its connection variables",
            )
        if chosen not in links:
            links[chosen] = _link(workers.nodes[chosen])
        nodes[name] = replace(node, variables={**node.variables, LINK: links[chosen]})
    if links and os.environ.get("ANSIBLE_CONFIG"):
        raise InventoryError(
            "ANSIBLE_CONFIG is set, and workers are not given that file",
            "unset it, and set what nodes need as variables in the inventory",
        )
    return replace(fleet, nodes=nodes)


def _link(node: Node) -> dict[str, Any]:
    python = node.variables.get(PYTHON, "python3")
    if not isinstance(python, str) or not _PATH.fullmatch(python):
        raise InventoryError(
            f"{node.name}: {PYTHON} must be the path of an interpreter, not {python!r}",
            "for example /opt/gpuprov/bin/python",
        )
    found = {name: value for name, value in node.variables.items() if name.startswith("ansible_")}
    link = {"name": node.name, "python": python, "variables": found}
    try:
        _worker(link)
    except NotUnderstoodError as error:
        raise InventoryError(
            f"{node.name}: a worker is reached over plain SSH, and {error}",
            "give it connection variables that need neither Ansible nor a shell",
        ) from None
    return link


def _worker(link: Mapping[str, Any]) -> Worker:
    node = Node(link["name"], (), link["variables"])
    return Worker(link["name"], link["python"], route_of(node, ConfigFiles()))


def shares(
    hosts: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Mapping[str, Any]], dict[str, Share]]:
    """The hosts that are done from here, and those of each worker, by its name; without the way there.

    A host whose connection is `local` is this machine, whatever it names."""
    here: dict[str, Mapping[str, Any]] = {}
    away: dict[str, Share] = {}
    for name, variables in hosts.items():
        link = variables.get(LINK)
        if link is None:
            here[name] = variables
            continue
        plain = {key: value for key, value in variables.items() if key != LINK}
        if variables.get("ansible_connection") in ("local", "ansible.builtin.local"):
            here[name] = plain
            continue
        if link["name"] not in away:
            away[link["name"]] = Share(_worker(link), {})
        away[link["name"]].hosts[name] = plain
    return here, away
