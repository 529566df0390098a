"""Our module that installs a repository key: the right key, or a refusal with both fingerprints."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import modules

pgp: Any = modules.load("gpuprov_pgp_key")


class Gpg:
    """A real gpg with its own home, for comparison."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(mode=0o700, parents=True, exist_ok=True)

    def __call__(self, *arguments: str, data: bytes | None = None) -> bytes:
        options = ["--homedir", str(self.home), "--batch", "--no-tty", "--pinentry-mode", "loopback"]
        return subprocess.run(
            ["gpg", *options, *arguments],
            input=data,
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout

    def generate(self, name: str, algorithm: str, *subkeys: str) -> str:
        self("--passphrase", "", "--quick-gen-key", f"{name} <{name}@example.org>", algorithm, "sign", "0")
        fingerprint = self.fingerprints(self("--export", name))[0]
        for subkey in subkeys:
            self("--passphrase", "", "--quick-add-key", fingerprint, subkey, "encr", "0")
        return fingerprint

    def fingerprints(self, key: bytes) -> list[str]:
        """Return the fingerprints of the primary keys according to gpg."""
        fingerprints, primary = [], False
        for line in self("--show-keys", "--with-colons", data=key).decode().splitlines():
            fields = line.split(":")
            if fields[0] in ("pub", "sub"):
                primary = fields[0] == "pub"
            if fields[0] == "fpr" and primary:
                fingerprints.append(fields[9])
        return fingerprints


@pytest.fixture(scope="module")
def gpg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpg]:
    if shutil.which("gpg") is None:
        pytest.skip("gpg is not installed: nothing to compare with")
    # A short path, because gpg-agent creates its socket there.
    home = Path(os.path.realpath(tmp_path_factory.mktemp("g")))
    program = Gpg(home)
    program.generate("one", "rsa2048", "rsa2048")
    program.generate("two", "ed25519", "cv25519")
    yield program
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "gpg-agent"], check=False, timeout=30)


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("form", [(), ("--armor",)])
def test_fingerprints_are_gpgs(gpg: Gpg, name: str, form: tuple[str, ...]) -> None:
    key = gpg(*form, "--export", name)
    expected = gpg.fingerprints(key)
    assert len(expected) == 1
    assert pgp.fingerprints(key) == expected


def test_two_keys_are_two_fingerprints_however_they_are_joined(gpg: Gpg) -> None:
    one, two = (pgp.fingerprints(gpg("--export", name))[0] for name in ("one", "two"))
    assert set(pgp.fingerprints(gpg("--export"))) == {one, two}
    joined = gpg("--armor", "--export", "one") + b"some text between\n" + gpg("--armor", "--export", "two")
    assert pgp.fingerprints(joined) == [one, two]


def test_dearmoured_is_what_gpg_exports_in_binary(gpg: Gpg) -> None:
    armoured = gpg("--armor", "--export", "one")
    assert pgp.dearmour(armoured) == gpg("--export", "one")
    assert pgp.dearmour(armoured.replace(b"\n", b"\r\n")) == gpg("--export", "one")
    commented = armoured.replace(b"BLOCK-----\n", b"BLOCK-----\nVersion: x\nComment: y\n", 1)
    assert pgp.dearmour(commented) == gpg("--export", "one")


def packet(tag: int, body: bytes) -> bytes:
    return bytes([0xC0 | tag, 0xFF]) + len(body).to_bytes(4, "big") + body


KEY = b"\x04" + bytes(range(40))  # version, creation time, algorithm, numbers


def sha1_fingerprint(key: bytes) -> str:
    data = b"\x99" + len(key).to_bytes(2, "big") + key
    return hashlib.sha1(data).hexdigest().upper()  # noqa: S324 - what OpenPGP says


FINGERPRINT = sha1_fingerprint(KEY)


def test_all_packet_lengths_are_understood() -> None:
    old = bytes([0x80 | 6 << 2 | 1]) + len(KEY).to_bytes(2, "big") + KEY
    one = bytes([0xC6, len(KEY)]) + KEY
    long = b"\x04" + bytes(300)
    two = bytes([0xC6, 192 + ((len(long) - 192) >> 8), (len(long) - 192) & 255]) + long
    assert pgp.fingerprints(old) == pgp.fingerprints(one) == pgp.fingerprints(packet(6, KEY)) == [FINGERPRINT]
    assert pgp.fingerprints(two) == [sha1_fingerprint(long)]


