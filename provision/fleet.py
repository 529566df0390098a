"""The machines of one inventory: `Node` and `Fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from pathlib import Path
from typing import Any


class Kind(Flag):
    """What a host is for. One host may be of several kinds that serve; a GPU node is of none of them."""

    GPU = auto()
    MONITORING = auto()  # runs Prometheus and Grafana
    WORKER = auto()  # a member of the mesh, which does a part of the fleet
    SLURM = auto()  # slurmctld or a login: Slurm is asked there, and no verb changes the host


# Members of the first two are provisioned, and not measured.
GROUPS = {
    Kind.MONITORING: "gpuprov_monitoring",
    Kind.WORKER: "gpuprov_workers",
    Kind.SLURM: "gpuprov_slurm",
}


@dataclass(frozen=True)
class Node:
    """One machine of the inventory, with the variables Ansible would give it (groups and host merged)."""

    name: str
    groups: tuple[str, ...]
    variables: Mapping[str, Any]

    @property
    def kind(self) -> Kind:
        """What its groups make of it. One of Slurm's hosts that is in another group as well is a GPU node.
        (Ansible has every host in `all`, and none in `ungrouped` that is in another.)"""
        serves = Kind(0)
        for kind in (Kind.MONITORING, Kind.WORKER):
            if GROUPS[kind] in self.groups:
                serves |= kind
        if set(self.groups) - {"all"} == {GROUPS[Kind.SLURM]}:
            return Kind.SLURM
        return serves or Kind.GPU


@dataclass(frozen=True)
class Fleet:
    """The machines of one inventory, in inventory order. `groups` maps each group to its node names.

    `source` holds several inventories joined with commas: `sources`.

    `others` are those of the inventory that were not selected by `pattern`: templates may speak of them.
    `vault_password_files` are those it was read with: who hands its variables to Ansible needs them too.
    """

    source: Path
    nodes: Mapping[str, Node]
    groups: Mapping[str, tuple[str, ...]]
    vault_password_files: tuple[Path, ...] = ()
    others: Mapping[str, Node] = field(default_factory=dict)
    pattern: str = "all"

    def where(self, kind: Kind) -> dict[str, Node]:
        """Its nodes that are of one of these kinds."""
        return {name: node for name, node in self.nodes.items() if node.kind & kind}

    def without(self, kind: Kind) -> dict[str, Node]:
        """Its nodes that are of none of these kinds."""
        return {name: node for name, node in self.nodes.items() if not node.kind & kind}

    @property
    def place(self) -> str:
        """The inventory as every folder can name it: its absolute path; a list of hosts (`a,b,`) as it is."""
        files = sources(self.source)
        listed = "," in str(files[0]) and not files[0].exists()
        return ",".join(str(file if listed else file.absolute()) for file in files)


def sources(source: Path) -> tuple[Path, ...]:
    """The inventories that `source` joins with commas; the later one wins, as in Ansible.

    A list of hosts (`a,b,`) is one inventory: its parts are no paths.
    """
    parts = [Path(part) for part in str(source).split(",") if part]
    files = any(len(part.parts) > 1 or part.is_file() for part in parts) or all(
        part.exists() for part in parts
    )
    return (source,) if source.exists() or str(source).endswith(",") or not files else tuple(parts)


def folder_of(source: Path, holds: str | Path = "") -> Path:
    """The folder of an inventory, absolute. Of several: the first folder that has the file `holds`, else the
    first one."""
    folders = [file if file.is_dir() else file.parent for file in sources(source)]
    return next((folder for folder in folders if holds and (folder / holds).exists()), folders[0]).absolute()
