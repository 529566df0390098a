"""Loader of the inventory: any Ansible inventory becomes a Fleet of Nodes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from provision import atomic_file, paths
from provision.desired.inventory import ansible_inventory, patterns, plain
from provision.desired.inventory.plain.documents import NotPlainError
from provision.errors import InventoryError, UsageError
from provision.fleet import Fleet, Node

START_HERE = "gpuprov init writes a commented starter; or name one: gpuprov plan INVENTORY"


def find(argument: str | None, option: str | None) -> Path:
    """The inventory to use: argument, --inventory, GPUPROV_INVENTORY, ./inventory.yml, the last used here.

    Raises UsageError when argument and option disagree, InventoryError when there is none.
    """
    if argument and option and argument != option:
        raise UsageError(f"two inventories: {argument} and --inventory {option}", "give one")
    for named, by in (
        (argument or option, ""),
        (os.environ.get("GPUPROV_INVENTORY"), " (from GPUPROV_INVENTORY)"),
    ):
        if named:
            return _existing(named, by)
    here = Path("inventory.yml")
    if here.exists():
        return here
    note = _last_used_note()
    if note.is_file():
        return _existing(note.read_text(encoding="utf-8").strip(), " (the one last used in this folder)")
    raise InventoryError("no inventory: there is no inventory.yml in this folder", START_HERE)


def _existing(named: str, by: str) -> Path:
    source = Path(named).expanduser()
    if not source.exists() and "," not in named:  # `a,b,` is Ansible's inventory without a file
        raise InventoryError(f"{named}: no such inventory{by}", START_HERE)
    return source


def _last_used_note() -> Path:
    """One small file for each working directory, so that two terminals never write the same one."""
    here = hashlib.sha256(str(Path.cwd()).encode()).hexdigest()[:16]
    return paths.state_home() / "inventories" / here


def remember(source: Path) -> None:
    """Note the inventory as the one last used in this working directory. A read-only home is no error."""
    try:
        note = _last_used_note()
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        atomic_file.write(note, f"{source.resolve()}\n", sync=False)
    except OSError:
        return


def load(source: Path, vault_password_files: Sequence[Path] = ()) -> Fleet:
    """Read an inventory; where it is not a plain one, through `ansible-inventory`, which says the same.

    Nodes share what their variables have in common: none may be changed. Raises InventoryError (file, line,
    what to do).
    """
    for file in vault_password_files:
        if not os.access(file, os.R_OK):
            raise InventoryError(
                f"{file}: the vault password file cannot be read", "check --vault-password-file"
            )
    try:
        answer = plain.read(source, vault_password_files)
    except NotPlainError:
        answer = ansible_inventory.read(source, vault_password_files)
    hostvars = answer.get("_meta", {}).get("hostvars", {})
    groups = _members(answer)
    names = list(groups.get("all", ()))
    if not names:
        raise InventoryError(f"{source}: no nodes", "name at least one under `hosts:`")
    belongs: dict[str, list[str]] = {name: [] for name in names}
    for group, members in groups.items():
        if group != "all":
            for member in members:
                belongs[member].append(group)
    nodes = {name: Node(name, tuple(belongs[name]), hostvars.get(name, {})) for name in names}
    return Fleet(source, nodes, groups, tuple(vault_password_files))


def _members(answer: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Each group's nodes, its children's included: nearest level first, as Ansible orders them."""
    described = {name: value for name, value in answer.items() if name != "_meta" and isinstance(value, dict)}

    def nodes_of(group: str) -> tuple[str, ...]:
        found: dict[str, None] = {}
        level, seen = [group], {group}
        while level:
            for member in level:
                found.update(dict.fromkeys(described.get(member, {}).get("hosts", ())))
            children = [child for member in level for child in described.get(member, {}).get("children", ())]
            level = [child for child in dict.fromkeys(children) if child not in seen]
            seen.update(level)
        return tuple(found)

    names = dict.fromkeys(
        [*described, *(child for value in described.values() for child in value.get("children", ()))]
    )
    return {name: nodes_of(name) for name in names}


def select(fleet: Fleet, pattern: str) -> Fleet:
    """The part of the fleet a host pattern names (`all`, `a:&b:!c`, globs, `~regex`, `g[0:2]`, `@FILE`).

    Groups keep all their members: a variable that mentions `groups` means the inventory, not the selection.
    Raises InventoryError when the pattern, or a part of it, names nothing.
    """
    names = patterns.matching(pattern, list(fleet.nodes), fleet.groups)
    if not names:
        raise InventoryError(f"--nodes {pattern}: no node is left", "widen the pattern")
    chosen = {name: fleet.nodes[name] for name in names}
    others = {name: node for name, node in fleet.nodes.items() if name not in chosen}
    return replace(fleet, nodes=chosen, others={**fleet.others, **others})