def test_subkeys_and_user_names_do_not_count() -> None:
    data = packet(6, KEY) + packet(13, b"Somebody") + packet(14, b"\x04" + bytes(50))
    assert pgp.fingerprints(data) == [FINGERPRINT]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no public key"),
        (b"<html>404</html>", "not OpenPGP"),
        (packet(13, b"Somebody"), "no public key"),
        (packet(6, KEY)[:-1], "cut off"),
        (packet(5, KEY), "secret key"),
        (packet(6, b"\x03" + KEY[1:]), "no longer safe"),
        (b"\xc6\xe1" + bytes(10), "unknown length"),
        (b"\xc6", "unknown length"),
        (b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nAAAA\n", "complete armoured"),
        (b"-----BEGIN PGP PUBLIC KEY BLOCK-----\nAAAA\n-----END PGP PUBLIC KEY BLOCK-----\n", "empty line"),
        (b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n!!!!\n-----END PGP PUBLIC KEY BLOCK-----\n", "base64"),
    ],
)
def test_what_is_not_a_key_is_named(data: bytes, reason: str) -> None:
    with pytest.raises(pgp.NotAKeyError, match=reason):
        pgp.fingerprints(data)


def armoured(data: bytes, checksum: int | None = None) -> bytes:
    body = base64.b64encode(data).decode()
    lines = [body[start : start + 64] for start in range(0, len(body), 64)]
    if checksum is not None:
        lines.append("=" + base64.b64encode(checksum.to_bytes(3, "big")).decode())
    begin, end = (f"-----{word} PGP PUBLIC KEY BLOCK-----" for word in ("BEGIN", "END"))
    return "\n".join([begin, "", *lines, end, ""]).encode()


def test_a_wrong_checksum_is_noticed_and_a_missing_one_is_fine() -> None:
    data = packet(6, KEY)
    assert pgp.fingerprints(armoured(data)) == [FINGERPRINT]
    with pytest.raises(pgp.NotAKeyError, match="damaged"):
        pgp.fingerprints(armoured(data, 0x123456))


