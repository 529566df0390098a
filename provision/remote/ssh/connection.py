"""The route to a node outside Ansible (pure): jump hosts and SSH server, from variables and options.

Equivalent to Ansible's own ssh connection plugin; settings that only Ansible or ssh can handle are left to
them (NotUnderstoodError), never guessed.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from provision.remote.ssh.config import (
    OFF,
    SSH_PORT,
    ConfigFiles,
    NotUnderstoodError,
    Options,
    expanded,
    from_arguments,
    login,
    take,
)

if TYPE_CHECKING:
    from provision.fleet import Node


DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
USER_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
# Store of keys for users without one (/dev/null), as otherwise every changed key would count as new.
KEPT_KEYS = str(expanded("~/.ssh/known_hosts_gpuprov"))
CONNECT_TIMEOUT = 10  # seconds, as Ansible's default

# Maps ssh's name for a list of algorithms to paramiko's.
ALGORITHMS = {
    "kexalgorithms": "kex",
    "ciphers": "ciphers",
    "macs": "macs",
    "hostkeyalgorithms": "keys",
    "pubkeyacceptedalgorithms": "pubkeys",
    "pubkeyacceptedkeytypes": "pubkeys",
}
_HONOURED = {
    *("hostname", "port", "user", "identityfile", "identitiesonly", "identityagent", "proxyjump"),
    *("proxycommand", "userknownhostsfile", "globalknownhostsfile", "stricthostkeychecking"),
    *("connecttimeout", "hostkeyalias", "pubkeyauthentication"),
    *ALGORITHMS,
}
# Options for comfort, or for features that observations do not use: ignoring them changes no answer and
# weakens nothing.
_WITHOUT_EFFECT_HERE = {
    *("addkeystoagent", "batchmode", "casignaturealgorithms", "challengeresponseauthentication"),
    *("checkhostip", "clearallforwardings", "compression", "connectionattempts", "controlmaster"),
    *("controlpath", "controlpersist", "dynamicforward", "enableescapecommandline", "escapechar"),
    *("exitonforwardfailure", "forkafterauthentication", "forwardagent", "forwardx11", "forwardx11timeout"),
    *("forwardx11trusted", "gatewayports", "gssapiauthentication", "gssapidelegatecredentials"),
    *("gssapikexalgorithms", "gssapikeyexchange", "hashknownhosts", "hostbasedauthentication", "ipqos"),
    *("kbdinteractiveauthentication", "localcommand", "localforward", "loglevel", "logverbose"),
    *("nohostauthenticationforlocalhost", "numberofpasswordprompts", "obscurekeystroketiming"),
    *("passwordauthentication", "permitlocalcommand", "permitremoteopen", "rekeylimit", "remoteforward"),
    *("requesttty", "requiredrsasize", "sendenv", "serveralivecountmax", "serveraliveinterval"),
    *("sessiontype", "setenv", "stdinnull", "streamlocalbindmask", "streamlocalbindunlink"),
    *("syslogfacility", "tag", "tcpkeepalive", "tunnel", "tunneldevice", "updatehostkeys"),
    *("verifyhostkeydns", "visualhostkey", "xauthlocation"),
}
_SHELL_CHARACTERS = set("|&;<>()$`*?~#!\n\\{}")


@dataclass(frozen=True)
class Hop:
    """One SSH server on the route to a node; the node itself is the last."""

    host: str
    port: int
    user: str
    key_files: tuple[str, ...] = ()
    default_keys: bool = True  # key_files are ssh's defaults, which need not exist
    identities_only: bool = False
    use_keys: bool = True
    agent: str | None = None  # the agent's socket; None: no agent
    password: str | None = field(default=None, repr=False)
    key_passphrase: str | None = field(default=None, repr=False)
    known_as: str = ""  # the name under which its key is stored
    user_known_hosts: tuple[str, ...] = ()
    global_known_hosts: tuple[str, ...] = ()
    accept_new: bool = False
    connect_timeout: int = CONNECT_TIMEOUT
    proxy_command: tuple[str, ...] = ()
    algorithms: tuple[tuple[str, str], ...] = ()  # (paramiko's kind, ssh's list)

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.host if self.port == SSH_PORT else f"{host}:{self.port}"


def hop(
    name: str,
    options: Options,
    configs: ConfigFiles,
    *,
    password: str | None = None,
    key_passphrase: str | None = None,
) -> Hop:
    """Return one server from `options`, which are completed in place from ssh_config."""
    configs.add(options, name)
    foreign = set(options) - _HONOURED - _WITHOUT_EFFECT_HERE
    if foreign:
        raise NotUnderstoodError(f"ssh option {sorted(foreign)[0]}")
    first = {keyword: values[0] for keyword, values in options.items()}
    host = _expand(first.get("hostname", name), {"h": name, "n": name})
    port = _number(first.get("port", str(SSH_PORT)), "port")
    me, home = login()
    tokens = {"h": host, "n": name, "p": str(port), "r": first.get("user", me)}
    tokens |= {"u": me, "d": home}
    strict = first.get("stricthostkeychecking", "ask").lower()
    if strict not in ("ask", "yes", "true", "accept-new", *OFF):
        raise NotUnderstoodError(f"StrictHostKeyChecking is {strict}")
    accept_new = strict == "accept-new" or strict in OFF
    user_known_hosts = _paths(first.get("userknownhostsfile", USER_KNOWN_HOSTS), tokens)
    if accept_new and user_known_hosts in ((), ("/dev/null",)):
        user_known_hosts = (KEPT_KEYS,)
    alias = first.get("hostkeyalias")
    keys = tuple(_path(key, tokens) for key in options.get("identityfile", ()) if key.lower() != "none")
    return Hop(
        host=host,
        port=port,
        user=tokens["r"],
        key_files=keys or tuple(_path(key, tokens) for key in DEFAULT_KEYS),
        default_keys=not keys,
        identities_only=first.get("identitiesonly", "no").lower() == "yes",
        use_keys=first.get("pubkeyauthentication", "yes").lower() != "no",
        agent=_agent(first.get("identityagent", "SSH_AUTH_SOCK"), tokens),
        password=password,
        key_passphrase=key_passphrase,
        known_as=_expand(alias, tokens) if alias else "",
        user_known_hosts=user_known_hosts,
        global_known_hosts=_paths(first.get("globalknownhostsfile", GLOBAL_KNOWN_HOSTS), tokens),
        accept_new=accept_new,
        connect_timeout=_number(first.get("connecttimeout", str(CONNECT_TIMEOUT)), "ConnectTimeout"),
        proxy_command=_proxy_command(options, tokens),
        algorithms=tuple((kind, first[keyword]) for keyword, kind in ALGORITHMS.items() if keyword in first),
    )


def jumps(
    options: Options, configs: ConfigFiles, config_file: Sequence[str], depth: int = 0
) -> tuple[Hop, ...]:
    """Return the jump hosts of `options` in order; as in ssh, the node's arguments do not apply to them."""
    text = options.get("proxyjump", ["none"])[0]
    command = options.get("proxycommand")
    # The option that ssh reads first counts; dictionaries keep the order.
    if text.lower() == "none" or (
        command and list(options).index("proxycommand") < list(options).index("proxyjump")
    ):
        return ()
    if depth > 8:
        raise NotUnderstoodError("ProxyJump goes in circles")
    hops: list[Hop] = []
    for position, spec in enumerate(text.split(",")):
        user, _, address = spec.strip().removeprefix("ssh://").rpartition("@")
        match = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?", address)
        if not match or "%" in spec:
            raise NotUnderstoodError(f"ProxyJump {spec!r}")
        own: Options = {"configfile": list(config_file)} if config_file else {}
        for keyword, value in (("user", user), ("port", match[2] or match[4])):
            if value:
                take(own, keyword, value)
        one = hop(match[1] or match[3], own, configs)
        if position == 0:
            hops += jumps(own, configs, config_file, depth + 1)
        hops.append(one)
    return tuple(hops)


