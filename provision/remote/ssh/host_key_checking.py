"""Host key checking that a user switched off: an unknown key is accepted and kept, a changed one is refused.

Ansible's ssh would log in to anyone who shows a changed key, and send the sudo password there.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from typing import Any

from provision.fleet import Node
from provision.node_names import fold
from provision.remote.ssh.config import OFF, SYSTEM_CONFIG, USER_CONFIG, ConfigFiles, NotUnderstoodError
from provision.remote.ssh.connection import CHECKING, CONNECTIONS, KEPT_KEYS, checking_is_off, route_of
from provision.remote.ssh.known_hosts import HostKeys

_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
VARIABLES = (*_ARGUMENTS, *CHECKING)
# Where ssh is to try a hundred times, a node that is off costs the time limit, and is not called unreachable.
ONE_ATTEMPT = "-o ConnectionAttempts=1"
_OFF = re.compile(rf"(?i)StrictHostKeyChecking[\s=\"']+({'|'.join(OFF)})\b")


def for_ansible(hosts: Mapping[str, Mapping[str, Any]], usual: str) -> dict[str, dict[str, Any]]:
    """The variables of these hosts by which Ansible's ssh accepts no changed key. `usual`: the arguments of a
    host without any."""
    configs, keys = ConfigFiles(), HostKeys()
    changed = {}
    for name, variables in hosts.items():
        changed[name] = found = dict(variables)
        if options := _options(Node(name, (), variables), configs, keys):
            # Of several values ssh takes the first one.
            found["ansible_ssh_args"] = f"{options} {variables.get(_ARGUMENTS[0]) or usual}"
            found.update(dict.fromkeys(CHECKING, True))
        if own := found.get(_ARGUMENTS[0]):
            found[_ARGUMENTS[0]] = f"{ONE_ATTEMPT} {own}"
    return changed


def _options(node: Node, configs: ConfigFiles, keys: HostKeys) -> str:
    """The options of ssh that come before those of this node; empty if it accepts no unknown key."""
    try:
        hop = route_of(node, configs).target
        accepts, forgets = hop.accept_new, KEPT_KEYS in hop.user_known_hosts
        # By accept-new, ssh takes a key of a new type for a new key, also from a host that it knows.
        known = accepts and any(not entry.marker for entry in keys.entries(hop))
    except NotUnderstoodError:
        if (node.variables.get("ansible_connection") or "ssh") not in CONNECTIONS:
            return ""
        options = _as_ssh_takes_them(node)
        accepts = options.get("stricthostkeychecking") in (None, "false", "accept-new")
        forgets = options.get("userknownhostsfile") in ("/dev/null", "none")
        known = not options  # ssh could not tell: strict, then
    kept = f" -o UserKnownHostsFile={KEPT_KEYS}" if forgets else ""
    return f"-o StrictHostKeyChecking={'yes' if known else 'accept-new'}{kept}" if accepts else ""


def _as_ssh_takes_them(node: Node) -> dict[str, str]:
    """ssh's own reading of its options and files for this node; nothing if it refuses them."""
    host = str(node.variables.get("ansible_host") or node.name)
    try:
        texts = [str(node.variables.get(name) or "") for name in _ARGUMENTS]
        if checking_is_off(node.variables):
            texts.insert(1, "-o StrictHostKeyChecking=accept-new")  # where Ansible has its own option
        words = shlex.split(" ".join(texts))
        done = subprocess.run(
            ["ssh", "-G", *words, "--", host], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def note(nodes: Iterable[Node]) -> str:
    """The line for people if checking is off for some of these nodes; else empty."""
    names, files = [], set[str]()
    for node in nodes:
        text = " ".join(str(node.variables.get(name) or "") for name in _ARGUMENTS)
        files |= set(re.findall(r"(?<!\S)-F\s*[\"']?([^\s\"']+)", text) or (USER_CONFIG, SYSTEM_CONFIG))
        if checking_is_off(node.variables) or _OFF.search(text):
            names.append(node.name)
    configs = ConfigFiles()
    places = [f"for {fold(names)}"] * bool(names)
    places += [f"in {file}" for file in sorted(files) if configs.switches_off(file)]
    what = "an unknown key is accepted and kept, a changed one is refused"
    return f"host key checking is off {' and '.join(places)}: {what}" if places else ""
