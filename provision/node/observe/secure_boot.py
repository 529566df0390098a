"""Secure Boot, and whether the firmware would accept kernel modules that are built on this machine."""

import os

from provision.node.observe.files import at, names_in, read_bytes, read_text
from provision.node.observe.probe import FAMILIES, whole_family
from provision.node.observe.system import os_release

EFI = "/sys/firmware/efi"
EFIVARS = EFI + "/efivars/"
GLOBAL_GUID = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM_GUID = "605dab50-e046-4300-abb6-3dd810dd8b23"
LIST_LIMIT = 1024 * 1024


def efi_byte(name):
    """Return the value of a one-byte variable, after its four bytes of attributes; None if it is missing."""
    data = read_bytes(EFIVARS + name)
    return data[4] if data and len(data) > 4 else None


def secure_boot_enabled():
    if not os.path.isdir(at(EFI)):
        return None
    # shim's checks can be switched off (mokutil --disable-validation); MokSBState is then 1.
    return efi_byte("SecureBoot-" + GLOBAL_GUID) == 1 and efi_byte("MokSBStateRT-" + SHIM_GUID) != 1


def certificate_path():
    """Return the path of the certificate for the key with which DKMS signs modules."""
    path = "/var/lib/dkms/mok.pub"
    if os_release().get("ID") == "ubuntu":
        path = "/var/lib/shim-signed/mok/MOK.der"
    drop_ins = ["framework.conf.d/" + name for name in names_in("/etc/dkms/framework.conf.d")]
    for name in ["framework.conf", *drop_ins]:
        for line in (read_text("/etc/dkms/" + name) or "").splitlines():
            key, _, value = line.strip().partition("=")
            value = value.strip("\"'")
            if key == "mok_certificate" and value[:1] == "/" and "$" not in value:
                path = value
    return path


def as_der(data):
    """Return a certificate, given as DER or PEM, in DER; None if it is neither."""
    if data[:1] == b"\x30":
        return data
    head, tail = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
    if head not in data or tail not in data:
        return None
    import binascii

    try:
        return binascii.a2b_base64(data.partition(head)[2].partition(tail)[0])
    except ValueError:
        return None


def machine_owner_keys():
    """Return the certificate lists that shim gives the kernel. A long one is whole only outside efivars."""
    paths = [EFI + "/mok-variables/MokListRT"]
    for name in names_in(EFIVARS):
        if name.startswith(("MokListRT", "db-")):
            paths.append(EFIVARS + name)
    return [read_bytes(path, LIST_LIMIT) or b"" for path in paths]


def secure_boot_enrolled():
    if not os.path.isdir(at(EFI)):
        return None
    certificate = as_der(read_bytes(certificate_path()) or b"")
    return bool(certificate) and any(certificate in keys for keys in machine_owner_keys())


def rejects_dkms():
    return bool(secure_boot_enabled() and not secure_boot_enrolled())


FAMILIES["secure_boot"] = whole_family(
    {"enabled": secure_boot_enabled, "enrolled": secure_boot_enrolled, "rejects_dkms": rejects_dkms}
)
