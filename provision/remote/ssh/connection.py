"""Resolution of a node's route outside Ansible: from its connection variables and ssh_config to a Route
(pure).

Means the same as Ansible's own ssh connection plugin would; what only Ansible or ssh can be trusted with is
left to them (NotUnderstoodError), never guessed.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from provision.remote.ssh.config import ConfigFiles, NotUnderstoodError, Options, from_arguments, take
from provision.remote.ssh.proxy_jump import Hop, hop, jumps

if TYPE_CHECKING:
    from provision.fleet import Node

CONNECTIONS = (
    "ssh",
    "smart",
    "paramiko",
    "paramiko_ssh",
    "ansible.builtin.ssh",
    "ansible.builtin.paramiko_ssh",
)
_FALSE = ("false", "no", "off", "0", "f", "n")
_TRUE = ("true", "yes", "on", "1", "t", "y")


@dataclass(frozen=True)
class Route:
    """The way to a node, and how the program is started there."""

    target: Hop
    jumps: tuple[Hop, ...] = ()
    become: bool = False
    become_password: str | None = field(default=None, repr=False)
    python: str = "python3"


def route_of(node: Node, configs: ConfigFiles, defaults: Mapping[str, str] | None = None) -> Route:
    """The route to `node`. Raises NotUnderstoodError (why it must go through Ansible)."""
    values = _Variables({**(defaults or {}), **node.variables})
    connection = values.text("ansible_connection") or "ssh"
    if connection not in CONNECTIONS:
        raise NotUnderstoodError(f"ansible_connection is {connection}")
    _refuse_what_ansible_must_do(values)
    options: Options = {}
    from_arguments(values.text("ansible_ssh_args") or "", options)
    for keyword, names in _OPTION_VARIABLES:
        value = values.text(*names)
        if value:
            take(options, keyword, value)
    from_arguments(values.text("ansible_ssh_common_args") or "", options)
    from_arguments(values.text("ansible_ssh_extra_args") or "", options)
    name = values.text("ansible_host", "ansible_ssh_host") or node.name
    chosen = list(options.get("configfile", ()))
    target = hop(
        name,
        options,
        configs,
        password=values.text("ansible_password", "ansible_ssh_password", "ansible_ssh_pass"),
        key_passphrase=values.text("ansible_private_key_passphrase", "ansible_ssh_private_key_passphrase"),
    )
    # As in our playbooks: with become, unless the inventory says no.
    become = values.flag("ansible_become", default=True) and target.user != "root"
    return Route(
        target=target,
        jumps=jumps(options, configs, chosen),
        become=become,
        become_password=values.text("ansible_become_password", "ansible_become_pass", "ansible_sudo_pass")
        if become
        else None,
        python=_python(values),
    )


_OPTION_VARIABLES = (
    ("port", ("ansible_port", "ansible_ssh_port")),
    ("user", ("ansible_user", "ansible_ssh_user")),
    ("identityfile", ("ansible_ssh_private_key_file", "ansible_private_key_file")),
    ("connecttimeout", ("ansible_ssh_timeout",)),
)


def ansible_defaults() -> dict[str, str]:
    """Connection settings of the ansible.cfg that ANSIBLE_CONFIG names, as the variables they stand for.

    No other ansible.cfg counts for gpuprov, here or when it runs Ansible.
    """
    chosen = os.environ.get("ANSIBLE_CONFIG")
    if not chosen:
        return {}
    parser = configparser.ConfigParser(interpolation=None, strict=False, allow_no_value=True)
    try:
        parser.read(chosen, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return {}  # Ansible itself complains about it, better than we could
    found = {}
    for section, key, variable in _SETTINGS:
        value = parser.get(section, key, fallback=None)
        if value:
            found[variable] = value
    return found


_SETTINGS = (
    ("defaults", "remote_user", "ansible_user"),
    ("defaults", "remote_port", "ansible_port"),
    ("defaults", "private_key_file", "ansible_ssh_private_key_file"),
    ("defaults", "transport", "ansible_connection"),
    ("ssh_connection", "ssh_args", "ansible_ssh_args"),
    ("ssh_connection", "ssh_common_args", "ansible_ssh_common_args"),
    ("ssh_connection", "ssh_extra_args", "ansible_ssh_extra_args"),
    ("ssh_connection", "ssh_executable", "ansible_ssh_executable"),
    ("privilege_escalation", "become", "ansible_become"),
    ("privilege_escalation", "become_user", "ansible_become_user"),
    ("privilege_escalation", "become_method", "ansible_become_method"),
)


class _Variables:
    """A node's variables, read with care: a template or a vaulted value is Ansible's to resolve."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, *names: str) -> str | None:
        for name in names:
            value = self._values.get(name)
            if value is None or value == "":
                continue
            if not isinstance(value, str | int) or "{{" in str(value) or "{%" in str(value):
                raise NotUnderstoodError(f"{name} is not plain text")
            return str(value)
        return None

    def flag(self, name: str, *, default: bool) -> bool:
        text = (self.text(name) or str(default)).lower()
        if text not in _TRUE + _FALSE:
            raise NotUnderstoodError(f"{name} is {text}")
        return text in _TRUE


def _refuse_what_ansible_must_do(values: _Variables) -> None:
    for name, accepted in (
        ("ansible_become_user", ("root",)),
        ("ansible_become_method", ("sudo", "ansible.builtin.sudo")),
        ("ansible_become_exe", ("sudo",)),
        ("ansible_become_flags", ("-H -S -n", "-H -S", "-H", "-n", "-S")),
        ("ansible_ssh_executable", ("ssh", "/usr/bin/ssh")),
        ("ansible_shell_type", ("sh", "bash")),
        ("ansible_ssh_private_key", ()),
        ("ansible_private_key", ()),
        ("ansible_ssh_pkcs11_provider", ()),
        ("ansible_host_key_checking", _TRUE),
        ("ansible_ssh_host_key_checking", _TRUE),
    ):
        value = values.text(name)
        if value is not None and value.lower() not in accepted:
            raise NotUnderstoodError(f"{name} is set")


def _python(values: _Variables) -> str:
    chosen = values.text("ansible_python_interpreter") or "auto"
    if chosen.startswith("auto"):
        return "python3"
    # It becomes part of a command line on the node: a plain path, or Ansible's business.
    if not re.fullmatch(r"[A-Za-z0-9_./+-]+", chosen):
        raise NotUnderstoodError("ansible_python_interpreter is not a plain path")
    return chosen
