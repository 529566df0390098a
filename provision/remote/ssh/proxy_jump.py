"""Proxy jumps: one SSH server of the route to a node, and the jump hosts before it, from ssh options (pure).

What only ssh itself can be trusted with is refused (NotUnderstoodError), never guessed.
"""

from __future__ import annotations

import functools
import getpass
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provision.remote.ssh.config import ConfigFiles, NotUnderstoodError, Options, take
from provision.remote.ssh.known_hosts import SSH_PORT

DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
USER_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
GLOBAL_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
CONNECT_TIMEOUT = 10  # seconds, as Ansible's default

# ssh's name for a list of algorithms -> paramiko's.
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
# How the connection feels, or features an observation does not use: leaving them out changes no answer and
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
    """One SSH server on the way to a node, the node itself being the last."""

    host: str
    port: int
    user: str
    key_files: tuple[str, ...] = ()
    default_keys: bool = True  # key_files are the usual ones, which need not exist
    identities_only: bool = False
    use_keys: bool = True
    agent: str | None = None  # the agent's socket; None: no agent
    password: str | None = field(default=None, repr=False)
    key_passphrase: str | None = field(default=None, repr=False)
    known_as: str = ""  # the name its key is known under
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
    """One server, from what is already known of it in `options` (completed in place from ssh_config)."""
    configs.add(options, name)
    foreign = set(options) - _HONOURED - _WITHOUT_EFFECT_HERE
    if foreign:
        raise NotUnderstoodError(f"ssh option {sorted(foreign)[0]}")
    first = {keyword: values[0] for keyword, values in options.items()}
    host = _expand(first.get("hostname", name), {"h": name, "n": name})
    port = _number(first.get("port", str(SSH_PORT)), "port")
    me = getpass.getuser()
    tokens = {"h": host, "n": name, "p": str(port), "r": first.get("user", me)}
    tokens |= {"u": me, "d": str(Path.home())}
    strict = first.get("stricthostkeychecking", "ask").lower()
    if strict not in ("ask", "yes", "accept-new"):
        raise NotUnderstoodError(f"StrictHostKeyChecking is {strict}")
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
        user_known_hosts=_paths(first.get("userknownhostsfile", USER_KNOWN_HOSTS), tokens),
        global_known_hosts=_paths(first.get("globalknownhostsfile", GLOBAL_KNOWN_HOSTS), tokens),
        accept_new=strict == "accept-new",
        connect_timeout=_number(first.get("connecttimeout", str(CONNECT_TIMEOUT)), "ConnectTimeout"),
        proxy_command=_proxy_command(options, tokens),
        algorithms=tuple((kind, first[keyword]) for keyword, kind in ALGORITHMS.items() if keyword in first),
    )


def jumps(
    options: Options, configs: ConfigFiles, config_file: Sequence[str], depth: int = 0
) -> tuple[Hop, ...]:
    """The jump hosts of `options`, first one first. As in ssh, arguments for the node are not theirs."""
    text = options.get("proxyjump", ["none"])[0]
    command = options.get("proxycommand")
    # Whichever ssh reads first counts; dictionaries keep the order.
    if text.lower() == "none" or (
        command and list(options).index("proxycommand") < list(options).index("proxyjump")
    ):
        return ()
    if depth > 8:
        raise NotUnderstoodError("ProxyJump goes in circles")
    found: list[Hop] = []
    for position, spec in enumerate(text.split(",")):
        user, _, place = spec.strip().removeprefix("ssh://").rpartition("@")
        match = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?", place)
        if not match or "%" in spec:
            raise NotUnderstoodError(f"ProxyJump {spec!r}")
        own: Options = {"configfile": list(config_file)} if config_file else {}
        for keyword, value in (("user", user), ("port", match[2] or match[4])):
            if value:
                take(own, keyword, value)
        one = hop(match[1] or match[3], own, configs)
        if position == 0:
            found += jumps(own, configs, config_file, depth + 1)
        found.append(one)
    return tuple(found)


def _proxy_command(options: Options, tokens: Mapping[str, str]) -> tuple[str, ...]:
    text = options.get("proxycommand", ["none"])[0]
    order = list(options)
    if text.lower() == "none" or (
        "proxyjump" in options and order.index("proxyjump") < order.index("proxycommand")
    ):
        return ()
    # ssh gives it to a shell; we start it without one, so it must not need one.
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
    return str(Path(_expand(text, tokens)).expanduser())


def _paths(text: str, tokens: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(_path(part, tokens) for part in _words(text) if part.lower() != "none")


@functools.lru_cache(maxsize=256)
def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))  # as a rule the same for every node


def _number(text: str, what: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise NotUnderstoodError(f"{what} is {text!r}")
    return int(text)
