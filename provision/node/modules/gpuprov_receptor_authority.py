#!/usr/bin/python
"""Ansible module that signs the certificates of a Receptor mesh; it runs only on the controller."""

DOCUMENTATION = r"""
module: gpuprov_receptor_authority
short_description: Sign the certificate of a Receptor node with the authority kept on the controller
description:
  - To be delegated to the controller (C(delegate_to localhost)). It needs no privileges, and the Python
    package C(cryptography), which ansible-core requires.
  - Creates the authority if there is none - the key and certificate that sign nodes, and the key pair for
    signed work. Private keys are written with mode 0600 and are never returned.
  - The options determine what a certificate contains; only the public key is taken from the request.
options:
  folder:
    description:
      - Folder of the authority. If empty, C(gpuprov/receptor) in $XDG_STATE_HOME or in ~/.local/state.
    type: str
    default: ""
  node:
    description: Name of the node in the mesh.
    type: str
    required: true
  address:
    description: Address or host name at which other nodes connect to it; empty if none does.
    type: str
    default: ""
  request:
    description: The node's certificate request, as PEM text. Without it, nothing is signed.
    type: str
    default: ""
  certificate:
    description: The node's current certificate, as PEM text; kept as long as it is usable.
    type: str
    default: ""
  days:
    description: Validity of a new certificate in days.
    type: int
    default: 365
  renew_days:
    description: A certificate that expires in fewer than this many days is replaced.
    type: int
    default: 60
  authority_days:
    description: Validity of a new authority's certificate in days.
    type: int
    default: 3650
author:
  - The gpuprov authors (@gpuprov)
"""

EXAMPLES = r"""
- name: Sign the certificate request on the controller
  gpuprov_receptor_authority:
    node: worker-a
    address: 10.0.1.5
    request: "{{ look.files.request }}"
    certificate: "{{ look.files.certificate or '' }}"
  delegate_to: localhost
  become: false
  register: signed
"""

RETURN = r"""
folder:
  description: Folder of the authority.
  returned: success
  type: str
authority:
  description: The authority's certificate, as PEM text; empty in check mode if there is none yet.
  returned: success
  type: str
certificate:
  description: The node's certificate, as PEM text, old or new; empty if nothing was signed.
  returned: success
  type: str
work_public_key:
  description: The key that verifies signed work, as PEM text; empty in check mode if there is none yet.
  returned: success
  type: str
reason:
  description: Why a certificate was signed; empty if none was.
  returned: success
  type: str
"""

import datetime  # noqa: E402
import fcntl  # noqa: E402
import ipaddress  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import tempfile  # noqa: E402

from ansible.module_utils.basic import AnsibleModule, missing_required_lib  # noqa: E402

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    MISSING = ""
except ImportError:
    MISSING = "cryptography"

# OID of a node's name in a certificate: OIDReceptorName of pkg/utils/other_name.go, receptor 1.5.5.
NODE_NAME = "1.3.6.1.4.1.2312.19.1"
# From NodeCfg.Init of pkg/types/main.go; above 127 characters, the length in a certificate takes two bytes.
NODE = re.compile(r"[.\-_@:a-zA-Z0-9]{1,127}")
BITS = 3072
# A node with a slow clock would reject a certificate that is valid only from now on.
BEFORE = datetime.timedelta(hours=1)
CERTIFICATE, KEY = "ca.crt", "ca.key"
WORK_PUBLIC, WORK_PRIVATE = "work-public-key.pem", "work-private-key.pem"
RESTORE = "Restore it from a copy, or remove the folder: the next up then gives all nodes new certificates."


class RefusedError(Exception):
    """A request that cannot be signed; the message is for users."""


def default_folder():
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "gpuprov", "receptor")


def now():
    return datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None, microsecond=0)


