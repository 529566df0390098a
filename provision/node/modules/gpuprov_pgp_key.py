#!/usr/bin/python
"""Ansible module that installs OpenPGP keys of package repositories and removes keys from keyrings."""

DOCUMENTATION = r"""
module: gpuprov_pgp_key
short_description: Install OpenPGP keys of package repositories, checked against their fingerprints
description:
  - Downloads public keys, computes the fingerprint of each primary key on the node, and installs the key
    as a binary keyring for apt's C(Signed-By) only if it is the expected one. Needs no gpg on the node.
  - A keyring that already contains exactly the expected key is left unchanged, without a download.
  - Keyrings are owned by root, with mode 0644; missing parent folders are created.
options:
  keys:
    description: Keys to install.
    type: list
    elements: dict
    default: []
    suboptions:
      url:
        description: URL of the key, armoured or binary.
        type: str
        required: true
      path:
        description: The keyring file to write.
        type: path
        required: true
      fingerprint:
        description: Fingerprint of the primary key, 40 (version 4) or 64 (version 6) hexadecimal digits.
        type: str
        required: true
  revoked:
    description:
      - Fingerprints of keys to remove from O(keyrings). A keyring that held no other key is deleted.
    type: list
    elements: str
    default: []
  keyrings:
    description: Keyring files, as shell patterns.
    type: list
    elements: str
    default: []
  timeout:
    description: Timeout of each download in seconds.
    type: int
    default: 60
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Install NVIDIA's key
  gpuprov_pgp_key:
    keys:
      - url: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/3bf863cc.pub
        path: /usr/share/keyrings/nvidia-cuda.gpg
        fingerprint: EB693B3035CD5710E231E123A4B469963BF863CC
    revoked: [AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80]
    keyrings: [/etc/apt/trusted.gpg, "/etc/apt/trusted.gpg.d/*"]
"""

RETURN = r"""
paths:
  description: Keyrings that were changed (or would be, in check mode).
  returned: success
  type: list
"""

import base64  # noqa: E402
import binascii  # noqa: E402
import glob  # noqa: E402
import hashlib  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import tempfile  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from ansible.module_utils.urls import fetch_url  # noqa: E402

LARGEST_KEY = 1024 * 1024
PUBLIC_KEY = 6
SECRET_KEYS = (5, 7)
_ARMOUR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(.*?)-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL
)


class NotAKeyError(Exception):
    """Data that is not an OpenPGP public key; the message is the reason."""


def dearmour(data):
    """Return the binary packets of `data`, which may be armoured (one or more blocks) or binary."""
    if b"-----BEGIN PGP" not in data:
        return data
    blocks = _ARMOUR.findall(data.replace(b"\r\n", b"\n"))
    if not blocks:
        raise NotAKeyError("it has no complete armoured public key block")
    return b"".join(_armoured_body(block) for block in blocks)


def _armoured_body(block):
    """Decode one armour block without its headers, and verify its checksum if there is one."""
    # Headers ("Version: ...") end at the first empty line; without headers the block starts with that line.
    stripped = [line.strip() for line in block.decode("latin-1").splitlines()]
    if "" not in stripped or any(": " not in line for line in stripped[: stripped.index("")]):
        raise NotAKeyError("its armour has no empty line after the headers")
    lines = [line for line in stripped[stripped.index("") :] if line]
    checksum = lines.pop()[1:] if lines and lines[-1].startswith("=") and len(lines[-1]) == 5 else ""
    try:
        packets = base64.b64decode("".join(lines).encode("ascii"), validate=True)
        expected = base64.b64decode(checksum.encode("ascii"), validate=True)
    except (binascii.Error, ValueError):
        raise NotAKeyError("its armour is not base64") from None
    if checksum and int.from_bytes(expected, "big") != _crc24(packets):
        raise NotAKeyError("its checksum is wrong: it was damaged on the way")
    return packets


def _crc24(data):
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc & 0xFFFFFF


def whole_packets(data):
    """Yield (tag, body, packet) for each packet in `data` (RFC 9580, section 4.2). Raises NotAKeyError."""
    position = 0
    while position < len(data):
        first = data[position]
        if not first & 0x80:
            raise NotAKeyError("it is not OpenPGP data")
        if first & 0x40:
            tag = first & 0x3F
            start, length = _new_length(data, position + 1)
        else:
            tag = (first >> 2) & 0x0F
            start, length = _old_length(data, position + 1, first & 3)
        if start + length > len(data):
            raise NotAKeyError("it is cut off in the middle of a packet")
        yield tag, data[start : start + length], data[position : start + length]
        position = start + length


def _new_length(data, at):
    first = data[at] if at < len(data) else 255
    if first < 192:
        return at + 1, first
    if first < 224 and at + 1 < len(data):
        return at + 2, ((first - 192) << 8) + data[at + 1] + 192
    if first == 255 and at + 4 < len(data):
        return at + 5, int.from_bytes(data[at + 1 : at + 5], "big")
    raise NotAKeyError("it has a packet of unknown length")


def _old_length(data, at, kind):
    size = (1, 2, 4, 0)[kind]
    if not size or at + size > len(data):
        raise NotAKeyError("it has a packet of unknown length")
    return at + size, int.from_bytes(data[at : at + size], "big")


def fingerprint_of(body):
    """Return the fingerprint of a public-key packet. Raises NotAKeyError."""
    if body[:1] == b"\x04":
        digest = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body)  # noqa: S324 - set by OpenPGP
    elif body[:1] == b"\x06":
        digest = hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body)
    else:
        raise NotAKeyError("it is a key of a version that is no longer safe to use")
    return digest.hexdigest().upper()


