"""Runs a playbook and yields typed events; the only file that imports ansible_runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Event:
    """One thing that happened to one node. `kind`: ok, changed, failed, unreachable, skipped, started.

    `result` holds named fields only (msg, stdout tail, rc, and what a module of ours returned under `gpuprov`), never
    task arguments."""

    kind: str
    node: str
    role: str
    task: str
    result: Mapping[str, Any] = field(default_factory=dict)
    ignored: bool = False


@dataclass(frozen=True)
class Outcome:
    """How the playbook went for one node: `ok`, `failed` or `unreachable`; `message` is the failing task's words."""

    node: str
    status: str
    changed: int = 0
    role: str = ""
    task: str = ""
    message: str = ""


def run_playbook(
    playbook: Path,
    hosts: Mapping[str, Mapping[str, Any]],
    *,
    on_event: Callable[[Event], None] | None = None,
    extra_vars: Mapping[str, Any] | None = None,
    forks: int = 25,
    timeout: float | None = None,
    check_mode: bool = False,
    vault_password_files: Sequence[Path] = (),
) -> dict[str, Outcome]:
    """Run `playbook` on `hosts` (name → variables; secrets among them never reach the disk outside a 0700 folder that
    is removed). One Outcome per host, from events; a host without any is `failed` ("nothing was run on it").
    """
    raise NotImplementedError
