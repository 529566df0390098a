"""Authentication to an SSH server after its host key was verified."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provision.remote.protocol import Clock, NodeError, hung
from provision.remote.ssh.connection import Hop
from provision.remote.ssh.known_hosts import fingerprint

if TYPE_CHECKING:
    import paramiko

AUTH_TIMEOUT = 20.0  # seconds


class Login:
    """Authentication to one host with key files, the agent's keys, or a password, in ssh's order."""

    def __init__(
        self,
        paramiko: Any,
        keys: dict[tuple[str, str | None], paramiko.PKey | str],
        transport: paramiko.Transport,
        hop: Hop,
        clock: Clock,
    ) -> None:
        self._paramiko = paramiko
        self._keys = keys
        self._transport = transport
        self._hop = hop
        self._clock = clock
        self._tried: list[str] = []

    def run(self) -> None:
        hop = self._hop
        self._transport.auth_timeout = self._clock.left(AUTH_TIMEOUT)
        partial = False
        for label, key in self._candidates() if hop.use_keys else ():
            self._tried.append(label)
            try:
                partial = bool(self._transport.auth_publickey(hop.user, key))
                if not partial:
                    return
                break
            except self._paramiko.BadAuthenticationType:
                self._tried[-1] += " (the node takes no keys)"
                break
            except self._paramiko.SSHException as error:
                self._look(str(error))
        if hop.password is not None:
            self._tried.append("the password")
            try:
                if not self._transport.auth_password(hop.user, hop.password):
                    return
            except self._paramiko.SSHException as error:
                self._look(str(error))
        raise self._refused("the node wants more than that" if partial else "")

    def _look(self, said: str) -> None:
        """Raise NodeError if authentication cannot continue after a refusal."""
        self._clock.left()
        if "imeout" in said:
            raise hung(f"{self._hop.address} did not answer the login within {AUTH_TIMEOUT:g} s")
        if not self._transport.is_active():
            raise self._refused("the node then closed the connection")

    def _refused(self, more: str) -> NodeError:
        tried = ", ".join(self._tried) or "nothing: no key file and no agent key was found"
        fix = "authorize a key there, or name the right one: ansible_user, ansible_ssh_private_key_file"
        what = f"{self._hop.address} refused user {self._hop.user}; tried {tried}"
        return NodeError("auth", f"{what}; {more}" if more else what, fix)

    def _candidates(self) -> Iterator[tuple[str, paramiko.PKey]]:
        hop = self._hop
        if hop.default_keys:
            yield from self._agent_keys()
        locked = set()
        for path in hop.key_files:
            key = self._load(path)
            if isinstance(key, str):
                if Path(path + ".pub").is_file() and "passphrase" in key:
                    locked.add(_public_blob(path + ".pub"))
                if not hop.default_keys or "does not exist" not in key:
                    self._tried.append(f"{path} ({key})")
            else:
                yield f"{path} ({fingerprint(key.asbytes())})", key
        if not hop.default_keys:
            yield from self._agent_keys(only=locked if hop.identities_only else None)

    def _agent_keys(self, only: set[str] | None = None) -> Iterator[tuple[str, paramiko.PKey]]:
        if not self._hop.agent or only == set():
            return
        agent = self._paramiko.Agent()
        try:
            for key in agent.get_keys():
                if only is None or key.get_base64() in only:
                    yield f"the agent's {key.comment or key.get_name()} ({fingerprint(key.asbytes())})", key
        finally:
            agent.close()

    def _load(self, path: str) -> paramiko.PKey | str:
        """Return the private key in a file, or why it is unusable; each file is read once for all nodes."""
        passphrase = self._hop.key_passphrase
        if (path, passphrase) not in self._keys:
            self._keys[path, passphrase] = self._read_key(path, passphrase)
        return self._keys[path, passphrase]

    def _read_key(self, path: str, passphrase: str | None) -> paramiko.PKey | str:
        # paramiko 5 renamed `passphrase` to `password`, so it is passed by position.
        secret: Any = passphrase.encode() if passphrase else None
        try:
            key: paramiko.PKey = self._paramiko.PKey.from_path(path, secret)
        except FileNotFoundError:
            return "does not exist"
        except OSError as error:
            return (error.strerror or "unreadable").lower()
        except self._paramiko.UnknownKeyType:
            return "a kind of key that only ssh can use"
        except (self._paramiko.SSHException, ValueError, TypeError) as error:
            message = str(error).lower()
            locked = "password" in message or "encrypted" in message or "passphrase" in message
            return "needs its passphrase: ssh-add it" if locked else "not a private key"
        return key


def _public_blob(path: str) -> str:
    words = Path(path).read_text(encoding="utf-8", errors="replace").split()
    return words[1] if len(words) > 1 else ""