def write(path, data, mode):
    """Write a file atomically, with its final mode from the start."""
    number, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
    try:
        with os.fdopen(number, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def new_key():
    return rsa.generate_private_key(public_exponent=65537, key_size=BITS)


def kept(folder, name):
    """Return the content of one of the authority's files. Raises RefusedError if it is missing."""
    path = os.path.join(folder, name)
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        raise RefusedError("{0} is missing. {1}".format(path, RESTORE)) from None


def private_pem(key):
    # Receptor reads "RSA PRIVATE KEY" and PKCS #8 only (pkg/certificates/ca.go, LoadFromPEMFile).
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def public_pem(key):
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_bytes(serialization.Encoding.PEM, form).decode("ascii")


def pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


class Authority(object):
    """The authority stored in one folder, with `certificate`, `key`, `work_public_key` (PEM text)."""

    def __init__(self, folder):
        self.certificate = x509.load_pem_x509_certificate(kept(folder, CERTIFICATE))
        self.key = serialization.load_pem_private_key(kept(folder, KEY), None)
        work_key = serialization.load_pem_private_key(kept(folder, WORK_PRIVATE), None)
        self.work_public_key = kept(folder, WORK_PUBLIC).decode("ascii")
        pairs = (
            (KEY, self.key, CERTIFICATE, public_pem(self.certificate.public_key())),
            (WORK_PRIVATE, work_key, WORK_PUBLIC, self.work_public_key),
        )
        for name, key, other, public in pairs:
            if public_pem(key.public_key()) != public:
                path = os.path.join(folder, name)
                raise RefusedError("{0} does not belong to {1} beside it. {2}".format(path, other, RESTORE))

    def signed(self, certificate):
        """Return whether this authority signed the certificate."""
        try:
            self.key.public_key().verify(
                certificate.signature,
                certificate.tbs_certificate_bytes,
                padding.PKCS1v15(),
                certificate.signature_hash_algorithm,
            )
        except (InvalidSignature, TypeError, ValueError):
            return False
        return True

    def sign(self, public_key, node, address, days):
        """Sign a certificate for this key, valid for the node and its address as client and as server."""
        begin = now() - BEFORE
        end = min(begin + BEFORE + datetime.timedelta(days=days), expiry(self.certificate))
        mine = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = (
            x509.CertificateBuilder()
            .subject_name(named(node))
            .issuer_name(self.certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.SubjectAlternativeName(names(node, address)), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier(mine.digest, None, None), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())


def named(text):
    # A common name has at most 64 characters; it is for information only.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def key_usage(signs):
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def expiry(certificate):
    """Return a certificate's expiry in UTC, as the naive time that every release of cryptography accepts."""
    aware = getattr(certificate, "not_valid_after_utc", None)
    return aware.replace(tzinfo=None) if aware is not None else certificate.not_valid_after


def names(node, address):
    """Return the names in a certificate (the node's own and the address that others connect to)."""
    data = node.encode("ascii")
    entries = [x509.OtherName(x509.ObjectIdentifier(NODE_NAME), b"\x0c" + bytes([len(data)]) + data)]
    if address:
        try:
            entries.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            entries.append(x509.DNSName(address))
    return entries


def make(folder, days):
    """Create an authority; its certificate is written last, as proof that everything else exists."""
    key, work = new_key(), new_key()
    subject = named("gpuprov Receptor mesh")
    begin = now() - BEFORE
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + BEFORE + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    write(os.path.join(folder, KEY), private_pem(key), 0o600)
    write(os.path.join(folder, WORK_PRIVATE), private_pem(work), 0o600)
    write(os.path.join(folder, WORK_PUBLIC), public_pem(work.public_key()).encode("ascii"), 0o644)
    write(os.path.join(folder, CERTIFICATE), pem(certificate).encode("ascii"), 0o644)


def there(folder):
    return os.path.exists(os.path.join(folder, CERTIFICATE))


def opened(folder, days, only_look):
    """Return (authority, whether it is new), created if needed; with `only_look`, None instead."""
    if there(folder):
        return Authority(folder), False
    if only_look:
        return None, True
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chmod(folder, 0o700)
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # nodes are signed concurrently
        new = not there(folder)
        if new:
            make(folder, days)
    return Authority(folder), new


def asked_key(text, node):
    """Return the public key of a request that is signed with that key. Raises RefusedError."""
    try:
        request = x509.load_pem_x509_csr(text.encode("ascii"))
        good = request.is_signature_valid
    except (ValueError, UnicodeError) as error:
        raise RefusedError("{0} sent no certificate request: {1}".format(node, error)) from None
    key = request.public_key()
    if not good or not isinstance(key, rsa.RSAPublicKey) or not 2048 <= key.key_size <= 8192:
        raise RefusedError(
            "{0} sent a request that is not signed by its own RSA key of 2048 to 8192 bits".format(node)
        )
    return key


def why_new(authority, text, key, node, address, renew_days):
    """Return why the node's current certificate must be replaced; empty if it need not be."""
    try:
        certificate = x509.load_pem_x509_certificate(text.encode("ascii"))
    except (ValueError, UnicodeError):
        return "it has none" if not text.strip() else "what it has is no certificate"
    if not authority.signed(certificate):
        return "its certificate is of another authority"
    if certificate.public_key().public_numbers() != key.public_numbers():
        return "its certificate is of another key"
    try:
        present = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        present = []
    if list(present) != names(node, address):
        return "its name or address has changed"
    # Renewal cannot help if the certificate ends with the authority's own.
    left = expiry(certificate) - now()
    if left < datetime.timedelta(days=renew_days) and expiry(certificate) < expiry(authority.certificate):
        return "its certificate expires on {0:%Y-%m-%d}".format(expiry(certificate))
    return ""


def answer(asked, only_look):
    """Return the module's result for its options."""
    node, address, request = asked["node"], asked["address"], asked["request"].strip()
    if not NODE.fullmatch(node) or node.lower() == "localhost":
        raise RefusedError("{0!r} cannot be the name of a node of Receptor".format(node))
    folder = os.path.expanduser(asked["folder"]) or default_folder()
    authority, new = opened(folder, asked["authority_days"], only_look)
    # In check mode, a node without a key has not sent its request yet.
    result = {"folder": folder, "changed": new or (only_look and not request), "reason": ""}
    result.update(authority="", certificate=asked["certificate"], work_public_key="")
    if authority is None:
        return result
    end = expiry(authority.certificate)
    if end < now():
        raise RefusedError("the authority in {0} expired on {1:%Y-%m-%d}. {2}".format(folder, end, RESTORE))
    result.update(authority=pem(authority.certificate), work_public_key=authority.work_public_key)
    if request:
        key = asked_key(request, node)
        reason = why_new(authority, asked["certificate"], key, node, address, asked["renew_days"])
        result.update(reason=reason, changed=new or bool(reason))
        if reason and not only_look:
            result["certificate"] = pem(authority.sign(key, node, address, asked["days"]))
    return result


def main():
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "str", "default": ""},
            "node": {"type": "str", "required": True},
            "address": {"type": "str", "default": ""},
            "request": {"type": "str", "default": ""},
            "certificate": {"type": "str", "default": ""},
            "days": {"type": "int", "default": 365},
            "renew_days": {"type": "int", "default": 60},
            "authority_days": {"type": "int", "default": 3650},
        },
        supports_check_mode=True,
    )
    if MISSING:
        module.fail_json(msg=missing_required_lib(MISSING))
    try:
        module.exit_json(**answer(module.params, module.check_mode))
    except RefusedError as error:
        module.fail_json(msg=str(error))
    except (IOError, OSError) as error:
        module.fail_json(msg="{0}: {1}".format(error.filename, error.strerror or error))
    except ValueError as error:
        module.fail_json(msg="the authority cannot be read: {0}".format(error))


if __name__ == "__main__":
    main()
