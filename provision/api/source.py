"""Choices of a caller: inventory, nodes, variable overrides, and login settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Source:
    """A fleet's inventory, and the selection of its nodes.

    `inventories`: one or several, of any kind that Ansible reads; the last one wins. By default the usual
    places are searched, as by every command. `nodes` is an Ansible host pattern. `variables` override those
    of all nodes and are converted to the variables' types. Vault password files default to Ansible's
    settings.

    `lock` is a lock file for package versions (default: gpuprov.lock.yml next to the inventory, if present);
    `use_lock=False` ignores any. `gpu_nodes_only` excludes hosts that are not GPU nodes. `last_used` also
    accepts the inventory last used in this folder, for read-only use cases.

    Passwords become node variables and are never printed. `ask_password` and `ask_become_password` prompt a
    person for them (`fleets.load`).
    """

    inventories: str | Path | Sequence[str | Path] = ()
    nodes: str = "all"
    variables: Mapping[str, Any] = field(default_factory=dict)
    vault_password_files: str | Path | Sequence[str | Path] = ()
    user: str = ""
    password: str | None = field(default=None, repr=False)
    become_password: str | None = field(default=None, repr=False)
    ask_password: bool = False
    ask_become_password: bool = False
    lock: str | Path | None = None
    use_lock: bool = True
    gpu_nodes_only: bool = False
    last_used: bool = False


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of observations: seconds for a node to answer, and concurrent connections."""

    timeout: float = 60.0
    connections: int = 512


def overrides(texts: Iterable[str]) -> dict[str, Any]:
    """Parse `KEY=VALUE` texts into a mapping; values are YAML, except for text variables.

    (`cuda_toolkit_version=12.9` is a version, not a number.) Raises UsageError for anything else."""
    from provision import yamlfile
    from provision.desired import variable_types, variables
    from provision.errors import UsageError

    values: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.isidentifier():
            raise UsageError(f"--set {text}: must be KEY=VALUE, with a variable name before the =", "")
        if not value:
            raise UsageError(
                f"--set {text}: no value", f"for empty text: --set {key}='\"\"', for nothing: {key}=null"
            )
        values[key] = yamlfile.parse(value, f"--set {key}", UsageError)
        if variables.is_text(key) and values[key] is not None and not isinstance(values[key], str):
            values[key] = value
        values[key] = variable_types.typed_override(key, values[key])
    return values
