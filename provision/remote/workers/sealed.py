"""Encryption of the input and the answers of a unit.

Receptor stores the input and output of a unit as files in its data folder, on the controller and on the
worker, while the unit exists. Therefore the payload is encrypted for a key (X25519) that the worker keeps in
memory until its next boot, and the answers with a key that the payload contains and the controller keeps in
memory (AES-256-GCM; both keys derived by HKDF-SHA256). Files on disk are useless to anyone with access to the
disk, a backup of it, or the Receptors in between; root on the worker or the controller can still read both.

Payload and answers are compressed first, an answer's frames as one stream: each byte passes two Receptors.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from provision import foreign_json
from provision.errors import GpuprovError
from provision.remote.ansible import handover

FRAME = b"@gpuprov "  # prefix of an answer line; all other output of a unit has another source
KEY_BYTES = 32
PAYLOAD_LIMIT = 512 * 1024 * 1024  # bytes of a payload, mostly the variables of a share's hosts
FRAME_LIMIT = 80 * 1024 * 1024  # decompressed bytes of a frame: the longest line, and the bytes before it
_PIECE = 1024 * 1024  # bytes decompressed at once
_NO_NONCE = bytes(12)  # safe, since each payload has its own key


class SealError(Exception):
    """The sealed data is damaged or invalid, as described in the text."""


class MissingKeyError(Exception):
    """The decryption key is missing: this machine has rebooted since."""


# --- keys, in memory


def folder() -> Path:
    """Return this user's key folder (0700), in memory if possible. Raises GpuprovError."""
    path = handover.memory_folder() / f"gpuprovkeys-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise GpuprovError(f"{path} is not a folder of this user's alone", "remove it, and look who made it")
    return path


def keep(name: str, key: bytes) -> bytes:
    """Store a key unless one with this name exists; return the stored key."""
    file = folder() / name
    beside = folder() / f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
        made.write(key)
    try:
        os.link(beside, file)  # atomic, and an existing key stays
    except FileExistsError:
        return kept(name)
    finally:
        beside.unlink()
    return key


def kept(name: str) -> bytes:
    """Return a stored key. Raises MissingKeyError."""
    try:
        key = (folder() / name).read_bytes()
    except FileNotFoundError:
        key = b""
    if len(key) != KEY_BYTES:
        raise MissingKeyError(name)
    return key


def forget(name: str) -> None:
    with contextlib.suppress(OSError):
        (folder() / name).unlink()


_WORKER = "worker"


def worker_public_key() -> str:
    """Return the public half of this machine's worker key, which is created at first use after a boot."""
    private = X25519PrivateKey.from_private_bytes(keep(_WORKER, os.urandom(KEY_BYTES)))
    return base64.b64encode(private.public_key().public_bytes_raw()).decode()


# --- the payload: one line of JSON in clear, then one encrypted message


def sealed(header: Mapping[str, Any], payload: bytes, public_key: str) -> bytes:
    """Encrypt `payload` for the worker with this public key; `header` is readable but tamper-proof.

    Raises SealError for an invalid key and for an oversized payload."""
    if len(payload) > PAYLOAD_LIMIT:
        raise SealError(f"what it is to do is more than {PAYLOAD_LIMIT // _PIECE} MiB")
    try:
        recipient = X25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        ours = X25519PrivateKey.generate()
        secret = ours.exchange(recipient)
    except (ValueError, binascii.Error):
        raise SealError("what it gave as its public key is not one") from None
    from_key = ours.public_key().public_bytes_raw()
    line = (
        json.dumps({**header, "to": _short(public_key), "from": base64.b64encode(from_key).decode()}).encode()
        + b"\n"
    )
    return line + AESGCM(_derived(secret, from_key)).encrypt(_NO_NONCE, zlib.compress(payload, level=1), line)


def opened(message: bytes) -> tuple[dict[str, Any], bytes]:
    """Decrypt a message for this worker into header and payload. Raises MissingKeyError and SealError."""
    line, _, body = message.partition(b"\n")
    header = header_of(line)
    private = X25519PrivateKey.from_private_bytes(kept(_WORKER))
    if header.get("to") != _short(base64.b64encode(private.public_key().public_bytes_raw()).decode()):
        raise MissingKeyError(_WORKER)
    try:
        from_key = base64.b64decode(str(header["from"]), validate=True)
        secret = private.exchange(X25519PublicKey.from_public_bytes(from_key))
        packed = AESGCM(_derived(secret, from_key)).decrypt(_NO_NONCE, body, line + b"\n")
        inflate = zlib.decompressobj()
        payload = inflate.decompress(packed, PAYLOAD_LIMIT)
    except (KeyError, ValueError, binascii.Error, InvalidTag, zlib.error):
        raise SealError("it did not arrive whole, or was changed on its way") from None
    if not inflate.eof:
        raise SealError(f"it is cut, or more than {PAYLOAD_LIMIT // _PIECE} MiB")
    return header, payload


def header_of(line: bytes) -> dict[str, Any]:
    """Parse the header line. Raises SealError."""
    try:
        header = foreign_json.read(line)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise SealError("it is not from gpuprov")
    return header


def _short(public_key: str) -> str:
    return hashlib.sha256(public_key.encode()).hexdigest()[:16]


def _derived(secret: bytes, salt: bytes) -> bytes:
    return HKDF(hashes.SHA256(), KEY_BYTES, salt, b"gpuprov payload 1").derive(secret)


# --- the answers: numbered frames, one per line, with contents compressed as one stream


class Sealer:
    """Compression and encryption of frames, in order."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._deflate = zlib.compressobj(level=1)
        self._number = 0

    def frame(self, data: bytes) -> bytes:
        packed = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        sealed_data = self._cipher.encrypt(self._number.to_bytes(12, "big"), packed, None)
        self._number += 1
        return FRAME + base64.b64encode(sealed_data) + b"\n"


class Opener:
    """Decryption of frames, in order; a lost, repeated or foreign frame is an error."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._inflate = zlib.decompressobj()
        self._number = 0

    def data(self, line: bytes) -> Iterator[bytes]:
        """Yield the contents of a frame in pieces, as its size is unknown before. Raises SealError."""
        try:
            sealed_data = base64.b64decode(line.removeprefix(FRAME).strip(), validate=True)
            packed = self._cipher.decrypt(self._number.to_bytes(12, "big"), sealed_data, None)
        except (ValueError, binascii.Error, InvalidTag):
            raise SealError(f"frame {self._number + 1} cannot be decrypted") from None
        self._number += 1
        left = FRAME_LIMIT
        while True:
            try:
                piece = self._inflate.decompress(packed, _PIECE)
            except zlib.error:
                raise SealError(f"frame {self._number} cannot be unpacked") from None
            left -= len(piece)
            if left < 0:
                raise SealError(f"frame {self._number} holds more than {FRAME_LIMIT // _PIECE} MiB")
            yield piece
            packed = self._inflate.unconsumed_tail
            if not packed and len(piece) < _PIECE:
                break
        if self._inflate.eof:  # the stream must not end, or later data would be lost
            raise SealError(f"frame {self._number} cannot be unpacked")
