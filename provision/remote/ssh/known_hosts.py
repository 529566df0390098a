"""Verification of host keys against OpenSSH's known_hosts files (sshd(8)), with advice on failures.

Supports hashed names, `[host]:port`, wildcards and negation, and the markers @revoked and @cert-authority.

If a user switched checking off, an unknown key is accepted and stored, and a changed one is rejected:
Ansible's ssh would log in to anything that shows a changed key, and send the sudo password there.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import enum
import fcntl
import hashlib
import hmac
import re
import shlex
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from provision.fleet import Node
from provision.node_names import fold
from provision.remote.protocol import NodeError
from provision.remote.ssh.config import (
    OFF,
    SSH_PORT,
    SYSTEM_CONFIG,
    USER_CONFIG,
    ConfigFiles,
    NotUnderstoodError,
    matches,
)
from provision.remote.ssh.connection import CHECKING, CONNECTIONS, KEPT_KEYS, Hop, checking_is_off, route_of

_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
VARIABLES = (*_ARGUMENTS, *CHECKING)
# With many attempts, a node that is off would hit the timeout instead of being reported unreachable.
ONE_ATTEMPT = "-o ConnectionAttempts=1"
_OFF = re.compile(rf"(?i)StrictHostKeyChecking[\s=\"']+({'|'.join(OFF)})\b")


def fingerprint(blob: bytes) -> str:
    """Return a public key's fingerprint as ssh prints it: `SHA256:…`."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


@dataclass(frozen=True)
class Entry:
    """One key of one line; `marker` is empty, `@revoked` or `@cert-authority`."""

    file: str
    line: int
    marker: str
    key_type: str
    blob: bytes

    @property
    def place(self) -> str:
        return f"{self.file} line {self.line}"


class Standing(enum.Enum):
    """The status of a presented key in known_hosts."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass
class _File:
    """A parsed file, indexed to avoid 10,000 times 10,000 comparisons in a fleet of 10,000."""

    path: str = ""
    read: int = 0  # bytes and lines read so far
    lines: int = 0
    unterminated: bool = False  # no newline at the end
    exact: dict[str, list[Entry]] = field(default_factory=dict)
    patterns: list[tuple[list[str], Entry]] = field(default_factory=list)
    hashed: list[tuple[bytes, bytes, Entry]] = field(default_factory=list)

    def add(self, names: str, entry: Entry) -> None:
        # `|1|salt|digest` holds one name, and is base64: lower case would damage it.
        parts = names.lower().split(",") if not names.startswith("|") else [names]
        if names.startswith("|1|"):
            salt, _, digest = names[3:].partition("|")
            self.hashed.append((base64.b64decode(salt), base64.b64decode(digest), entry))
        elif any(set(part) & set("*?!") for part in parts):
            self.patterns.append((parts, entry))
        else:
            for part in parts:
                self.exact.setdefault(part, []).append(entry)

    def read_on(self, file: BinaryIO) -> None:
        """Parse lines added to the file since it was last read."""
        file.seek(self.read)
        added = file.read()
        self.read += len(added)
        self.unterminated = not added.endswith(b"\n") if added else self.unterminated
        for line in added.decode("utf-8", "replace").splitlines():
            self.lines += 1
            # `gpu-01,10.0.0.1 ssh-ed25519 AAAA… a comment`, or with a marker `@revoked * ssh-ed25519 AAAA…`
            fields = line.split()
            marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
            if len(fields) < 3 or fields[0].startswith("#"):
                continue
            try:
                blob = base64.b64decode(fields[2], validate=True)
                self.add(fields[0], Entry(self.path, self.lines, marker, fields[1], blob))
            except (binascii.Error, ValueError):
                continue

    def of(self, name: str) -> list[Entry]:
        entries = list(self.exact.get(name, ()))
        entries += [entry for patterns, entry in self.patterns if matches(patterns, name)]
        encoded = name.encode()
        entries += [
            entry for salt, digest, entry in self.hashed if hmac.digest(salt, encoded, "sha1") == digest
        ]
        return sorted(entries, key=lambda entry: entry.line)


class KnownHosts:
    """The known_hosts files of one invocation, each read once. Thread-safe."""

    def __init__(self) -> None:
        self._files: dict[str, _File] = {}
        self._lock = threading.Lock()

    def entries(self, files: Sequence[str], name: str) -> list[Entry]:
        """Return every line of `files` that matches `name` (`host` or `[host]:port`)."""
        return [entry for path in files for entry in self._file(path).of(name.lower())]

    def _file(self, path: str) -> _File:
        with self._lock:
            if path not in self._files:
                self._files[path] = parsed = _File(path)
                with contextlib.suppress(OSError), Path(path).open("rb") as file:
                    parsed.read_on(file)  # as in ssh, an unreadable file has no keys
            return self._files[path]

    def learn(self, path: str, name: str, key_type: str, blob: bytes) -> list[Entry]:
        """Add a key, as for `StrictHostKeyChecking accept-new`, unless the file has one for `name` by now.

        Returns the known keys if another gpuprov process has added one, otherwise nothing. Raises OSError."""
        line = f"{name} {key_type} {base64.b64encode(blob).decode()}\n"
        known_file = self._file(path)
        with self._lock:
            Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with Path(path).open("a+b") as file:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                # Under the lock: a process that connected at the same time may have added its key just now.
                known_file.read_on(file)
                entries = [entry for entry in known_file.of(name.lower()) if not entry.marker]
                if not entries:
                    if known_file.unterminated:  # edited by hand: its last entry must not be continued
                        known_file.read += file.write(b"\n")
                    file.write(line.encode())
                    file.flush()
                    known_file.read_on(file)
        return entries


def host_name(host: str, port: int) -> str:
    """Return a host's name in known_hosts: `host`, or `[host]:port` if the port is not 22."""
    return host.lower() if port == SSH_PORT else f"[{host.lower()}]:{port}"


