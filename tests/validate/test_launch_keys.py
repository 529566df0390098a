"""Keys of a launch: signed certificates, and the logins and commands that a node's real sshd accepts."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provision.errors import ParseError
from provision.validate.plays.launch import Authority
from tests.support.commands import ran
from tests.support.launching import LAUNCH, SCRIPTS, LaunchNode
from tests.support.sshd import Sshd

PRINCIPAL = f"gpuprov-launch-{LAUNCH}"
COMMAND = "/bin/sh /run/gpuprov-launch/x/accept"


def keygen(path: Path, kind: str = "ed25519") -> str:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "a node", "-f", str(path)], check=True, timeout=60
    )
    return path.with_suffix(".pub").read_text()


# --- certificates ---


def test_the_certificate_is_for_one_principal_and_one_command_and_runs_out(tmp_path: Path) -> None:
    began = int(time.time())
    signed = Authority(PRINCIPAL, 3600).sign(keygen(tmp_path / "key"), COMMAND)
    (tmp_path / "key-cert.pub").write_text(signed + "\n")
    listing = ran(
        ["ssh-keygen", "-L", "-f", str(tmp_path / "key-cert.pub")],
        check=True,
        env={"TZ": "UTC", "PATH": "/usr/bin:/bin"},
    ).stdout
    words = [line.strip() for line in listing.splitlines()]
    assert "Type: ssh-ed25519-cert-v01@openssh.com user certificate" in words
    assert words[words.index("Principals:") + 1 : words.index("Critical Options:")] == [PRINCIPAL]
    assert f"force-command {COMMAND}" in words
    assert "Extensions: (none)" in words, "no terminal, no forwarding"
    (valid,) = [line.removeprefix("Valid: ") for line in words if line.startswith("Valid: ")]
    stamps = re.fullmatch(r"from (\S+) to (\S+)", valid)
    assert stamps
    since, until = (
        time.mktime(time.strptime(one, "%Y-%m-%dT%H:%M:%S")) - time.timezone for one in stamps.groups()
    )
    day = 86400
    assert abs(since - (began - day)) < 30
    assert abs(until - (began + 3600 + day)) < 30


def test_nothing_private_is_written_by_the_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    public = keygen(tmp_path / "key")
    empty = tmp_path / "cwd"
    empty.mkdir()
    for variable in ("HOME", "TMPDIR"):
        monkeypatch.setenv(variable, str(empty))
    monkeypatch.chdir(empty)
    authority = Authority(PRINCIPAL, 60)
    told = (authority.public, authority.sign(public, COMMAND), repr(authority), str(vars(authority)))
    assert list(empty.iterdir()) == []
    assert not any("PRIVATE" in text for text in told)
    assert authority.public.startswith("ssh-ed25519 AAAA")
    assert len(authority.public.split()) == 2
    assert authority.public != Authority(PRINCIPAL, 60).public, "each launch has its own"


@pytest.mark.parametrize(
    "public_key",
    [
        "",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 not base64 at all",
        "nonsense " * 300,
        "ssh-ed25519 \x1b[2J\n\x00",
        "\udcff",
        "ssh-dss AAAAB3NzaC1kc3M=",
        "-----BEGIN PRIVATE KEY-----\n",
    ],
)
def test_what_is_no_key_is_refused_with_one_line(public_key: str) -> None:
    with pytest.raises(ParseError) as refused:
        Authority(PRINCIPAL, 60).sign(public_key, COMMAND)
    assert "its new key is invalid" in refused.value.what
    assert refused.value.what.isprintable()
    assert len(refused.value.what) < 200


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_another_kind_of_key_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="not an Ed25519 key"):
        Authority(PRINCIPAL, 60).sign(keygen(tmp_path / "key", kind), COMMAND)


# --- logins and commands accepted by a real sshd ---

# As OpenMPI 4.1 and 5.0 request it, with and without a prefix; with sh, after loading the profile.
ORTED = (
    'orted --daemonize -mca ess "env" -mca orte_node_regex "vm,[2:10].9.9.9@0(2)" '
    '-mca orte_hnp_uri "525402112.0;tcp://192.0.2.2,10.79.0.1:40951" -mca pmix "^s1,s2,cray,isolated"'
)
ORTED_PREFIX = (
    "         PATH=/usr/bin:$PATH ; export PATH ; LD_LIBRARY_PATH=/usr/lib:${LD_LIBRARY_PATH:-} ; "
    f"export LD_LIBRARY_PATH ;   {ORTED}"
)
PRTED = (
    "PRTE_PREFIX=/usr;export PRTE_PREFIX;LD_LIBRARY_PATH=/usr/lib:/usr/lib/pmix2/lib:$LD_LIBRARY_PATH;"
    'export LD_LIBRARY_PATH;prted --daemonize --allow-run-as-root --prtemca ess "env" --prtemca '
    'prte_hnp_uri "prterun-vm-29575@0.0;tcp://192.0.2.2:45681:64,24,16;tcp6://[fd00::2]:39041:64,24,16" '
    '--prtemca plm_ssh_agent "/bin/sh /run/gpuprov-launch/x/reach" --prtemca plm "ssh"'
)
IN_SH = f"( test ! -r ./.profile || . ./.profile; {ORTED_PREFIX} )"

Reach = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def node(tmp_path: Path, sshd: Sshd) -> Iterator[LaunchNode]:
    """Yield a node with a real sshd; its MPI daemons print their mark and arguments."""
    launch_node = LaunchNode(tmp_path / "node")
    launch_node.sshd("authorizedkeysfile", str(sshd.folder / "authorized_keys"))
    for daemon in ("orted", "prted"):
        file = sshd.bin / daemon
        file.write_text(f'#!/bin/sh\necho "{daemon} of $GPUPROV_LAUNCH:" "$@"\n')
        file.chmod(0o755)
    yield launch_node
    for launch in (LAUNCH, "other"):
        assert "failed" not in launch_node.run("close", launch)


@pytest.fixture
def reach(node: LaunchNode, sshd: Sshd) -> Reach:
    """Return the node's `reach` script as a function; OpenMPI calls it with a host and a command."""

    def run(
        command: str, launch: str = LAUNCH, host_key: str | None = None, host: str = "127.0.0.1"
    ) -> subprocess.CompletedProcess[str]:
        key = host_key or " ".join((sshd.folder / "host_ed25519.pub").read_text().split()[:2])
        return ran(
            ["/bin/sh", str(node.home / launch / "reach"), host, command],
            env={
                "PATH": "/usr/bin:/bin",
                "GPUPROV_HOST_KEYS": f"[127.0.0.1]:{sshd.port} {key}",
                "GPUPROV_SSH_PORTS": f"192.0.2.1 22\n127.0.0.1 {sshd.port}",
            },
        )

    return run


