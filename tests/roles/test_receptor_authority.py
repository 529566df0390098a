"""A mesh's certificate authority: signing, storing, refusing, and a node's view of the certificate."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.verification import PolicyBuilder, Store

from tests.node.machine import Machine
from tests.support import modules

authority: Any = modules.load("gpuprov_receptor_authority")
authority.BITS = 2048  # longer keys take seconds
PRIVATE = ("ca.key", "work-private-key.pem")
OPTIONS = {
    "address": "",
    "request": "",
    "certificate": "",
    "days": 365,
    "renew_days": 60,
    "authority_days": 3650,
}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "root")


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an authority in a folder, once, because generating keys is slow."""
    folder = tmp_path_factory.mktemp("state") / "receptor"
    ask(folder, "worker-a")
    return folder


def ask(folder: Path, node: str, only_look: bool = False, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = authority.answer(
        {**OPTIONS, "folder": str(folder), "node": node, **options}, only_look
    )
    return found


def request_of(key: Any, names: tuple[x509.GeneralName, ...] = ()) -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def certificate_of(found: dict[str, Any]) -> x509.Certificate:
    return x509.load_pem_x509_certificate(found["certificate"].encode())


def test_private_keys_are_the_owners_alone_and_are_not_returned(made: Path) -> None:
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    for name in PRIVATE:
        assert stat.S_IMODE((made / name).stat().st_mode) == 0o600, name
    said = json.dumps(ask(made, "worker-a"))
    assert "PRIVATE" not in said
    assert "BEGIN PUBLIC KEY" in said


def test_it_is_made_once_and_not_in_check_mode(made: Path, tmp_path: Path) -> None:
    assert ask(tmp_path / "new", "worker-a", only_look=True)["changed"]
    assert not (tmp_path / "new").exists()
    before = (made / "ca.crt").read_bytes()
    assert not ask(made, "worker-b")["changed"]
    assert (made / "ca.crt").read_bytes() == before


def test_where_it_is_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere")
    assert authority.default_folder() == "/somewhere/gpuprov/receptor"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/op")
    assert authority.default_folder() == "/home/op/.local/state/gpuprov/receptor"


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7", "worker-a.example.org"])
def test_a_certificate_is_good_for_server_and_client(
    made: Path, key: rsa.RSAPrivateKey, address: str
) -> None:
    found = ask(made, "worker-a", address=address, request=request_of(key))
    certificate = certificate_of(found)
    root = x509.load_pem_x509_certificate(found["authority"].encode())
    store = Store([root])
    try:
        subject: Any = x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        subject = x509.DNSName(address)
    PolicyBuilder().store(store).build_server_verifier(subject).verify(certificate, [])
    PolicyBuilder().store(store).build_client_verifier().verify(certificate, [])
    assert certificate.public_key() == key.public_key()


def test_openssl_reads_the_nodes_name_as_receptor_wants_it(
    made: Path, key: rsa.RSAPrivateKey, tmp_path: Path
) -> None:
    found = ask(made, "worker-a", address="192.0.2.7", request=request_of(key))
    (tmp_path / "node.crt").write_text(found["certificate"])
    verified = subprocess.run(
        ["openssl", "verify", "-CAfile", made / "ca.crt", "-purpose", "sslserver", tmp_path / "node.crt"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stderr
    printed = asn1(tmp_path / "node.crt")
    (at,) = [number for number, line in enumerate(printed) if "Subject Alternative Name" in line]
    inside = "\n".join(asn1(tmp_path / "node.crt", "-strparse", printed[at + 1].split(":")[0].strip()))
    assert ":1.3.6.1.4.1.2312.19.1" in inside
    assert "UTF8STRING        :worker-a" in inside


def asn1(file: Path, *more: str) -> list[str]:
    command = ["openssl", "asn1parse", "-in", str(file), *more]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_names_in_a_request_count_for_nothing(made: Path, key: rsa.RSAPrivateKey) -> None:
    """A lying node still gets a certificate for its own name only."""
    lie = request_of(key, (x509.DNSName("controller"), x509.IPAddress(ipaddress.ip_address("192.0.2.1"))))
    certificate = certificate_of(ask(made, "worker-a", request=lie))
    (name,) = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert isinstance(name, x509.OtherName)
    assert name.value.endswith(b"worker-a")


def test_a_good_certificate_is_kept_and_why_another_is_not(
    made: Path, key: rsa.RSAPrivateKey, tmp_path: Path
) -> None:
    request = request_of(key)
    first = ask(made, "worker-a", address="192.0.2.7", request=request)
    assert (first["changed"], first["reason"]) == (True, "it has none")
    now = {"address": "192.0.2.7", "request": request, "certificate": first["certificate"]}
    again = ask(made, "worker-a", **now)
    assert (again["changed"], again["reason"], again["certificate"]) == (False, "", first["certificate"])
    end = certificate_of(first).not_valid_after_utc
    for reason, node, change in (
        ("its name or address has changed", "worker-a", {"address": "192.0.2.8"}),
        ("its name or address has changed", "worker-b", {}),
        (f"its certificate expires on {end:%Y-%m-%d}", "worker-a", {"renew_days": 366}),
        (
            "its certificate is of another key",
            "worker-a",
            {"request": request_of(rsa.generate_private_key(65537, 2048))},
        ),
        ("what it has is no certificate", "worker-a", {"certificate": "garbage"}),
    ):
        found = ask(made, node, **{**now, **change})
        assert (found["changed"], found["reason"]) == (True, reason)
        assert found["certificate"] != first["certificate"]
        only = ask(made, node, only_look=True, **{**now, **change})
        assert (only["changed"], only["reason"]) == (True, reason)
    other = ask(tmp_path / "other", "worker-a", **now)
    assert other["reason"] == "its certificate is of another authority"


def test_no_certificate_outlives_the_authority(key: rsa.RSAPrivateKey, tmp_path: Path) -> None:
    """A certificate that cannot be extended is not replaced in each run either."""
    short = tmp_path / "short"
    signed = ask(short, "worker-a", authority_days=30, request=request_of(key))
    root = x509.load_pem_x509_certificate(signed["authority"].encode())
    assert certificate_of(signed).not_valid_after_utc == root.not_valid_after_utc
    again = ask(short, "worker-a", request=request_of(key), certificate=signed["certificate"])
    assert not again["changed"]


def test_it_is_valid_an_hour_ago_for_clocks_that_are_behind(made: Path, key: rsa.RSAPrivateKey) -> None:
    begin = certificate_of(ask(made, "worker-a", request=request_of(key))).not_valid_before_utc
    age = datetime.datetime.now(datetime.UTC) - begin
    assert datetime.timedelta(minutes=59) < age < datetime.timedelta(minutes=62)


@pytest.mark.parametrize(
    ("node", "request_text", "words"),
    [
        ("localhost", "", "'localhost' cannot be the name"),
        ("two words", "", "'two words' cannot be the name"),
        ("worker-a", "-----BEGIN NOTHING-----", "worker-a sent no certificate request"),
        ("worker-a", "é", "worker-a sent no certificate request"),
        ("worker-a", request_of(ec.generate_private_key(ec.SECP256R1())), "its own RSA key"),
    ],
)
def test_what_cannot_be_signed_is_refused(made: Path, node: str, request_text: str, words: str) -> None:
    with pytest.raises(authority.RefusedError, match=words):
        ask(made, node, request=request_text)


def test_a_request_that_was_changed_on_the_way_is_refused(made: Path, key: rsa.RSAPrivateKey) -> None:
    lines = request_of(key).splitlines()
    raw = bytearray(base64.b64decode("".join(lines[1:-1])))
    raw[-1] ^= 1
    changed = "\n".join([lines[0], base64.b64encode(raw).decode(), lines[-1]])
    with pytest.raises(authority.RefusedError, match="not signed by its own RSA key"):
        ask(made, "worker-a", request=changed)


@pytest.mark.parametrize("name", ["ca.key", "work-private-key.pem", "work-public-key.pem"])
def test_an_authority_that_is_not_whole_is_refused_by_file(tmp_path: Path, made: Path, name: str) -> None:
    broken = tmp_path / "receptor"
    shutil.copytree(made, broken)
    (broken / name).unlink()
    with pytest.raises(authority.RefusedError, match=f"{name} is missing. Restore it"):
        ask(broken, "worker-a")
    other = "work-private-key.pem" if name == "ca.key" else "ca.key"
    if name.endswith("public-key.pem"):
        return
    shutil.copy(made / other, broken / name)
    with pytest.raises(authority.RefusedError, match=f"{name} does not belong to"):
        ask(broken, "worker-a")


def test_a_node_reads_in_it_what_the_authority_wrote(
    made: Path, key: rsa.RSAPrivateKey, machine: Machine
) -> None:
    found = ask(made, "worker-a", address="192.0.2.7", request=request_of(key), days=90)
    machine.file("/t/node.crt", found["certificate"])
    fact = "certificate./t/node.crt."
    names = ("days_left", "issuer_key", "key_fits", "names")
    root = x509.load_pem_x509_certificate(found["authority"].encode())
    digest = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    expected = {
        "days_left": 89,
        "issuer_key": digest.hex(),
        "key_fits": None,
        "names": ["receptor:worker-a", "IP:192.0.2.7"],
    }
    assert machine.values(*(fact + name for name in names)) == {fact + name: expected[name] for name in names}


@pytest.mark.parametrize(
    "form", [serialization.PrivateFormat.TraditionalOpenSSL, serialization.PrivateFormat.PKCS8]
)
def test_a_node_sees_whether_the_key_fits(
    made: Path, key: rsa.RSAPrivateKey, machine: Machine, form: Any
) -> None:
    found = ask(made, "worker-a", address="2001:db8::7", request=request_of(key))
    machine.file("/t/node.crt", found["certificate"])
    for one, fits in ((key, True), (rsa.generate_private_key(65537, 2048), False)):
        text = one.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        machine.file("/t/node.key", text)
        assert machine.value("certificate./t/node.crt.key_fits") is fits
    assert machine.value("certificate./t/node.crt.names") == ["receptor:worker-a", "IP:2001:db8::7"]


def test_what_is_no_certificate_is_a_problem_and_not_an_absent_one(machine: Machine) -> None:
    assert machine.value("certificate./t/none.crt.days_left") is None
    for number, text in enumerate(
        ("", "<html>404</html>", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n")
    ):
        machine.file(f"/t/{number}.crt", text)
        assert "not a certificate" in machine.problem(f"certificate./t/{number}.crt.days_left")


def test_two_that_begin_at_once_make_one(tmp_path: Path) -> None:
    """Several processes sign for nodes at the same time."""
    program = (
        "import json, sys\nfrom tests.support import modules\n"
        "authority = modules.load('gpuprov_receptor_authority')\n"
        "print(authority.answer(json.loads(sys.argv[1]), False)['authority'])\n"
    )
    payload = json.dumps({**OPTIONS, "folder": str(tmp_path / "receptor"), "node": "worker-a"})
    root = Path(__file__).parents[2]
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, payload], stdout=subprocess.PIPE, text=True, cwd=root,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        for _ in range(2)
    ]  # fmt: skip
    first, second = (process.communicate(timeout=120)[0] for process in both)
    assert first == second
    assert "BEGIN CERTIFICATE" in first
