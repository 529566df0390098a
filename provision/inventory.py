"""inventory.yml (Ansible's own format; any Ansible inventory works) → a Fleet of Nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """The machines of one inventory, in inventory order. `groups` maps each group to its node names."""

    source: Path
    nodes: Mapping[str, Node]
    groups: Mapping[str, tuple[str, ...]]


def find(argument: str | None, option: str | None) -> Path:
    """The inventory to use: argument, `--inventory`, GPUPROV_INVENTORY, ./inventory.yml, the one last used here."""
    raise NotImplementedError


def load(source: Path, vault_password_files: Sequence[Path] = ()) -> Fleet:
    """Read an inventory through `ansible-inventory`. Raises InventoryError (file, line, what to do)."""
    raise NotImplementedError


def select(fleet: Fleet, pattern: str) -> Fleet:
    """The part of the fleet an Ansible host pattern names (`all`, `a:&b:!c`, globs, `~regex`, `g[0:2]`)."""
    raise NotImplementedError