def admitted(node: LaunchNode, launch: str = LAUNCH, seconds: int = 600) -> Authority:
    authority = Authority(f"gpuprov-launch-{launch}", seconds)
    opened = node.open(launch)
    signed = authority.sign(opened["gpuprov"]["public_key"], f"/bin/sh {node.home}/{launch}/accept")
    assert "failed" not in node.admit(launch, signed, authority.public)
    return authority


def test_the_key_starts_mpi_daemons_with_the_mark_of_the_launch_and_nothing_else(
    node: LaunchNode, reach: Reach, tmp_path: Path
) -> None:
    admitted(node)
    for asked, daemon in ((ORTED, "orted"), (ORTED_PREFIX, "orted"), (PRTED, "prted")):
        done = reach(asked)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{daemon} of {LAUNCH}: --daemonize")
        assert "0;tcp://192.0.2.2" in done.stdout, "what is quoted comes as it is"
    assert [name for name in node.left() if name.startswith("known_hosts")] == []
    witness = tmp_path / "witness"
    for asked in ("id", f"touch {witness}; orted ", f"prted ; $(touch {witness})"):
        done = reach(asked)
        assert (done.returncode, done.stdout) == (126, "")
        assert "gpuprov: refused: this key starts MPI daemons only" in done.stderr
        assert "gpuprov: ssh to 127.0.0.1 ended with status 126" in done.stderr
    assert not witness.exists()


