"""Host key verification against known_hosts; a refusal names the next step."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from provision.remote.node_error import NodeError
from provision.remote.ssh.known_hosts import (
    SSH_PORT,
    Entry,
    KnownHosts,
    Standing,
    fingerprint,
    host_name,
    judge,
)
from provision.remote.ssh.proxy_jump import Hop

_NAMES = {"ssh-ed25519": "ED25519", "ssh-rsa": "RSA", "ecdsa-sha2-nistp256": "ECDSA"}


class HostKeys:
    """The host keys of one invocation. Safe to use from many threads."""

    def __init__(self) -> None:
        self._known = KnownHosts()

    def entries(self, hop: Hop) -> list[Entry]:
        """The lines about `hop`; under its bare name when none names its port, as ssh does."""
        files = (*hop.user_known_hosts, *hop.global_known_hosts)
        found = self._known.entries(files, _name(hop))
        if not hop.known_as and hop.port != SSH_PORT and not any(not entry.marker for entry in found):
            found += self._known.entries(files, hop.host)
        return found

    def check(self, hop: Hop, entries: Sequence[Entry], key_type: str, blob: bytes, *, direct: bool) -> None:
        """Raise NodeError unless `hop` may be trusted to be itself. `direct`: no jump host is on the way."""
        standing, entry = judge(entries, key_type, blob)
        if standing is Standing.KNOWN:
            return
        shown = _shown(key_type, blob)
        if entry is None:
            authority = any(entry.marker == "@cert-authority" for entry in entries)
            if not hop.accept_new or not hop.user_known_hosts or authority:
                raise _unknown(hop, shown, authority, _line_to_run(hop, key_type, direct))
            learned = self._learn(hop, key_type, blob)
            if learned:
                self.check(hop, learned, key_type, blob, direct=direct)
        elif standing is Standing.REVOKED:
            raise NodeError(
                "host key",
                f"{hop.address} shows a revoked host key ({entry.place}): {shown}",
                "do not log in; give the node a new host key",
            )
        else:
            known = _shown(entry.key_type, entry.blob)
            raise NodeError(
                "host key",
                f"the host key of {hop.address} CHANGED: it shows {shown}, {entry.place} says {known}",
                "this may be an attack; if the node was reinstalled, run: "
                f"ssh-keygen -f {shlex.quote(entry.file)} -R {shlex.quote(_name(hop))}",
            )

    def _learn(self, hop: Hop, key_type: str, blob: bytes) -> list[Entry]:
        """Note the key of `hop`, or what somebody else has noted of it meanwhile."""
        file = hop.user_known_hosts[0]
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
    if direct and not hop.known_as and hop.user_known_hosts:
        kind = key_type.removeprefix("ssh-").split("-")[0]
        port = f"-p {hop.port} " if hop.port != SSH_PORT else ""
        target = shlex.quote(hop.user_known_hosts[0])
        return f"ssh-keyscan {port}-t {kind} {shlex.quote(hop.host)} >> {target}"
    return f"ssh {shlex.quote(hop.user + '@' + hop.host)} (by hand, once, with the same options)"