def without(data, unwanted):
    """Return the packets of `data` without the key `unwanted` and its subpackets. Raises NotAKeyError."""
    kept = b""
    keep = True
    for tag, body, packet in whole_packets(data):
        if tag == PUBLIC_KEY:
            keep = body[:1] not in (b"\x04", b"\x06") or fingerprint_of(body) != unwanted
        if keep:
            kept += packet
    return kept


def armoured(data):
    """Armour `data`, as apt requires in a file that ends in .asc."""
    text = base64.encodebytes(data)
    checksum = b"=" + base64.b64encode(_crc24(data).to_bytes(3, "big"))
    begin, end = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n", b"\n-----END PGP PUBLIC KEY BLOCK-----\n"
    return begin + text + checksum + end


def fingerprints(data):
    """Return upper-case fingerprints of primary keys in armoured or binary `data`. Raises NotAKeyError."""
    prints = []
    for tag, body, _packet in whole_packets(dearmour(data)):
        if tag in SECRET_KEYS:
            raise NotAKeyError("it holds a secret key")
        if tag != PUBLIC_KEY:
            continue
        prints.append(fingerprint_of(body))
    if not prints:
        raise NotAKeyError("there is no public key in it")
    return prints


def installed(path):
    """Return the fingerprints in the keyring at `path`; [] if it is missing, unreadable or armoured."""
    try:
        with open(path, "rb") as keyring:
            data = keyring.read(LARGEST_KEY)
        return [] if data.startswith(b"-") else fingerprints(data)
    except (EnvironmentError, NotAKeyError):
        return []


def download(module, url):
    """Download `url` and return its bytes. Fails the module if the download fails."""
    response, info = fetch_url(module, url, timeout=module.params["timeout"])
    if response is None or info["status"] not in (200, -1, None):
        module.fail_json(
            msg="The repository key at {0} could not be downloaded: {1}. Check the URL, and that the node "
            "reaches it (proxy, firewall).".format(url, info.get("msg", "no answer"))
        )
    return response.read(LARGEST_KEY + 1)


def checked_key(module, url, expected):
    """Return the binary key at `url`; fail the module if its fingerprint is not `expected`."""
    data = download(module, url)
    try:
        if len(data) > LARGEST_KEY:
            raise NotAKeyError("it is larger than any key")
        actual = fingerprints(data)
    except NotAKeyError as problem:
        module.fail_json(msg="What {0} serves is not a repository key: {1}.".format(url, problem))
    if actual != [expected]:
        module.fail_json(
            msg="The key at {0} is not the expected one and was not installed. Expected fingerprint {1}, "
            "found {2}. Either the vendor changed its key (confirm the new one from a second source, then "
            "set it), or somebody is in the way.".format(url, expected, " and ".join(actual))
        )
    return dearmour(data)


def write(module, path, data):
    """Write `data` to `path` atomically."""
    handle, temporary = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "wb") as keyring:
        keyring.write(data)
    module.atomic_move(temporary, path)


def install(module, key):
    """Make the keyring at the key's path contain only this key. Returns whether anything changed."""
    path, expected = key["path"], key["fingerprint"]
    if installed(path) != [expected]:
        data = checked_key(module, key["url"], expected)
        if not module.check_mode:
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            write(module, path, data)
            give(module, path)
        return True
    return give(module, path)


def give(module, path):
    """Set owner root and mode 0644 of a keyring. Returns whether anything changed."""
    changed = module.set_mode_if_different(path, "0644", False)
    changed = module.set_owner_if_different(path, "root", changed)
    return module.set_group_if_different(path, "root", changed)


def remove(module, path, unwanted):
    """Remove a key from the keyring at `path`. Returns whether anything changed."""
    try:
        with open(path, "rb") as keyring:
            data = keyring.read(LARGEST_KEY)
        kept = without(dearmour(data), unwanted)
    except (EnvironmentError, NotAKeyError):
        return False
    changed = len(kept) != len(dearmour(data))
    if changed and not module.check_mode and kept:
        mode = os.stat(path).st_mode & 0o7777
        write(module, path, armoured(kept) if b"-----BEGIN PGP" in data else kept)
        os.chmod(path, mode)
    elif changed and not module.check_mode:
        os.unlink(path)
    return changed


def fingerprint(module, text):
    digits = text.replace(" ", "").upper()
    if not re.match(r"^([0-9A-F]{40}|[0-9A-F]{64})$", digits):
        module.fail_json(msg="'{0}' is not a fingerprint: 40 or 64 hexadecimal digits.".format(digits))
    return digits


def main():
    key = {
        "url": {"type": "str", "required": True},
        "path": {"type": "path", "required": True},
        "fingerprint": {"type": "str", "required": True, "no_log": False},
    }
    module = AnsibleModule(
        argument_spec={
            "keys": {"type": "list", "elements": "dict", "default": [], "options": key, "no_log": False},
            "revoked": {"type": "list", "elements": "str", "default": []},
            "keyrings": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    options = module.params
    keys = [dict(key, fingerprint=fingerprint(module, key["fingerprint"])) for key in options["keys"]]
    revoked = [fingerprint(module, text) for text in options["revoked"]]
    paths = [key["path"] for key in keys if install(module, key)]
    for path in sorted(path for pattern in options["keyrings"] for path in glob.glob(pattern)):
        removed = [remove(module, path, unwanted) for unwanted in revoked]
        paths.extend([path] if any(removed) else [])
    module.exit_json(changed=bool(paths), paths=paths)


if __name__ == "__main__":
    main()
