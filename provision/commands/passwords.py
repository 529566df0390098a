"""Password prompts on the terminal."""

from __future__ import annotations

import getpass
import os

from provision.errors import UsageError


def typed(prompt: str, wanted_by: str, variable: str, *, may_be_empty: bool = False) -> str:
    """Read a password from the terminal without echo.
    Raises UsageError if there is no terminal, or nothing was typed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        raise UsageError(
            f"{wanted_by}: there is no terminal to ask for the password on",
            f"set {variable}, vaulted, in the inventory, and give --vault-password-file FILE",
        ) from None
    try:
        password = getpass.getpass(prompt)
    except EOFError:
        password = ""
        may_be_empty = False
    if not password and not may_be_empty:
        raise UsageError(f"{wanted_by}: no password was typed", f"run again without {wanted_by}, or type it")
    return password
