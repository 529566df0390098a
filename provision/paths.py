"""Paths of playbooks, roles, documents and data, next to the package or, in a wheel, inside it."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from provision.errors import GpuprovError

PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = PACKAGE.parent
_PACKED = PACKAGE / "_packed"

# A checkout takes precedence over a stray packed copy from an editable install.
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
    """Return the start of a command line of this gpuprov, or of another program module.
    -P: modules are not imported from the current folder."""
    return [sys.executable, "-P", "-m", module]


def own_environment() -> dict[str, str]:
    """Return our environment for such a command; empty and relative entries of PYTHONPATH are dropped."""
    absolute = [
        entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry.startswith("/")
    ]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(absolute)}


def state_home() -> Path:
    """Return the folder of gpuprov's state between invocations (never inside the user's project)."""
    chosen = os.environ.get("XDG_STATE_HOME")
    return Path(chosen) / "gpuprov" if chosen else home() / ".local" / "state" / "gpuprov"


def home() -> Path:
    """Return the user's home folder. Raises GpuprovError without one, as in some containers."""
    try:
        return Path.home()
    except RuntimeError:
        raise GpuprovError("this user has no home folder: HOME is not set", "set HOME") from None


def user() -> str:
    """Return the user's name. Raises GpuprovError without one, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise GpuprovError(
            f"this user (uid {os.getuid()}) has no name",
            "add the uid to /etc/passwd: ssh works for no other user",
        ) from None