def judge(entries: Sequence[Entry], key_type: str, blob: bytes) -> tuple[Standing, Entry | None]:
    """Return the status of a key and the entry that decides it, of the same type if possible."""
    # The key of a @cert-authority line signs host keys, and is never a host's own.
    plain = [entry for entry in entries if not entry.marker]
    for entry in entries:
        if entry.marker == "@revoked" and entry.blob == blob:  # first, since another line may list it, too
            return Standing.REVOKED, entry
    for entry in plain:
        if entry.blob == blob:
            return Standing.KNOWN, entry
    for entry in sorted(plain, key=lambda entry: entry.key_type != key_type):
        # Known with another type only: a man in the middle would offer just that.
        return Standing.CHANGED, entry
    return Standing.UNKNOWN, None


_NAMES = {"ssh-ed25519": "ED25519", "ssh-rsa": "RSA", "ecdsa-sha2-nistp256": "ECDSA"}


class HostKeys:
    """The host keys of one invocation. Thread-safe."""

    def __init__(self) -> None:
        self._known = KnownHosts()

    def entries(self, hop: Hop) -> list[Entry]:
        """Return the entries for `hop`; if its port has none, the entries of its bare name, as ssh does."""
        files = (*hop.user_known_hosts, *hop.global_known_hosts)
        known = self._known.entries(files, _name(hop))
        if not hop.known_as and hop.port != SSH_PORT and not any(not entry.marker for entry in known):
            known += self._known.entries(files, hop.host)
        return known

    def check(self, hop: Hop, entries: Sequence[Entry], key_type: str, blob: bytes, *, direct: bool) -> None:
        """Raise NodeError unless the key of `hop` is trusted; `direct`: the route has no jump host."""
        standing, entry = judge(entries, key_type, blob)
        if standing is Standing.KNOWN:
            return
        shown = _shown(key_type, blob)
        if entry is None:
            authority = any(entry.marker == "@cert-authority" for entry in entries)
            if not hop.accept_new or not hop.user_known_hosts or authority:
                raise _unknown(hop, shown, authority, _line_to_run(hop, key_type, direct))
            learned = self._learn(hop, key_type, blob)
            if learned:  # another process was first, perhaps with another key
                self.check(hop, learned, key_type, blob, direct=direct)
        elif standing is Standing.REVOKED:
            raise NodeError(
                "host key",
                f"{hop.address} shows a revoked host key ({entry.place}): {shown}",
                "do not log in; give the node a new host key",
            )
        else:
            stored = _shown(entry.key_type, entry.blob)
            raise NodeError(
                "host key",
                f"the host key of {hop.address} CHANGED: it shows {shown}, {entry.place} says {stored}",
                "this may be an attack; if the node was reinstalled, run: "
                f"ssh-keygen -f {shlex.quote(entry.file)} -R {shlex.quote(_name(hop))}",
            )

    def _learn(self, hop: Hop, key_type: str, blob: bytes) -> list[Entry]:
        """Store the key of `hop`, or return the keys that another process has stored meanwhile."""
        file = hop.user_known_hosts[0]  # ssh, too, adds keys to the first one
        try:
            return self._known.learn(file, _name(hop), key_type, blob)
        except OSError as error:
            raise NodeError(
                "host key",
                f"the host key of {hop.address} cannot be added to {file}: {(error.strerror or '').lower()}",
                "make that file writable",
            ) from None


def _shown(key_type: str, blob: bytes) -> str:
    return f"{_NAMES.get(key_type, key_type)} {fingerprint(blob)}"