class Installed(modules.Host):
    """A node with its keyring and the key offered by a server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "keyring.gpg"
        self.source = folder / "served.asc"

    def run(
        self, fingerprint: str = FINGERPRINT, check: bool = False, url: str = "", state: str = "present"
    ) -> dict[str, Any]:
        key = {"url": url or self.source.as_uri(), "path": str(self.path), "fingerprint": fingerprint}
        told: dict[str, Any] = {"keys": [key]}
        if state == "absent":
            told = {"revoked": ["0" * 40, fingerprint], "keyrings": [str(self.folder / "*.gpg")]}
        return self.module("gpuprov_pgp_key", check, **told, _ansible_remote_tmp=str(self.folder))


@pytest.fixture
def node(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


def test_the_right_key_is_installed_in_binary_once(node: Installed) -> None:
    node.source.write_bytes(armoured(packet(6, KEY)))
    first = node.run()
    assert first["changed"] is True, first
    assert node.path.read_bytes() == packet(6, KEY)
    assert node.path.stat().st_mode & 0o777 == 0o644
    node.source.unlink()  # a second run must not even download it
    assert node.run()["changed"] is False


def test_spaces_and_small_letters_in_the_fingerprint_are_fine(node: Installed) -> None:
    node.source.write_bytes(armoured(packet(6, KEY)))
    spaced = " ".join(FINGERPRINT[start : start + 4] for start in range(0, 40, 4)).lower()
    assert node.run(spaced)["changed"] is True


def test_another_key_is_refused_with_both_fingerprints_and_nothing_is_written(node: Installed) -> None:
    node.source.write_bytes(armoured(packet(6, KEY)))
    answer = node.run("0123456789" * 4)
    assert answer["failed"] is True
    assert FINGERPRINT in answer["msg"]
    assert "0123456789" * 4 in answer["msg"]
    assert not node.path.exists()


def test_the_right_key_in_company_is_refused(node: Installed) -> None:
    node.source.write_bytes(packet(6, KEY) + packet(6, KEY + b"x"))
    answer = node.run()
    assert answer["failed"] is True
    assert " and " in answer["msg"]
    assert not node.path.exists()


def test_garbage_is_refused_and_the_old_keyring_stays(node: Installed) -> None:
    node.path.write_bytes(packet(6, KEY + b"old"))
    node.source.write_bytes(b"<html>proxy error</html>")
    answer = node.run()
    assert answer["failed"] is True
    assert "not a repository key" in answer["msg"]
    assert node.path.read_bytes() == packet(6, KEY + b"old")


def test_a_wrong_keyring_is_replaced(node: Installed) -> None:
    node.source.write_bytes(armoured(packet(6, KEY)))
    for wrong in (packet(6, KEY + b"x"), packet(6, KEY) * 2, b"", armoured(packet(6, KEY))):
        node.path.write_bytes(wrong)
        assert node.run()["changed"] is True
        assert node.path.read_bytes() == packet(6, KEY)


def test_check_mode_says_what_would_change_and_changes_nothing(node: Installed) -> None:
    node.source.write_bytes(armoured(packet(6, KEY)))
    assert node.run(check=True)["changed"] is True
    assert not node.path.exists()
    assert node.run("0123456789" * 4, check=True)["failed"] is True


def test_wrong_permissions_are_a_change_of_their_own(node: Installed) -> None:
    node.source.write_bytes(armoured(packet(6, KEY)))
    node.run()
    node.path.chmod(0o600)
    assert node.run()["changed"] is True
    assert node.path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("fingerprint", ["", "A4B469963BF863CC", "Z" * 40])
def test_a_fingerprint_that_is_none_is_refused(node: Installed, fingerprint: str) -> None:
    answer = node.run(fingerprint)
    assert answer["failed"] is True
    assert "not a fingerprint" in answer["msg"]


def test_an_address_that_does_not_answer_is_named(node: Installed) -> None:
    answer = node.run(url="http://127.0.0.1:9/key.asc")
    assert answer["failed"] is True
    assert "http://127.0.0.1:9/key.asc" in answer["msg"]


OTHER = KEY + b"other"


@pytest.mark.parametrize("order", [(KEY, OTHER), (OTHER, KEY)])
@pytest.mark.parametrize("form", ["binary", "armoured"])
def test_a_revoked_key_leaves_a_keyring_and_the_others_stay(
    node: Installed, order: tuple[bytes, bytes], form: str
) -> None:
    packets = b"".join(packet(6, key) + packet(13, b"Somebody") + packet(2, b"signature") for key in order)
    node.path.write_bytes(armoured(packets) if form == "armoured" else packets)
    node.path.chmod(0o640)
    assert node.run(check=True, state="absent")["changed"] is True
    assert FINGERPRINT in pgp.fingerprints(node.path.read_bytes())
    assert node.run(state="absent")["changed"] is True
    data = node.path.read_bytes()
    assert pgp.fingerprints(data) == [sha1_fingerprint(OTHER)]
    assert pgp.dearmour(data) == packet(6, OTHER) + packet(13, b"Somebody") + packet(2, b"signature")
    assert data.startswith(b"-----BEGIN") == (form == "armoured"), "apt goes by the name of the file"
    assert node.path.stat().st_mode & 0o777 == 0o640
    assert node.run(state="absent")["changed"] is False


def test_a_keyring_that_held_only_the_revoked_key_goes(node: Installed) -> None:
    assert node.run(state="absent")["changed"] is False, "there is none"
    node.path.write_bytes(packet(6, KEY))
    assert node.run(state="absent")["changed"] is True
    assert not node.path.exists()


def test_what_is_no_keyring_is_left_alone(node: Installed) -> None:
    node.path.write_bytes(b"KBXf nonsense")
    assert node.run(state="absent")["changed"] is False
    assert node.path.read_bytes() == b"KBXf nonsense"


def test_what_we_write_gpg_reads(gpg: Gpg) -> None:
    one = pgp.fingerprints(gpg("--export", "one"))[0]
    assert gpg.fingerprints(pgp.armoured(pgp.without(gpg("--export"), one))) == pgp.fingerprints(
        gpg("--export", "two")
    )
