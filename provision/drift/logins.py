"""How a command logs in to nodes: what the inventory says, then the command line, then Ansible's settings.

Passwords that are asked for become variables of the nodes, as those of a vaulted inventory are: they are
masked in all output, and go to Ansible, workers and further processes as those do.
"""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Callable
from typing import Any

from provision.desired.inventory import ansible_settings
from provision.errors import UsageError
from provision.fleet import Fleet


def completed(fleet: Fleet, options: argparse.Namespace, say: Callable[[str], None]) -> Fleet:
    """The fleet, its nodes with the connection variables that the inventory leaves open. `say` is told of
    settings that change nothing.

    Raises UsageError when a password is to be asked for and there is no terminal, InventoryError for a
    mistake in ansible.cfg."""
    settings = ansible_settings.read()
    for note in settings.notes:
        say(note)
    variables: dict[str, Any] = dict(settings.variables)
    if options.user:
        variables["ansible_user"] = options.user
    login = "-k" if options.ask_pass else "ask_pass" if settings.ask_pass else ""
    become = "-K" if options.ask_become_pass else "become_ask_pass" if settings.ask_become_pass else ""
    asked = _asked(login, become)
    return ansible_settings.with_defaults(fleet, {**variables, **asked})


def _asked(login: str, become: str) -> dict[str, Any]:
    """The passwords, by the variables they stand for. `login`, `become`: who wants it asked for, if any."""
    found: dict[str, Any] = {}
    if login:
        found["ansible_password"] = _typed("SSH password: ", login, "ansible_password")
    if become:
        prompt = "sudo password [the SSH password]: " if login else "sudo password: "
        typed = _typed(prompt, become, "ansible_become_password", may_be_empty=bool(login))
        found["ansible_become_password"] = typed or found["ansible_password"]
    return found


def _typed(prompt: str, flag: str, variable: str, *, may_be_empty: bool = False) -> str:
    """Raises UsageError where there is no terminal, or nothing was typed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        raise UsageError(
            f"{flag}: there is no terminal to ask for the password on",
            f"set {variable}, vaulted, in the inventory, and give --vault-password-file FILE",
        ) from None
    try:
        typed = getpass.getpass(prompt)
    except EOFError:
        typed = ""
        may_be_empty = False
    if not typed and not may_be_empty:
        raise UsageError(f"{flag}: no password was typed", f"run again without {flag}, or type it")
    if "{{" in typed or "{%" in typed:  # among variables it would be one
        raise UsageError(
            f"{flag}: a password with {{{{ or {{% in it looks like a template", "log in with a key"
        )
    return typed
