"""Machines of one inventory: `Node` and `Fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from pathlib import Path
from typing import Any


class Kind(Flag):
    """Purpose of a host: it is a GPU node, or has one or more kinds of service."""

    GPU = auto()
    MONITORING = auto()  # runs Prometheus and Grafana
    WORKER = auto()  # member of the mesh, which handles a part of the fleet
    SLURM = auto()  # slurmctld or a login node: runs Slurm's commands, and no verb changes it


# Members of the first two are provisioned but not measured.
GROUPS = {
    Kind.MONITORING: "gpuprov_monitoring",
    Kind.WORKER: "gpuprov_workers",
    Kind.SLURM: "gpuprov_slurm",
}


@dataclass(frozen=True)
class Node:
    """One machine of the inventory, with its merged Ansible variables (groups and host)."""

    name: str
    groups: tuple[str, ...]
    variables: Mapping[str, Any]

    @property
    def kind(self) -> Kind:
        """Return the kind by its groups; a Slurm host that is in another group as well is a GPU node.
        (In Ansible, every host is in `all`, and hosts in other groups are not in `ungrouped`.)"""
        serves = Kind(0)
        for kind in (Kind.MONITORING, Kind.WORKER):
            if GROUPS[kind] in self.groups:
                serves |= kind
        if set(self.groups) - {"all"} == {GROUPS[Kind.SLURM]}:
            return Kind.SLURM
        return serves or Kind.GPU


@dataclass(frozen=True)
class Fleet:
    """Machines of one inventory, in inventory order.

    `groups` maps each group to its nodes' names. `source` may join several inventories with commas
    (`sources`). `others` are hosts not selected by `pattern`, to which templates may refer.
    `vault_password_files`: used to read the inventory, and needed by anyone who passes its variables to
    Ansible.
    """

    source: Path
    nodes: Mapping[str, Node]
    groups: Mapping[str, tuple[str, ...]]
    vault_password_files: tuple[Path, ...] = ()
    others: Mapping[str, Node] = field(default_factory=dict)
    pattern: str = "all"

    def where(self, kind: Kind) -> dict[str, Node]:
        """Return the nodes of any of these kinds."""
        return {name: node for name, node in self.nodes.items() if node.kind & kind}

    def without(self, kind: Kind) -> dict[str, Node]:
        """Return the nodes of none of these kinds."""
        return {name: node for name, node in self.nodes.items() if not node.kind & kind}

    @property
    def place(self) -> str:
        """Return the inventory's name valid in any folder: absolute paths, or a list of hosts (`a,b,`)."""
        files = sources(self.source)
        listed = "," in str(files[0]) and not files[0].exists()
        return ",".join(str(file if listed else file.absolute()) for file in files)


def sources(source: Path) -> tuple[Path, ...]:
    """Return the inventories joined with commas in `source`; the last one wins, as in Ansible.

    A list of hosts (`a,b,`) is one inventory, since its parts are not paths.
    """
    parts = [Path(part) for part in str(source).split(",") if part]
    files = any(len(part.parts) > 1 or part.is_file() for part in parts) or all(
        part.exists() for part in parts
    )
    return (source,) if source.exists() or str(source).endswith(",") or not files else tuple(parts)


def folder_of(source: Path, holds: str | Path = "") -> Path:
    """Return the absolute folder of an inventory.
    Of several, the first with the file `holds`, or else the first."""
    folders = [file if file.is_dir() else file.parent for file in sources(source)]
    return next((folder for folder in folders if holds and (folder / holds).exists()), folders[0]).absolute()
