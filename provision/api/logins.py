"""How nodes are logged in to: what the inventory says, then what the caller gives, then Ansible's settings.

Passwords become variables of the nodes, as those of a vaulted inventory are: they are masked in all output,
and go to Ansible, workers and further processes as those do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from provision.api.source import Source
from provision.desired.inventory import ansible_settings
from provision.errors import UsageError
from provision.fleet import Fleet


class AskPassword(Protocol):
    """Asks a person for a password.

    `wanted_by` is the flag or setting that wants it, `variable` the one that it fills. `may_be_empty`:
    nothing typed is an answer. Raises UsageError where nobody can answer."""

    def __call__(self, prompt: str, wanted_by: str, variable: str, *, may_be_empty: bool = False) -> str: ...


def refuse(prompt: str, wanted_by: str, variable: str, *, may_be_empty: bool = False) -> str:  # noqa: ARG001
    """Ask nobody: for a program without a person in front of it. Raises UsageError."""
    raise UsageError(
        f"{wanted_by}: a password is wanted, and there is nobody to ask",
        f"give password or become_password, or set {variable}, vaulted, in the inventory",
    )


def completed(fleet: Fleet, source: Source, note: Callable[[str], None], ask: AskPassword) -> Fleet:
    """Fill in the connection variables that the inventory leaves open. `note` gets a line for each setting of
    Ansible's that changes nothing here.

    Raises UsageError when a password is wanted and cannot be asked for or used, InventoryError for a mistake
    in ansible.cfg."""
    settings = ansible_settings.read()
    for line in settings.notes:
        note(line)
    variables: dict[str, Any] = dict(settings.variables)
    if source.user:
        variables["ansible_user"] = source.user
    login = "-k" if source.ask_password else "ask_pass" if settings.ask_pass else ""
    become = "-K" if source.ask_become_password else "become_ask_pass" if settings.ask_become_pass else ""
    return ansible_settings.with_defaults(fleet, {**variables, **_passwords(source, login, become, ask)})


def _passwords(source: Source, login: str, become: str, ask: AskPassword) -> dict[str, Any]:
    """The passwords, by the variables they fill. `login`, `become`: what wants each asked for; or empty."""
    found: dict[str, Any] = {}
    if source.password is not None:
        found["ansible_password"] = _usable(source.password, "password")
    elif login:
        found["ansible_password"] = _usable(ask("SSH password: ", login, "ansible_password"), login)
    if source.become_password is not None:
        found["ansible_become_password"] = _usable(source.become_password, "become_password")
    elif become:
        same = "ansible_password" in found
        prompt = "sudo password [the SSH password]: " if same else "sudo password: "
        typed = _usable(ask(prompt, become, "ansible_become_password", may_be_empty=same), become)
        found["ansible_become_password"] = typed or found["ansible_password"]
    return found


def _usable(password: str, given_by: str) -> str:
    """Raises UsageError for one that would be a template among variables."""
    if "{{" in password or "{%" in password:
        raise UsageError(
            f"{given_by}: a password with {{{{ or {{% in it looks like a template", "log in with a key"
        )
    return password
