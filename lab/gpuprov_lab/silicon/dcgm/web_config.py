"""The file that guards an exporter's page (prometheus/exporter-toolkit, docs/web-configuration.md).

Real exporters read YAML; this module reads a subset: JSON, and blocks of `key: value` two levels deep.
"""

import base64
import ctypes
import hmac
import json
import ssl
from pathlib import Path


class WebConfigError(Exception):
    """The file cannot be used."""


def read(path: str) -> dict:
    """Read `tls_server_config` and `basic_auth_users`, each a dictionary."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise WebConfigError(f"open {path}: {(error.strerror or '').lower()}") from None
    try:
        found = json.loads(text) if text.lstrip().startswith("{") else _blocks(text)
    except ValueError:
        raise WebConfigError("yaml: unmarshal errors") from None
    unknown = set(found) - {"tls_server_config", "basic_auth_users"}
    if unknown:
        raise WebConfigError(
            f"yaml: unmarshal errors: field {sorted(unknown)[0]} not found in type web.Config"
        )
    return found


def _blocks(text: str) -> dict:
    found, inner = {}, {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, colon, word = line.strip().partition(":")
        if not colon:
            raise ValueError(line)
        if line[0] == " ":
            inner[key.strip("\"'")] = word.strip().strip("\"'")
        else:
            inner = found[key] = {}
    return found


def context(config: dict):
    """Build the TLS context of a server; None without TLS."""
    tls = config.get("tls_server_config")
    if not tls:
        return None
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        made.load_cert_chain(tls["cert_file"], tls["key_file"])
    except (OSError, KeyError) as error:
        raise WebConfigError(f"failed to load X509KeyPair: {error}") from None
    return made


def admits(config: dict, header: str) -> bool:
    """Whether a request's Authorization header names a user with the right password."""
    users = config.get("basic_auth_users")
    if not users:
        return True
    kind, _, word = header.partition(" ")
    try:
        name, _, password = base64.b64decode(word).decode().partition(":")
    except ValueError:
        return False
    return kind.lower() == "basic" and name in users and _is_of(password, users[name])


def _is_of(password: str, hashed: str) -> bool:
    """Verify a password with the C library's crypt (libxcrypt), since Python has no bcrypt."""
    library = ctypes.CDLL("libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    made = library.crypt(password.encode(), hashed.encode())
    return made is not None and hmac.compare_digest(made.decode(), hashed)
