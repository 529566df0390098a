"""Paths of playbooks, roles, documents and data: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = PACKAGE.parent
_PACKED = PACKAGE / "_packed"

# A checkout wins over a stray packed copy, which an editable install leaves behind.
_HOME = _CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() and (_CHECKOUT / "roles").is_dir() else _PACKED

PLAYBOOKS = _HOME / "playbooks"
ROLES = _HOME / "roles"
DOCS = _HOME / "docs"
README = _HOME / "README.md"
CHANGELOG = _HOME / "CHANGELOG.md"
DATA = PACKAGE / "data"
NODE = PACKAGE / "node"  # programs that run on nodes
MODULES = NODE / "modules"  # our own Ansible modules


def state_home() -> Path:
    """The folder for what gpuprov remembers between invocations (never inside the user's project)."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "gpuprov"
