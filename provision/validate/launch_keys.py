"""The SSH keys of one launch: a certificate authority that lives as long as this process, and its
certificates.

Each node makes a key pair of its own, and the authority signs the public part: a node that lets in whoever
has such a certificate needs one line for all others. The certificate runs out by itself.
"""

from __future__ import annotations

import time

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificateBuilder,
    SSHCertificateType,
    load_ssh_public_key,
)

from provision.errors import ParseError

_CLOCKS = 86400  # seconds that the clock of a node may be wrong


class Authority:
    """Signs the keys of one launch's nodes, for `seconds`."""

    def __init__(self, launch: str, seconds: int) -> None:
        self._launch, self._until = launch, int(time.time()) + seconds
        self._key = Ed25519PrivateKey.generate()

    @property
    def public(self) -> str:
        """As a line of authorized keys has it: `ssh-ed25519 AAAA…`."""
        encoded = self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        return encoded.decode("ascii")

    def sign(self, public_key: str, command: str) -> str:
        """A certificate for this key (untrusted text), with which sshd runs `command` and nothing else.
        Raises ParseError when it is no Ed25519 key."""
        try:
            key = load_ssh_public_key(public_key.encode())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ParseError(f"its new key is invalid: {error}") from error
        if not isinstance(key, Ed25519PublicKey):
            raise ParseError("its new key is not an Ed25519 key")
        builder = (
            SSHCertificateBuilder()
            .public_key(key)
            .type(SSHCertificateType.USER)
            .serial(0)
            .key_id(self._launch.encode())
            .valid_principals([self._launch.encode()])
            .valid_after(int(time.time()) - _CLOCKS)
            .valid_before(self._until + _CLOCKS)
            .add_critical_option(b"force-command", command.encode())
        )
        return builder.sign(self._key).public_bytes().decode("ascii")
