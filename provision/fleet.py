"""The machines of one inventory: `Node` and `Fleet`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Node:
    """One machine of the inventory, with the variables Ansible would give it (groups and host merged)."""

    name: str
    groups: tuple[str, ...]
    variables: Mapping[str, Any]


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
