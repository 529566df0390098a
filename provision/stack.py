"""Stack + role defaults + inventory → a node's variables, resolved as Ansible would.

Precedence, weakest first: role defaults < stack < inventory (group, host) < --set < the role's own vars/<os>.yml.
`gpuprov_node` (what was observed of the machine: OS, GPUs) is added by us and cannot be overridden.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.inventory import Fleet, Node


@dataclass(frozen=True)
class Stack:
    """A named, pinned set of versions: provision/data/stacks/<name>.yml, or a path to such a file."""

    name: str
    summary: str
    variables: Mapping[str, Any]
    source: Path


def available() -> tuple[str, ...]:
    """Names of the shipped stacks."""
    raise NotImplementedError


def load(name: str) -> Stack:
    """The stack called `name` (or the file it names). Raises StackError with the near misses."""
    raise NotImplementedError


def node_stack(node: Node, overrides: Mapping[str, Any]) -> Stack:
    """The stack a node declares through the inventory variable `gpuprov_stack`, or the default one."""
    raise NotImplementedError


def declared(node: Node, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Stack < inventory < overrides: the variables handed to Ansible for this node (role defaults not included)."""
    raise NotImplementedError


def check_names(fleet: Fleet, overrides: Mapping[str, Any]) -> None:
    """Refuse a variable that looks like ours (a role's prefix, `gpuprov_`) but is not: did you mean …"""
    raise NotImplementedError


def describe_node(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Base facts → `gpuprov_node`: {os: {id, version_id, codename, family, arch}, kernel: {release},
    gpu: {sku, count, architecture, fabric, pci_ids}}. `sku`, `architecture` are None when unknown; `fabric` is
    one of nvswitch, nvlink5, none."""
    raise NotImplementedError
