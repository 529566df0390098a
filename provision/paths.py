"""Paths of playbooks, roles, documents and data: beside the package in a checkout, inside it in a wheel."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from provision.errors import GpuprovError

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


def own_command(module: str = "provision.cli") -> list[str]:
    """The start of a command line of this gpuprov, or of another module of ours that is a program. -P: no
    module is imported from the current folder."""
    return [sys.executable, "-P", "-m", module]


def own_environment() -> dict[str, str]:
    """Our environment for such a command. An empty or relative entry of PYTHONPATH is the current folder."""
    absolute = [
        entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry.startswith("/")
    ]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(absolute)}


def state_home() -> Path:
    """The folder for what gpuprov remembers between invocations (never inside the user's project)."""
    chosen = os.environ.get("XDG_STATE_HOME")
    return Path(chosen) / "gpuprov" if chosen else home() / ".local" / "state" / "gpuprov"


def home() -> Path:
    """The user's home folder. Raises GpuprovError where there is none, as in some containers."""
    try:
        return Path.home()
    except RuntimeError:
        raise GpuprovError("this user has no home folder: HOME is not set", "set HOME") from None


def user() -> str:
    """The user's name. Raises GpuprovError where there is none, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise GpuprovError(
            f"this user (uid {os.getuid()}) has no name",
            "add the uid to /etc/passwd: ssh works for no other user",
        ) from None
