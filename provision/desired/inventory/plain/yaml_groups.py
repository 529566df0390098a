"""An inventory written in YAML or JSON: groups with `hosts`, `vars` and `children`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.desired.inventory.plain import hosts
from provision.desired.inventory.plain.groups import Groups
from provision.desired.inventory.plain.not_plain import NotPlainError


def add(document: Mapping[str, Any], groups: Groups) -> None:
    """Add what a file says. Raises NotPlainError."""
    if "plugin" in document:
        raise NotPlainError("it configures an inventory plugin")
    for name, described in document.items():
        _add_group(name, described, groups)


def _add_group(name: str, described: Any, groups: Groups) -> None:
    groups.add(name)
    if described is None:
        return
    if not isinstance(described, dict):
        raise NotPlainError(f"the group {name} is not a mapping")
    for section, content in described.items():
        entries = {content: None} if isinstance(content, str) else content
        if section not in ("vars", "children", "hosts") or not isinstance(entries, dict | None):
            raise NotPlainError(f"{section} in the group {name}")
        if not entries:
            continue
        if section == "vars":
            groups.set(name, entries)
        elif section == "children":
            for child, inner in entries.items():
                _add_group(child, inner, groups)
                groups.add_child(name, child)
        else:
            for pattern, variables in entries.items():
                if variables is not None and not isinstance(variables, dict):
                    raise NotPlainError(f"the variables of {pattern} are no mapping")
                names, port = hosts.expand(pattern)
                for host in names:
                    groups.add_host(host, name, port, variables or {})
