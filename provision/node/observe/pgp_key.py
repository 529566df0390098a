"""Keys in a keyring file, read without gpg."""

from provision.node.observe.files import TOTAL_LIMIT, ReadError, names_in, read_bytes
from provision.node.observe.probe import FAMILIES, Family, one_each


def dearmour(text):
    """Return the packets of every armoured block in `text`."""
    import binascii

    packets = b""
    body = None
    for line in text.decode("ascii", "replace").splitlines():
        line = line.strip()
        if line.startswith("-----BEGIN PGP"):
            body, in_header = "", True
        elif line.startswith("-----END PGP") and body is not None:
            packets += binascii.a2b_base64(body)
            body = None
        elif body is not None and in_header:
            in_header = bool(line)
        elif body is not None and not line.startswith("="):  # =XXXX is the checksum
            body += line
    return packets


def packets_of(data):
    """Yield (tag, body) of each OpenPGP packet. Raises ReadError on anything else."""
    at_byte = 0
    while at_byte < len(data):
        head = data[at_byte]
        at_byte += 1
        if head & 0x40:
            tag, first = head & 0x3F, data[at_byte]
            extra = 0 if first < 192 else 1 if first < 224 else 4 if first == 255 else -1
            at_byte += 1
            if extra == 1:
                length = ((first - 192) << 8) + data[at_byte] + 192
            else:
                length = first if extra == 0 else int.from_bytes(data[at_byte : at_byte + 4], "big")
        else:
            tag, extra = (head >> 2) & 0x0F, (1, 2, 4, -1)[head & 3]
            length = int.from_bytes(data[at_byte : at_byte + max(extra, 0)], "big")
        if not head & 0x80 or extra < 0 or at_byte + extra + length > len(data):
            raise ReadError("not an OpenPGP keyring")
        at_byte += extra
        yield tag, data[at_byte : at_byte + length]
        at_byte += length


def fingerprint(body):
    import hashlib

    version = body[0] if body else 0
    if version == 4:
        data = b"\x99" + len(body).to_bytes(2, "big") + body
        # SHA-1 is prescribed by the format (RFC 4880, 12.2).
        return hashlib.sha1(data).hexdigest().upper()  # noqa: S324
    if version in (5, 6):
        prefix = b"\x9a" if version == 5 else b"\x9b"
        return hashlib.sha256(prefix + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise ReadError("an OpenPGP key of version %d" % version)


def key_fingerprints(path, _attribute):
    data = read_bytes(path, TOTAL_LIMIT)
    if data is None:
        return None
    if data[8:12] == b"KBXf":
        raise ReadError("a GnuPG keybox, not a keyring")
    try:
        if b"-----BEGIN PGP" in data:
            data = dearmour(data)
        return [fingerprint(body) for tag, body in packets_of(data) if tag == 6]
    except (IndexError, ValueError):
        raise ReadError("not an OpenPGP keyring") from None


def trusted_by(wanted):
    """Return the files by which apt trusts this key for every repository, whatever their Signed-By."""
    folder = "/etc/apt/trusted.gpg.d"
    files = []
    for path in ["/etc/apt/trusted.gpg", *(folder + "/" + name for name in names_in(folder))]:
        try:
            if wanted in (key_fingerprints(path, None) or []):
                files.append(path)
        except ReadError:
            pass  # apt cannot read it either
    return files


def pgp_key_attribute(item, attribute):
    return trusted_by(item) if attribute == "trusted_by" else key_fingerprints(item, attribute)


FAMILIES["pgp_key"] = Family(("fingerprints", "trusted_by"), one_each(pgp_key_attribute))
