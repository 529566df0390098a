"""Reader of plain inventories (YAML, JSON, INI, with group_vars and host_vars) that does not start Ansible.

The answer is that of `ansible-inventory --list`, which takes 25 times as long for 10,000 hosts; a test
compares the two on thousands of random inventories. Whatever is unusual in an inventory, wrong with it, or
configured in Ansible raises NotPlainError, and Ansible is asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from provision.desired.inventory import ansible_inventory
from provision.desired.inventory.plain import documents, ini_groups, settings, yaml_groups
from provision.desired.inventory.plain.groups import ALL, Groups
from provision.desired.inventory.plain.not_plain import NotPlainError
from provision.desired.inventory.plain.vars_files import Contents, Folder, read_text

__all__ = ["NotPlainError", "read"]

# What Ansible passes over in a folder of inventories.
_IGNORED_NAMES = ("group_vars", "host_vars", "vars_plugins")
_IGNORED_ENDS = (
    *(".pyc", ".pyo", ".swp", ".bak", "~", ".rpm", ".md", ".txt", ".rst"),
    *(".orig", ".cfg", ".retry"),
)
# Ansible's own variables: `--list` leaves them out, also where an inventory sets them.
_INTERNAL = frozenset(
    {
        *("ansible_async_path", "ansible_collection_name", "ansible_config_file"),
        *("ansible_dependent_role_names", "ansible_diff_mode", "ansible_facts", "ansible_forks"),
        *("ansible_inventory_sources", "ansible_limit", "ansible_play_batch", "ansible_play_hosts"),
        *("ansible_play_hosts_all", "ansible_play_role_names", "ansible_playbook_python"),
        *("ansible_role_name", "ansible_role_names", "ansible_run_tags", "ansible_skip_tags"),
        *("ansible_verbosity", "ansible_version", "group_names", "groups", "hostvars", "inventory_dir"),
        *("inventory_file", "inventory_hostname", "inventory_hostname_short", "play_hosts", "playbook_dir"),
        *("role_name", "role_names", "role_path", "role_uuid"),
    }
)


def read(source: Path, vault_password_files: Sequence[Path] = ()) -> dict[str, Any]:
    """What `ansible-inventory --list` says of `source`. Raises NotPlainError when only Ansible can tell."""
    settings.check(ansible_inventory.environment())
    named = str(source)
    if "," in named or "$" in named:
        raise NotPlainError("not the name of one file or folder")
    path = Path(os.path.abspath(named))  # noqa: PTH100 - `..` behind a link is what Ansible takes it for
    groups = Groups()
    known: dict[str, Any] = {}
    spellings: dict[str, Any] = {}
    try:
        for file in _files(path):
            _add(file, groups, known, spellings)
        groups.complete()
        folder = (path if path.is_dir() else path.parent).resolve()
        return _answer(groups, folder, Contents(known, vault_password_files))
    except (OSError, RecursionError) as trouble:
        raise NotPlainError(str(trouble)) from None


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    found = False
    for entry in sorted(path.iterdir(), key=lambda entry: os.fsencode(entry.name)):
        if entry.name.startswith(".") or entry.name.endswith(_IGNORED_ENDS) or entry.name in _IGNORED_NAMES:
            continue
        found = True
        yield from _files(entry)
    if not found:
        raise NotPlainError(f"{path} is empty")


def _add(file: Path, groups: Groups, known: dict[str, Any], spellings: dict[str, Any]) -> None:
    text = read_text(file)
    if os.access(file, os.X_OK):  # Ansible would run it: an inventory script
        raise NotPlainError(f"{file} can be executed")
    extension = os.path.splitext(file)[1]  # noqa: PTH122 - as Ansible sees it
    if extension == ".toml":
        raise NotPlainError("TOML")
    if extension in (".yml", ".yaml", ".json", ""):
        try:
            document = documents.parse(text, known)
        except documents.NoYamlError:
            if extension:
                raise
            document = None  # INI, as a rule: it has no extension either
        if isinstance(document, dict) and document:
            yaml_groups.add(document, groups)
            return
        if extension and not all(line.strip()[:1] in ("", "#") for line in text.splitlines()):
            raise NotPlainError(f"{file} is not a mapping")
    ini_groups.add(text, groups, spellings)


def _answer(groups: Groups, folder: Path, contents: Contents) -> dict[str, Any]:
    of_groups, of_hosts = Folder(folder / "group_vars"), Folder(folder / "host_vars")
    group_files = {name: of_groups.files_of(name) for name in groups.children}
    host_files = {name: of_hosts.files_of(name) for name in groups.of_host}
    contents.read([file for each in (group_files, host_files) for files in each.values() for file in files])
    shared = documents.Shared()
    precedence, ancestors = groups.precedence(), groups.ancestors()
    common: dict[frozenset[str], dict[str, Any]] = {}
    hostvars = {}
    for host in sorted(groups.of_host):
        belongs = frozenset[str]().union(*(ancestors[name] for name in groups.of_host[host]))
        if belongs not in common:
            ordered = sorted({*belongs, ALL}, key=precedence.__getitem__)
            merged: dict[str, Any] = {}
            for name in ordered:
                merged.update(groups.variables[name])
            # A second loop: in Ansible a group_vars file wins over the inventory's own variables of every
            # group, also of groups nearer to the host.
            for name in ordered:
                merged.update(contents.of(group_files[name]))
            common[belongs] = _shown(merged, shared)
        own = _shown({**groups.host_variables[host], **contents.of(host_files[host])}, shared)
        variables = dict(sorted({**common[belongs], **own}.items())) if own else common[belongs]
        if variables:
            hostvars[host] = variables
    return dict(sorted({"_meta": {"hostvars": hostvars}, **_membership(groups)}.items()))


def _shown(variables: dict[str, Any], shared: documents.Shared) -> dict[str, Any]:
    return {name: shared.value(value) for name, value in sorted(variables.items()) if name not in _INTERNAL}


def _membership(groups: Groups) -> dict[str, Any]:
    found = {}
    for name in sorted(groups.children):
        described = {
            "children": list(groups.children[name]),
            "hosts": list(groups.hosts[name]) if name != ALL else [],
        }
        if shown := {kind: names for kind, names in described.items() if names}:
            found[name] = shown
    return found
