"""Certificate facts (expiry, names, issuer's key, whether the private key matches), without openssl."""

from provision.node.observe.files import ReadError, read_bytes
from provision.node.observe.probe import FAMILIES, Family, one_each

SUBJECT_ALT_NAME = bytes.fromhex("551d11")  # 2.5.29.17 in DER
AUTHORITY_KEY = bytes.fromhex("551d23")  # 2.5.29.35
# 1.3.6.1.4.1.2312.19.1, Red Hat's identifier for the name of a Receptor node.
RECEPTOR_NAME = bytes.fromhex("2b0601040192081301")


def der_items(data):
    """Yield (tag, content) of each element in a DER sequence. Raises IndexError or ValueError if cut off."""
    at_byte = 0
    while at_byte < len(data):
        tag, length = data[at_byte], data[at_byte + 1]
        at_byte += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at_byte : at_byte + size], "big")
            at_byte += size
        if at_byte + length > len(data):
            raise ValueError("cut off")
        yield tag, data[at_byte : at_byte + length]
        at_byte += length


def der_list(data):
    return list(der_items(data))


def pem_block(data, labels):
    """Return the decoded content of the first block with one of these labels, or None."""
    import binascii

    body = None
    for line in data.decode("ascii", "replace").splitlines():
        line = line.strip()
        if body is None:
            if line in ["-----BEGIN %s-----" % label for label in labels]:
                body = ""
        elif line.startswith("-----END "):
            return binascii.a2b_base64(body)
        else:
            body += line
    return None


def rsa_numbers(content):
    """Return the modulus and the exponent of a public key, as bytes."""
    (_, sequence), *_ = der_items(content)
    return [number for _, number in der_list(sequence)[:2]]


def certificate_parts(data):
    """Return (expiry as in DER, content of the public key, extensions by identifier) of a PEM certificate."""
    block = pem_block(data, ("CERTIFICATE",))
    if block is None:
        raise ValueError("no certificate")
    (_, whole), *_ = der_items(block)
    (_, body), *_ = der_items(whole)
    fields = der_list(body)
    if fields[0][0] == 0xA0:  # the version, which is absent only in old certificates
        del fields[0]
    # Serial number, signature algorithm, issuer, validity, subject, public key, and the optional fields.
    _, (end_tag, end) = der_list(fields[3][1])
    key = der_list(fields[5][1])[1][1][1:]  # a bit string begins with the number of unused bits
    extensions = {}
    for tag, content in fields[6:]:
        if tag == 0xA3:
            for _, extension in der_items(der_list(content)[0][1]):
                words = der_list(extension)
                extensions[words[0][1]] = words[-1][1]
    return (end_tag, end.decode("ascii")), key, extensions


def days_left(end_tag, end):
    """Return the whole days until expiry; negative once expired."""
    import calendar
    import time

    if end_tag == 0x17:  # UTCTime has a two-digit year: RFC 5280, 4.1.2.5.1
        end = ("19" if end[:2] >= "50" else "20") + end
    then = calendar.timegm(time.strptime(end, "%Y%m%d%H%M%SZ"))
    return int((then - time.time()) // 86400)


def alternative_names(extension):
    names = []
    for tag, content in der_items(der_list(extension)[0][1]):
        if tag == 0x82:
            names.append("DNS:" + content.decode("ascii"))
        elif tag == 0x87:
            import socket

            family = socket.AF_INET if len(content) == 4 else socket.AF_INET6
            names.append("IP:" + socket.inet_ntop(family, content))
        elif tag == 0xA0:
            (_, kind), (_, value) = der_list(content)
            if kind == RECEPTOR_NAME:
                names.append("receptor:" + der_list(value)[0][1].decode("utf-8"))
    return names


def issuer_key(extension):
    """Return the identifier of the authority's key, in hexadecimal."""
    import binascii

    for tag, content in der_items(der_list(extension)[0][1]):
        if tag == 0x80:
            return binascii.hexlify(content).decode("ascii")
    return None


def key_numbers(path):
    """Return the modulus and exponent of the private RSA key in a file; None if there is no file."""
    data = read_bytes(path)
    if data is None:
        return None
    block = pem_block(data, ("RSA PRIVATE KEY", "PRIVATE KEY"))
    if block is None:
        raise ValueError("no key")
    (_, fields), *_ = der_items(block)
    words = der_list(fields)
    if words[1][0] == 0x30:  # PKCS #8 has the algorithm here, followed by the key itself
        (_, fields), *_ = der_items(words[2][1])
        words = der_list(fields)
    return [number for _, number in words[1:3]]


def certificate_attribute(path, attribute):
    data = read_bytes(path)
    if data is None:
        return None
    try:
        end, key, extensions = certificate_parts(data)
        if attribute == "days_left":
            return days_left(*end)
        if attribute == "key_fits":
            private = key_numbers(path.rpartition(".")[0] + ".key")
            return None if private is None else rsa_numbers(key) == private
        if attribute == "names":
            return alternative_names(extensions[SUBJECT_ALT_NAME]) if SUBJECT_ALT_NAME in extensions else []
        return issuer_key(extensions[AUTHORITY_KEY]) if AUTHORITY_KEY in extensions else None
    except (IndexError, KeyError, ValueError, OSError):
        raise ReadError("not a certificate, or a key, that is understood") from None


FAMILIES["certificate"] = Family(
    ("days_left", "issuer_key", "key_fits", "names"), one_each(certificate_attribute)
)
