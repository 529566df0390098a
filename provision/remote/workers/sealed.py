"""The encryption of what a unit is given and what it answers.

Receptor keeps the input and the output of a unit as files in its data folder, on the controller and on the
worker, for as long as the unit exists. So it is given only what its worker can read: a payload for a key
(X25519) that the worker keeps in memory until it boots again, and its answers are for a key that the
payload brings along and the controller keeps in memory. (AES-256-GCM; both keys by HKDF-SHA256.) What is on
disk is of no use to whoever has the disk, a backup of it, or the Receptor between the two; root of the
worker or of the controller can read either, as before.

Both are compressed before, the frames of an answer as one stream: each byte goes through two Receptors.
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

FRAME = b"@gpuprov "  # begins a line of an answer; all else a unit prints is somebody else's
KEY_BYTES = 32
PAYLOAD_LIMIT = 512 * 1024 * 1024  # bytes of a payload: the variables of a share's hosts, most of it
FRAME_LIMIT = 80 * 1024 * 1024  # bytes of what a frame holds: the longest line, and what came before it
_PIECE = 1024 * 1024  # bytes that are unpacked at once
_NO_NONCE = bytes(12)  # each payload has a key of its own


class SealError(Exception):
    """What was to be opened is not what was sealed; the text says in what way."""


class MissingKeyError(Exception):
    """The key that would open it is not here: this machine was started anew since."""


# --- keys, in memory


def folder() -> Path:
    """This user's folder for keys: 0700, on a memory file system where there is one. Raises GpuprovError."""
    path = handover.memory_folder() / f"gpuprovkeys-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise GpuprovError(f"{path} is not a folder of this user's alone", "remove it, and look who made it")
    return path


def keep(name: str, key: bytes) -> bytes:
    """The key of this name: this one, unless there is one."""
    file = folder() / name
    beside = folder() / f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
        made.write(key)
    try:
        os.link(beside, file)  # whole or not at all, and the first one stays
    except FileExistsError:
        return kept(name)
    finally:
        beside.unlink()
    return key


def kept(name: str) -> bytes:
    """Raises MissingKeyError."""
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
    """The public half of this machine's key as a worker, made at the first call after it booted."""
    private = X25519PrivateKey.from_private_bytes(keep(_WORKER, os.urandom(KEY_BYTES)))
    return base64.b64encode(private.public_key().public_bytes_raw()).decode()


# --- the payload: a line of JSON in clear, then one encrypted message


def sealed(header: Mapping[str, Any], payload: bytes, public_key: str) -> bytes:
    """`payload` for the worker with this public key. `header` can be read by anybody, and changed by nobody.
    Raises SealError for what is no key, and for more than a payload may be."""
    if len(payload) > PAYLOAD_LIMIT:
        raise SealError(f"what it is to do is more than {PAYLOAD_LIMIT // _PIECE} MiB")
    try:
        there = X25519PublicKey.from_public_bytes(base64.b64decode(public_key, validate=True))
        ours = X25519PrivateKey.generate()
        secret = ours.exchange(there)
    except (ValueError, binascii.Error):
        raise SealError("what it gave as its public key is not one") from None
    from_key = ours.public_key().public_bytes_raw()
    line = (
        json.dumps({**header, "to": _short(public_key), "from": base64.b64encode(from_key).decode()}).encode()
        + b"\n"
    )
    return line + AESGCM(_derived(secret, from_key)).encrypt(_NO_NONCE, zlib.compress(payload, level=1), line)


def opened(message: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the payload of a message for this worker. Raises MissingKeyError and SealError."""
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
    """Raises SealError."""
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


# --- the answers: numbered frames, each a line; what they hold is compressed as one stream


class Sealer:
    """Compresses and encrypts frames, in this order."""

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
    """Decrypts them in the same order: none is lost, repeated or anybody else's."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._inflate = zlib.decompressobj()
        self._number = 0

    def data(self, line: bytes) -> Iterator[bytes]:
        """What a frame holds, piece by piece: what it would come to is not known before. Raises SealError."""
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
        if self._inflate.eof:  # the stream has no end: what came after it would be lost
            raise SealError(f"frame {self._number} cannot be unpacked")