def _unknown(hop: Hop, shown: str, authority: bool, line: str) -> NodeError:
    if authority:
        return NodeError(
            "host key",
            f"{hop.address} shows a plain host key where known_hosts names an authority: {shown}",
            "let the authority sign the node's host key, or add the plain key to known_hosts",
        )
    return NodeError(
        "host key",
        f"the host key of {hop.address} is not in {_files(hop)}: {shown}",
        f"compare that fingerprint with the node's console, then run: {line}",
    )


def _name(hop: Hop) -> str:
    return hop.known_as or host_name(hop.host, hop.port)


def _files(hop: Hop) -> str:
    return hop.user_known_hosts[0] if hop.user_known_hosts else "any known_hosts file"


def _line_to_run(hop: Hop, key_type: str, direct: bool) -> str:
    # ssh-keyscan knows no jump hosts, and writes the address instead of a HostKeyAlias.
    if direct and not hop.known_as and hop.user_known_hosts:
        kind = key_type.removeprefix("ssh-").split("-")[0]  # ecdsa-sha2-nistp256 → ecdsa
        port = f"-p {hop.port} " if hop.port != SSH_PORT else ""
        target = shlex.quote(hop.user_known_hosts[0])
        return f"ssh-keyscan {port}-t {kind} {shlex.quote(hop.host)} >> {target}"
    return f"ssh {shlex.quote(hop.user + '@' + hop.host)} (by hand, once, with the same options)"


# --- host key checking that a user switched off


def for_ansible(hosts: Mapping[str, Mapping[str, Any]], usual: str) -> dict[str, dict[str, Any]]:
    """Return these hosts' variables, changed so that Ansible's ssh accepts no changed key.

    `usual`: the ssh arguments of a host that sets none."""
    configs, keys = ConfigFiles(), HostKeys()
    changed = {}
    for name, variables in hosts.items():
        changed[name] = adapted = dict(variables)
        if options := _options(Node(name, (), variables), configs, keys):
            # ssh uses the first of several values.
            adapted["ansible_ssh_args"] = f"{options} {variables.get(_ARGUMENTS[0]) or usual}"
            adapted.update(dict.fromkeys(CHECKING, True))
        if own := adapted.get(_ARGUMENTS[0]):
            adapted[_ARGUMENTS[0]] = f"{ONE_ATTEMPT} {own}"
    return changed


def _options(node: Node, configs: ConfigFiles, keys: HostKeys) -> str:
    """Return ssh options to prepend for this node; empty if it accepts no unknown key."""
    try:
        hop = route_of(node, configs).target
        accepts, forgets = hop.accept_new, KEPT_KEYS in hop.user_known_hosts
        # With accept-new, ssh accepts a key of another type as a new one, even from a known host.
        has_key = accepts and any(not entry.marker for entry in keys.entries(hop))
    except NotUnderstoodError:
        if (node.variables.get("ansible_connection") or "ssh") not in CONNECTIONS:
            return ""
        options = _as_ssh_takes_them(node)
        # `ssh -G` prints `false` for no and off.
        accepts = options.get("stricthostkeychecking") in (None, "false", "accept-new")
        forgets = options.get("userknownhostsfile") in ("/dev/null", "none")
        has_key = not options  # ssh could not parse its options: be strict
    kept = f" -o UserKnownHostsFile={KEPT_KEYS}" if forgets else ""
    return f"-o StrictHostKeyChecking={'yes' if has_key else 'accept-new'}{kept}" if accepts else ""


def _as_ssh_takes_them(node: Node) -> dict[str, str]:
    """Return ssh's own interpretation of its options and files for this node; empty if it rejects them."""
    host = str(node.variables.get("ansible_host") or node.name)
    try:
        texts = [str(node.variables.get(name) or "") for name in _ARGUMENTS]
        if checking_is_off(node.variables):
            texts.insert(1, "-o StrictHostKeyChecking=accept-new")  # the position of Ansible's own option
        words = shlex.split(" ".join(texts))
        done = subprocess.run(
            ["ssh", "-G", *words, "--", host], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return {}
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def note(nodes: Iterable[Node]) -> str:
    """Return a line for people if checking is off for some of these nodes, else ""."""
    names, files = [], set[str]()
    for node in nodes:
        text = " ".join(str(node.variables.get(name) or "") for name in _ARGUMENTS)
        # With `-F FILE`, ssh reads neither of the two usual files.
        files |= set(re.findall(r"(?<!\S)-F\s*[\"']?([^\s\"']+)", text) or (USER_CONFIG, SYSTEM_CONFIG))
        if checking_is_off(node.variables) or _OFF.search(text):
            names.append(node.name)
    configs = ConfigFiles()
    places = [f"for {fold(names)}"] * bool(names)
    places += [f"in {file}" for file in sorted(files) if configs.switches_off(file)]
    what = "an unknown key is accepted and kept, a changed one is refused"
    return f"host key checking is off {' and '.join(places)}: {what}" if places else ""
