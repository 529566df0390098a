"""Settings that a resumed run takes over from the earlier run unless given on the command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provision import secrets_mask
from provision.commands import fleet_options
from provision.errors import UsageError
from provision.secrets_mask import HIDDEN

# Options for nodes and logins; passwords are prompted for again.
_FLEET = ("nodes", "vault_password_file", "lock", "no_lock", "user", "ask_pass", "ask_become_pass")


def remembered(options: argparse.Namespace, own: Sequence[str]) -> dict[str, Any]:
    """Return the command line for the run folder; `own`: the verb's own options to store."""
    files = [str(Path(file).expanduser().absolute()) for file in options.vault_password_file]
    kept = {name: getattr(options, name) for name in (*_FLEET, *own)}
    given = fleet_options.overrides(options)
    shown = _without_secrets(secrets_mask.masked(given, secrets_mask.secrets_of(given)))
    return {**kept, "vault_password_file": files, "set": shown}


def _without_secrets(value: Any) -> Any:
    """Hide all values with a secret's name, including numbers and lists: 123456 may be a password."""
    if isinstance(value, Mapping):
        return {
            key: HIDDEN
            if secrets_mask.is_secret_name(str(key)) and inner is not None
            else _without_secrets(inner)
            for key, inner in value.items()
        }
    return [_without_secrets(inner) for inner in value] if isinstance(value, list) else value


def take_over(options: argparse.Namespace, meta: Mapping[str, Any], own: Sequence[str]) -> None:
    """Copy the earlier run's settings from run.json (`meta`) into `options`.
    Raises UsageError for a value of --set that was not stored completely."""
    arguments = meta.get("arguments") or {}
    pattern = {"nodes": meta["pattern"]} if meta.get("pattern") else {}
    locked = options.lock or options.no_lock  # giving either one now replaces both
    for name in (*_FLEET, *own):
        before = {**arguments, **pattern}.get(name)
        if name not in options.given and before and not (locked and name in ("lock", "no_lock")):
            setattr(options, name, before)
    if not (options.inventory or options.inventory_option):
        options.inventory = meta.get("inventory") or None
    given = {text.partition("=")[0] for text in options.set}
    for key, value in (arguments.get("set") or {}).items():
        if key in given:
            continue
        if HIDDEN in json.dumps(value):
            raise UsageError(
                f"--set {key}=… of the earlier run was not stored, because it looks like a secret",
                "give it again",
            )
        options.set.append(f"{key}={json.dumps(value)}")
