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
        listed = "," in str(self.source) and not self.source.exists()
        return str(self.source if listed else self.source.absolute())
