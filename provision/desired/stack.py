"""Resolution of a node's variables as in Ansible: stack, role defaults, inventory.

Precedence, weakest first: role defaults < stack < inventory (group, host) < --set < the role's vars/<os>.yml.
Overrides for hosts that are not GPU nodes come last (service_hosts.py).
`gpuprov_node` (observed facts of the machine: OS, GPUs) is added by us and cannot be overridden.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision import paths, yamlfile
from provision.desired import service_hosts, skus, variables
from provision.desired.role import vendor_of
from provision.desired.vendors import DEFAULT_STACKS as DEFAULT_STACKS
from provision.errors import StackError
from provision.fleet import Node
from provision.nearest import did_you_mean
from provision.node import description

DEFAULT = DEFAULT_STACKS[description.DEFAULT_VENDOR]
_KEYS = frozenset({"name", "summary", "sources", "variables"})


@dataclass(frozen=True)
class Stack:
    """A named, pinned set of versions: provision/data/stacks/<name>.yml, or a path to such a file."""

    name: str
    summary: str
    variables: Mapping[str, Any]
    source: Path


def available() -> tuple[str, ...]:
    """Return the names of the shipped stacks."""
    return tuple(sorted(file.stem for file in (paths.DATA / "stacks").glob("*.yml")))


@functools.lru_cache(maxsize=64)
def load(name: str) -> Stack:
    """Return the stack called `name`, or the one in that file. Raises StackError with similar names."""
    if "/" in name or name.endswith((".yml", ".yaml")):
        return _read(Path(name).expanduser())
    if name not in available():
        there = "there are: " + ", ".join(available())
        raise StackError(f"gpuprov_stack: no stack called {name!r}", did_you_mean(name, available(), there))
    return _read(paths.DATA / "stacks" / f"{name}.yml")


def _read(file: Path) -> Stack:
    data = yamlfile.load_mapping(file, StackError)
    unknown = sorted(data.keys() - _KEYS)
    chosen = data.get("variables")
    if unknown or not isinstance(chosen, dict) or not isinstance(data.get("name"), str):
        problem = (
            f"unknown key {', '.join(unknown)}"
            if unknown
            else "needs `name` (text) and `variables` (a mapping)"
        )
        raise StackError(f"{file}: {problem}", "compare with provision/data/stacks/*.yml")
    for variable in chosen:
        if variable not in variables.known():
            raise StackError(
                f"{file}: unknown variable {variable}", did_you_mean(variable, variables.known())
            )
    return Stack(data["name"], str(data.get("summary", "")), chosen, file)


def node_stack(
    node: Node, overrides: Mapping[str, Any], gpuprov_node: Mapping[str, Any] | None = None
) -> Stack:
    """Return the stack in the node's `gpuprov_stack`, or the default stack for the vendor of its GPUs.
    `gpuprov_node`: the observed node, or None before it was observed."""
    values = {**node.variables, **overrides}
    usual = DEFAULT_STACKS.get(vendor_of(values, gpuprov_node), DEFAULT)
    name = values.get("gpuprov_stack", usual)
    if not isinstance(name, str) or "{{" in name:
        raise StackError(
            f"{node.name}: gpuprov_stack must be plain text, not {name!r}", f"for example {DEFAULT}"
        )
    return load(name)


def declared(node: Node, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node's variables for Ansible: stack < inventory < overrides, without role defaults."""
    stacks = [node_stack(node, overrides)]
    if "gpuprov_stack" not in node.variables and "gpuprov_stack" not in overrides:
        stacks = [
            load(name) for name in DEFAULT_STACKS.values()
        ]  # the vendor is not known yet; the stacks share no names
    values = {name: value for each in stacks for name, value in each.variables.items()}
    values |= {**node.variables, **overrides}
    return service_hosts.declared(node, values, overrides)


def describe_node(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Convert base facts into `gpuprov_node`; `sku` and `architecture` are None if unknown.

    {os: {id, version_id, codename, family, arch}, kernel: {release, boot_release},
    gpu: {sku, count, architecture, fabric (nvswitch, nvlink5, imex, none), pci_ids, product_names}}"""
    return dict(description.describe(facts, skus.by_pci_id()))
