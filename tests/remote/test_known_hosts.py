"""Lookups in known_hosts files, compared with `ssh-keygen -F`."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pytest

from provision.remote.protocol import NodeError
from provision.remote.ssh.connection import Hop
from provision.remote.ssh.known_hosts import Entry, HostKeys, KnownHosts, Standing, host_name, judge

ONE, TWO = (base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes([n]) * 32).decode() for n in (1, 2))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "known_hosts"
    path.write_text(
        f"""\
# comment
gpu-01,10.0.0.1 ssh-ed25519 {ONE} a comment
[gpu-02]:2222 ssh-ed25519 {ONE}
*.example.org,!bad.example.org ssh-ed25519 {TWO}
[10.1.?.*]:22022 ssh-ed25519 {TWO}
GPU-03 ssh-ed25519 {ONE}
broken ssh-ed25519 ????
short ssh-ed25519
"""
    )
    return path


NAMES = [
    *("gpu-01", "10.0.0.1", "gpu-02", "[gpu-02]:2222", "a.example.org", "bad.example.org", "example.org"),
    *("[10.1.2.3]:22022", "10.1.2.3", "gpu-03", "gpu-0", "nobody", "short"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hashed", [False, True])
def test_lines_found_are_those_ssh_keygen_finds(file: Path, name: str, hashed: bool) -> None:
    if hashed:
        file.write_text("".join(line for line in file.read_text().splitlines(True) if ONE in line))
        subprocess.run(
            ["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True, timeout=20
        )
    said = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", str(file)], capture_output=True, text=True, timeout=20
    )
    lines = [int(line.split()[-1]) for line in said.stdout.splitlines() if " found: line" in line]
    found = KnownHosts().entries([str(file)], name)
    assert [entry.line for entry in found] == lines


def test_names_are_one_in_either_case_and_broken_lines_are_passed_over(file: Path) -> None:
    assert [entry.line for entry in KnownHosts().entries([str(file)], "GPU-01")] == [2]
    assert KnownHosts().entries([str(file)], "broken") == []


def test_a_file_that_is_not_there_knows_nobody(tmp_path: Path) -> None:
    assert KnownHosts().entries([str(tmp_path / "none")], "gpu-01") == []


def test_what_is_learned_is_known_at_once_and_later(tmp_path: Path) -> None:
    path = str(tmp_path / "ssh" / "known_hosts")
    known = KnownHosts()
    blob = base64.b64decode(ONE)
    known.learn(path, "[gpu-01]:2222", "ssh-ed25519", blob)
    for book in (known, KnownHosts()):
        assert [entry.blob for entry in book.entries([path], "[gpu-01]:2222")] == [blob]
    assert Path(path).parent.stat().st_mode & 0o777 == 0o700


def test_a_port_that_is_not_22_is_part_of_the_name() -> None:
    assert host_name("GPU-01", 22) == "gpu-01"
    assert host_name("GPU-01", 2222) == "[gpu-01]:2222"


def entry(blob: bytes, key_type: str = "ssh-ed25519", marker: str = "", line: int = 1) -> Entry:
    return Entry("file", line, marker, key_type, blob)


@pytest.mark.parametrize(
    ("entries", "standing", "line"),
    [
        ([], Standing.UNKNOWN, None),
        ([entry(b"a")], Standing.KNOWN, 1),
        ([entry(b"b"), entry(b"a", line=2)], Standing.KNOWN, 2),
        ([entry(b"b")], Standing.CHANGED, 1),
        ([entry(b"c", "ssh-rsa"), entry(b"b", line=2)], Standing.CHANGED, 2),
        ([entry(b"c", "ssh-rsa")], Standing.CHANGED, 1),
        ([entry(b"a"), entry(b"a", marker="@revoked", line=2)], Standing.REVOKED, 2),
        ([entry(b"b", marker="@revoked")], Standing.UNKNOWN, None),
        ([entry(b"a", marker="@cert-authority")], Standing.UNKNOWN, None),
    ],
)
def test_what_known_hosts_says_of_a_key(entries: list[Entry], standing: Standing, line: int | None) -> None:
    said, by = judge(entries, "ssh-ed25519", b"a")
    assert said is standing
    assert (by.line if by else None) == line


def test_what_another_process_learned_meanwhile_is_not_learned_again(file: Path) -> None:
    first, second = KnownHosts(), KnownHosts()
    one, two = base64.b64decode(ONE), base64.b64decode(TWO)
    for each in (first, second):
        assert each.entries([str(file)], "gpu-09") == []
    before = file.read_text()
    assert first.learn(str(file), "gpu-09", "ssh-ed25519", one) == []
    lines = len(before.splitlines())
    (known,) = second.learn(str(file), "gpu-09", "ssh-ed25519", two)
    assert (known.blob, known.line) == (one, lines + 1)
    assert file.read_text() == f"{before}gpu-09 ssh-ed25519 {ONE}\n"
    for each in (first, second):
        assert each.entries([str(file)], "gpu-09") == [known]


def test_a_key_is_added_on_a_line_of_its_own_to_a_file_without_a_last_newline(file: Path) -> None:
    before = file.read_text().rstrip("\n")
    file.write_text(before)
    known = KnownHosts()
    last = known.entries([str(file)], before.splitlines()[-1].split()[0].split(",")[0])
    for name in ("gpu-09", "gpu-10"):
        assert known.learn(str(file), name, "ssh-ed25519", base64.b64decode(ONE)) == []
    added = "".join(f"\n{name} ssh-ed25519 {ONE}" for name in ("gpu-09", "gpu-10"))
    assert file.read_text() == f"{before}{added}\n"
    lines = len(before.splitlines())
    for each in (known, KnownHosts()):
        assert [entry.line for entry in each.entries([str(file)], "gpu-10")] == [lines + 2]
        assert each.entries([str(file)], before.splitlines()[-1].split()[0].split(",")[0]) == last


def test_a_new_host_that_shows_two_keys_at_once_is_refused(tmp_path: Path) -> None:
    """Two processes connect at the same time; the second one detects the changed key."""
    hop = Hop("gpu-09", 22, "root", user_known_hosts=(str(tmp_path / "known_hosts"),), accept_new=True)
    first, second = HostKeys(), HostKeys()
    nothing = [each.entries(hop) for each in (first, second)]
    assert nothing == [[], []]
    first.check(hop, [], "ssh-ed25519", base64.b64decode(ONE), direct=True)
    second.check(hop, [], "ssh-ed25519", base64.b64decode(ONE), direct=True)
    with pytest.raises(NodeError, match="CHANGED"):
        second.check(hop, [], "ssh-ed25519", base64.b64decode(TWO), direct=True)
    assert len((tmp_path / "known_hosts").read_text().splitlines()) == 1