def _proxy_command(options: Options, tokens: Mapping[str, str]) -> tuple[str, ...]:
    text = options.get("proxycommand", ["none"])[0]
    order = list(options)
    if text.lower() == "none" or (
        "proxyjump" in options and order.index("proxyjump") < order.index("proxycommand")
    ):
        return ()
    # ssh runs it in a shell; we do not, so it must not need one.
    if set(text) & _SHELL_CHARACTERS:
        raise NotUnderstoodError("ProxyCommand needs a shell")
    words = shlex.split(text.removeprefix("exec "))
    return tuple(_expand(word, tokens) for word in words)


def _agent(text: str, tokens: Mapping[str, str]) -> str | None:
    if text.lower() == "none":
        return None
    if text == "SSH_AUTH_SOCK" or text.startswith("$"):
        return os.environ.get(text.removeprefix("$"))
    return _path(text, tokens)


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        letter = match[1]
        if letter == "%":
            return "%"
        if letter not in tokens:
            raise NotUnderstoodError(f"%{letter} in {text!r}")
        return tokens[letter]

    return re.sub(r"%(.)", value, text)


def _path(text: str, tokens: Mapping[str, str]) -> str:
    if "${" in text:
        raise NotUnderstoodError(f"an environment variable in {text!r}")
    return str(expanded(_expand(text, tokens)))