def accepted(asked: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run sshd's forced command with `asked` as the client's original command."""
    (folder / LAUNCH).mkdir()
    (folder / LAUNCH / "accept").write_text(SCRIPTS["accept"])
    (folder / "orted").write_text('#!/bin/sh\necho "$GPUPROV_LAUNCH" "$@"\n')
    (folder / "orted").chmod(0o755)
    return ran(
        ["/bin/sh", str(folder / LAUNCH / "accept")],
        env={"PATH": f"{folder}:/usr/bin:/bin", "SSH_ORIGINAL_COMMAND": asked},
        cwd=folder,
    )


@pytest.mark.parametrize("asked", [ORTED, ORTED_PREFIX, PRTED.replace("prted ", "orted "), IN_SH])
def test_what_openmpi_asks_for_is_accepted(asked: str, tmp_path: Path) -> None:
    done = accepted(asked, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{LAUNCH} --daemonize")


@pytest.mark.parametrize(
    "asked",
    [
        "touch witness",
        "touch witness; orted -mca ess env",
        "touch witness; orted ",
        "orted ; touch witness",
        "orted ; $(touch witness)",
        'orted "$(touch witness)"',
        "orted `touch witness`",
        'orted "`touch witness`"',
        "orted & touch witness",
        "orted | tee witness",
        "orted > witness",
        "orted\ntouch witness",
        "touch witness\norted ",
        'orted "a\\"; touch witness; "',
        "orted 'a'; touch witness; orted 'b'",
        "PATH=$(touch witness); export PATH; orted ",
        "PATH=a touch witness; export PATH; orted ",
        "LD_PRELOAD=/x; export LD_PRELOAD; touch witness; orted ",
        "( test ! -r ./.profile || . ./.profile; orted ); touch witness; echo a )",
        "/bin/sh -c 'touch witness' orted ",
        "LD_PRELOAD=./x.so; export LD_PRELOAD; orted ",
        "",
    ],
)
def test_nothing_else_is_accepted(asked: str, tmp_path: Path) -> None:
    done = accepted(asked, tmp_path)
    assert (done.returncode, done.stdout) == (126, "")
    assert done.stderr == "gpuprov: refused: this key starts MPI daemons only\n"
    assert not (tmp_path / "witness").exists()


def test_what_the_certificate_does_not_say_is_not_let_in(node: LaunchNode, reach: Reach) -> None:
    expired = admitted(node, seconds=-86400 - 60)
    done = reach(ORTED)
    assert done.returncode == 255
    assert "Permission denied (publickey" in done.stderr
    assert "gpuprov: ssh to 127.0.0.1 ended with status 255" in done.stderr
    # Same authority under another name: only the principal matters.
    key = (node.home / LAUNCH / "key.pub").read_text()
    expired._until = int(time.time()) + 600
    expired._launch = "gpuprov-launch-another"
    (node.home / LAUNCH / "key-cert.pub").write_text(expired.sign(key, "/bin/true") + "\n")
    assert reach(ORTED).returncode == 255
    expired._launch = PRINCIPAL
    (node.home / LAUNCH / "key-cert.pub").write_text(
        expired.sign(key, f"/bin/sh {node.home}/{LAUNCH}/accept") + "\n"
    )
    assert reach(ORTED).returncode == 0


def test_the_certificate_of_another_launch_is_not_let_in(node: LaunchNode, reach: Reach) -> None:
    admitted(node, "other")
    admitted(node)
    assert reach(ORTED, "other").stdout.startswith("orted of other:")
    node.run("close", "other")
    assert reach(ORTED).returncode == 0
    stranger = Authority(PRINCIPAL, 600)  # this launch's name, signed by another authority
    key = (node.home / LAUNCH / "key.pub").read_text()
    (node.home / LAUNCH / "key-cert.pub").write_text(stranger.sign(key, "/bin/true") + "\n")
    assert reach(ORTED).returncode == 255


def test_after_the_end_nobody_is_let_in(node: LaunchNode, reach: Reach, tmp_path: Path) -> None:
    admitted(node)
    kept = tmp_path / "stolen"
    subprocess.run(["cp", "-r", str(node.home / LAUNCH), str(kept)], check=True, timeout=10)
    node.run("close")
    subprocess.run(["mkdir", "-p", str(node.home)], check=True, timeout=10)
    subprocess.run(["cp", "-r", str(kept), str(node.home / "kept")], check=True, timeout=10)
    assert "Permission denied" in reach(ORTED, "kept").stderr


def test_another_host_key_is_not_believed(node: LaunchNode, reach: Reach, sshd: Sshd) -> None:
    admitted(node)
    other = " ".join((sshd.folder / "user.pub").read_text().split()[:2])
    done = reach(ORTED, host_key=other)
    assert done.returncode == 255
    assert "Host key verification failed" in done.stderr


def test_a_host_that_looks_like_an_option_is_none(node: LaunchNode, reach: Reach, tmp_path: Path) -> None:
    admitted(node)
    witness = tmp_path / "witness"
    done = reach("localhost", host=f"-oProxyCommand=touch {witness}")
    assert done.returncode != 0
    assert not witness.exists()
