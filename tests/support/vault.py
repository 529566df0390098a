"""Secrets in inventories, encrypted by the real ansible-vault, for tests."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.commands import ran


def run(password: Path, *words: str | Path, secret: str | None = None) -> str:
    """Run ansible-vault with the password in this file, and return its output."""
    vault = Path(sys.executable).parent / "ansible-vault"
    action, *rest = words
    command = [vault, action, "--vault-password-file", password, *rest]
    return ran(command, input=secret, check=True).stdout


def password_file(folder: Path) -> Path:
    file = folder / "password"
    file.write_text("key\n")
    return file


def variable(password: Path, name: str, secret: str) -> str:
    """Return a line of YAML with the variable vaulted."""
    return run(password, "encrypt_string", "--stdin-name", name, secret=secret)