def _paths(text: str, tokens: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(_path(part, tokens) for part in _words(text) if part.lower() != "none")


@functools.lru_cache(maxsize=256)
def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))  # usually the same for every node


def _number(text: str, what: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise NotUnderstoodError(f"{what} is {text!r}")
    return int(text)


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
CHECKING = ("ansible_ssh_host_key_checking", "ansible_host_key_checking")  # the first one that is set counts


@dataclass(frozen=True)
class Route:
    """The route to a node, and the start of programs there."""

    target: Hop
    jumps: tuple[Hop, ...] = ()
    become: bool = False
    become_password: str | None = field(default=None, repr=False)
    python: str = "python3"


def route_of(node: Node, configs: ConfigFiles) -> Route:
    """Return the route to `node`. Raises NotUnderstoodError with the reason to use Ansible instead."""
    values = _Variables(node.variables)
    connection = values.text("ansible_connection") or "ssh"
    if connection not in CONNECTIONS:
        raise NotUnderstoodError(f"ansible_connection is {connection}")
    _refuse_what_ansible_must_do(values)
    options: Options = {}
    from_arguments(values.text("ansible_ssh_args") or "", options)
    if checking_is_off(node.variables):
        take(options, "stricthostkeychecking", "accept-new")
    for keyword, names in _OPTION_VARIABLES:
        value = values.text(*names)
        if value:
            # Ansible expands key files of the inventory with HOME; ssh does not.
            take(options, keyword, os.path.expanduser(value) if keyword == "identityfile" else value)  # noqa: PTH111
    from_arguments(values.text("ansible_ssh_common_args") or "", options)
    from_arguments(values.text("ansible_ssh_extra_args") or "", options)
    name = values.text("ansible_ssh_host", "ansible_host") or node.name
    chosen = list(options.get("configfile", ()))
    target = hop(
        name,
        options,
        configs,
        password=values.text("ansible_ssh_password", "ansible_ssh_pass", "ansible_password"),
        key_passphrase=values.text("ansible_ssh_private_key_passphrase", "ansible_private_key_passphrase"),
    )
    # As in our playbooks: become is the default.
    become = values.flag("ansible_become", default=True) and target.user != "root"
    return Route(
        target=target,
        jumps=jumps(options, configs, chosen),
        become=become,
        become_password=values.text("ansible_sudo_pass", "ansible_become_pass", "ansible_become_password")
        if become
        else None,
        python=_python(values),
    )


# Of several names for one option, Ansible uses the last documented one, which is first here.
_OPTION_VARIABLES = (
    ("port", ("ansible_ssh_port", "ansible_port")),
    ("user", ("ansible_ssh_user", "ansible_user")),
    ("identityfile", ("ansible_ssh_private_key_file", "ansible_private_key_file")),
    ("connecttimeout", ("ansible_ssh_timeout", "ansible_timeout")),
)


def checking_is_off(variables: Mapping[str, Any]) -> bool:
    """Return whether Ansible's variables switch host key checking off."""
    values = [str(variables[name]) for name in CHECKING if variables.get(name) not in (None, "")]
    return bool(values) and values[0].lower() in _FALSE


class _Variables:
    """A node's variables; templates and vaulted values are rejected, since only Ansible can resolve them."""

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
    ):
        value = values.text(name)
        if value is not None and value.lower() not in accepted:
            raise NotUnderstoodError(f"{name} is set")


def _python(values: _Variables) -> str:
    chosen = values.text("ansible_python_interpreter") or "auto"
    if chosen.startswith("auto"):
        return "python3"
    # It becomes part of a command line on the node, so anything but a plain path is left to Ansible.
    if not re.fullmatch(r"[A-Za-z0-9_./+-]+", chosen):
        raise NotUnderstoodError("ansible_python_interpreter is not a plain path")
    return chosen
