"""The module gpuprov_launch on a node: the access it opens, its reports, and a complete close."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.node.modules import gpuprov_launch as module
from tests.support.launching import LAUNCH, SCRIPTS, LaunchNode

FOREIGN = "ssh-ed25519 AAAAfirst admin@a\n# a comment about gpuprov-launch-\nssh-rsa AAAAsecond ci\n"
OTHER = "20261122T101500.000Z-validate-nccl-pair"


@pytest.fixture
def node(tmp_path: Path) -> LaunchNode:
    return LaunchNode(tmp_path)


def cycle(node: LaunchNode) -> str:
    """Open, admit and close; return the file of keys before the close."""
    assert "failed" not in node.open()
    assert "failed" not in node.admit()
    between = node.keys.read_text()
    assert "failed" not in node.run("close")
    return between


# --- open ---


def test_open_tells_what_the_controller_has_to_know_and_keeps_the_private_key(node: LaunchNode) -> None:
    node.program("sinfo", f"echo {'a' * 3} idle; echo second line")
    node.program("srun", "printf 'MPI plugin types are...\\n\\tnone\\n\\tpmix\\n\\tpmi2\\n'")
    answer = node.open(seconds=900)
    told = answer["gpuprov"]
    folder = node.home / LAUNCH
    assert told["public_key"] == (folder / "key.pub").read_text().strip()
    assert told["host_keys"] == [f"ssh-ed25519 {'A' * 68}"]
    assert told["mpirun"] == str(node.bin / "mpirun")
    assert (told["version"], told["mpirun_missing"]) == ("mpirun (Open MPI) 5.0.7", "")
    assert (told["slurm"]["node"], told["slurm"]["state"]) == ("aaa", "idle")
    assert {"pmix", "pmi2"} <= set(told["slurm"]["mpi"])
    assert "none" not in told["slurm"]["mpi"]
    assert "PRIVATE" not in str(answer)
    assert (folder / "key").read_text() not in str(answer)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    assert (node.home / f"{LAUNCH}.close").stat().st_mode & 0o777 == 0o600
    (timer,) = node.ran("systemd-run")
    assert "--on-active=900" in timer
    user = f"{os.getuid()} {os.getgid()}"
    assert timer.endswith(f"/bin/sh {node.home}/{LAUNCH}.close close {node.keys} {user}")
    assert not node.keys.exists(), "nobody is let in before a certificate is there"


def test_without_mpirun_and_slurm_it_says_so(node: LaunchNode) -> None:
    node.program("mpirun", "echo 'error while loading shared libraries' >&2; exit 127")
    told = node.open()["gpuprov"]
    assert (told["mpirun"], told["version"], told["slurm"]) == ("", "", {})
    assert told["mpirun_missing"] == "error while loading shared libraries"
    told = node.open(mpirun="/no/such/mpirun")["gpuprov"]
    assert "/no/such/mpirun" in told["mpirun_missing"]


def test_host_keys_that_nobody_uses_any_more_are_not_told(node: LaunchNode) -> None:
    """An obsolete ssh_host_dsa_key.pub must not keep a node out."""
    (node.ssh / "ssh_host_dsa_key.pub").write_text(f"ssh-dss {'B' * 68} root@a\n")
    (node.ssh / "ssh_host_empty_key.pub").write_text("")
    assert node.open()["gpuprov"]["host_keys"] == [f"ssh-ed25519 {'A' * 68}"]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("pubkeyauthentication", "no", "its sshd takes no keys (PubkeyAuthentication no)"),
        ("authorizedkeysfile", "none", "its sshd reads no file of keys (AuthorizedKeysFile none)"),
    ],
)
def test_a_node_whose_sshd_takes_no_keys_says_so(key: str, value: str, said: str, node: LaunchNode) -> None:
    node.sshd(key, value)
    answer = node.open()
    assert (answer["failed"], answer["msg"]) == (True, said)
    assert node.left() == []


def test_without_a_timer_nothing_is_left_open(node: LaunchNode) -> None:
    node.program("systemd-run", "echo 'System has not been booted with systemd' >&2; exit 1")
    answer = node.open()
    assert answer["failed"] is True
    assert answer["msg"].startswith("no timer could be set to close it: System has not been booted")
    assert node.left() == []


@pytest.mark.parametrize(
    "name",
    ["", "../x", "a/b", ".a", "-a", "a b", "a;touch x", "a$(id)", "a\n", "a*", "é", "a" * 100, 'a"', "a\x00"],
)
@pytest.mark.parametrize("state", ["open", "close"])
def test_a_hostile_name_is_refused(name: str, state: str, node: LaunchNode) -> None:
    answer = node.run(state, name, scripts=SCRIPTS)
    assert answer["failed"] is True
    assert answer["msg"].startswith("no name of a launch")
    assert (node.left(), node.ran("systemd-run")) == ([], [])


def test_a_user_who_is_none_is_named(node: LaunchNode) -> None:
    assert node.run("open", user="no-such-user")["msg"] == "there is no user no-such-user"


# --- admit ---


@pytest.mark.parametrize("bad", ["two\nlines", "\x1b[2J", "é", "x" * 5000])
def test_what_is_no_line_is_not_let_in(bad: str, node: LaunchNode) -> None:
    node.keys.write_text(FOREIGN)
    node.open()
    for told in ({"certificate": bad}, {"authority": bad}):
        assert node.admit(**told)["msg"] == "a key or certificate is one line of plain text"
    assert node.keys.read_text() == FOREIGN


def test_nobody_is_admitted_to_what_is_not_open(node: LaunchNode) -> None:
    assert node.admit()["msg"] == "the launch is not open any more"
    assert not node.keys.exists()


def test_who_is_let_in_may_do_one_thing(node: LaunchNode) -> None:
    node.keys.write_text(FOREIGN)
    between = cycle(node)
    added = f'restrict,cert-authority,principals="gpuprov-launch-{LAUNCH}" ca gpuprov-launch-{LAUNCH}\n'
    assert between == FOREIGN + added


# --- a complete undo ---


@pytest.mark.parametrize("before", [FOREIGN, FOREIGN.rstrip("\n"), "", "\n", "one", None])
def test_closing_leaves_the_file_of_keys_byte_for_byte(before: str | None, node: LaunchNode) -> None:
    if before is not None:
        node.keys.write_text(before)
        node.keys.chmod(0o640)
    between = cycle(node)
    assert between.count("gpuprov-launch-2026") == 2
    assert all(line in between.splitlines() for line in (before or "").splitlines())
    assert (node.keys.read_text() if node.keys.exists() else None) == before
    assert before is None or node.keys.stat().st_mode & 0o777 == 0o640
    assert not node.home.exists()
    assert f"systemctl stop gpuprov-launch-{LAUNCH}.timer" in node.ran("systemctl")


def test_a_folder_of_keys_that_is_missing_is_made_for_its_user_alone(node: LaunchNode) -> None:
    node.keys.parent.rmdir()
    cycle(node)
    assert not node.keys.exists()
    assert node.keys.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("before", [FOREIGN, "one"])
def test_a_file_of_keys_that_is_a_link_stays_one(before: str, node: LaunchNode) -> None:
    real = node.folder / "real_keys"
    real.write_text(before)
    node.keys.symlink_to(real)
    cycle(node)
    assert node.keys.is_symlink()
    assert real.read_text() == before


def test_lines_that_others_add_meanwhile_stay(node: LaunchNode) -> None:
    node.keys.write_text("one")
    node.open()
    node.admit()
    with node.keys.open("a") as stream:
        stream.write("two\n")
    node.run("close")
    assert node.keys.read_text() == "one\ntwo\n"


def test_two_launches_do_not_know_one_another(node: LaunchNode) -> None:
    node.keys.write_text(FOREIGN)
    for launch in (LAUNCH, OTHER):
        node.open(launch)
        node.admit(launch)
    node.run("close")
    assert [line for line in node.keys.read_text().splitlines() if LAUNCH in line] == []
    assert node.keys.read_text().count(OTHER) == 2
    assert (node.home / OTHER / "key").exists()
    node.run("close", OTHER)
    assert node.keys.read_text() == FOREIGN
    assert not node.home.exists()


def test_opened_again_what_was_left_behind_is_replaced(node: LaunchNode) -> None:
    node.keys.write_text(FOREIGN)
    first = node.open()["gpuprov"]["public_key"]
    node.admit()
    second = node.open()["gpuprov"]["public_key"]
    assert first != second
    assert node.keys.read_text() == FOREIGN, "the first one's line is gone"
    assert "failed" not in node.admit()
    node.run("close")
    assert node.keys.read_text() == FOREIGN


def test_closing_what_is_not_open_changes_nothing(node: LaunchNode) -> None:
    node.keys.write_text(FOREIGN)
    before = node.keys.stat()
    assert "failed" not in node.run("close")
    assert (node.keys.read_text(), node.keys.stat().st_mtime_ns) == (FOREIGN, before.st_mtime_ns)


def test_a_file_of_keys_that_cannot_be_written_is_said_and_tried_again(node: LaunchNode) -> None:
    node.keys.write_text(FOREIGN)
    node.open()
    node.admit()
    node.log.write_text("")
    node.program("sed", 'case "$*" in *-i*) echo "sed: no space left" >&2; exit 4;; esac; exec /bin/sed "$@"')
    answer = node.run("close")
    assert "no space left" in answer["msg"]
    assert node.left() == [f"{LAUNCH}.close"], "no key is left, and the timer finds its script"
    assert not [line for line in node.ran("systemctl") if LAUNCH in line], "the timer goes on"
    (node.bin / "sed").unlink()
    assert "failed" not in node.run("close")
    assert node.keys.read_text() == FOREIGN


# --- started processes ---


def started(mark: str | None, before: str = ":") -> subprocess.Popen[bytes]:
    """Start a shell that runs `before` and then waits."""
    env: dict[str, Any] = {"PATH": os.environ["PATH"], **({"GPUPROV_LAUNCH": mark} if mark else {})}
    program = f"{before}; echo; while :; do sleep 1; done"
    process = subprocess.Popen(["/bin/sh", "-c", program], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as said:
        said.readline()
    return process


def test_only_what_has_the_mark_is_ended(node: LaunchNode) -> None:
    node.open()
    marked, stubborn = started(LAUNCH), started(LAUNCH, 'trap "" TERM')
    others = [
        started(None),
        started(OTHER),
        started(LAUNCH + "x"),
        started(f"x\nGPUPROV_LAUNCH={LAUNCH}"),
        started(LAUNCH.replace(".", "-")),
    ]
    everybody = [marked, stubborn, *others]
    try:
        answer = node.run("end")
        assert (answer["changed"], "failed" in answer) == (False, False)
        assert (marked.wait(timeout=60), stubborn.wait(timeout=60)) == (-15, -9)
        assert [one.poll() for one in others] == [None] * len(others)
        assert (node.home / LAUNCH / "key").exists(), "it is still open"
    finally:
        for one in everybody:
            one.kill()
            one.wait(timeout=60)


def test_closing_ends_what_runs_and_ending_what_is_not_open_does_nothing(node: LaunchNode) -> None:
    running = started(LAUNCH)
    try:
        assert "failed" not in node.run("end")
        assert running.poll() is None
        node.open()
        node.run("close")
        assert running.wait(timeout=60) == -15
    finally:
        running.kill()
        running.wait(timeout=60)


# --- a login user who puts links into the path of root's files ---

NOBODY = pwd.getpwnam("nobody")


class Attacked(LaunchNode):
    """Node with a keys folder that its login user owns; `precious`: root's file next to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for one in (folder, *folder.parents):  # pytest's folders are closed to other users
            if one.stat().st_uid == os.geteuid() and not one.stat().st_mode & 0o001:
                one.chmod(one.stat().st_mode | 0o011)
        self.private = folder / "private"
        self.private.mkdir(mode=0o755)
        self.precious = self.private / "authorized_keys"
        self.precious.write_text(f"root's own ca gpuprov-launch-{LAUNCH}\nno end")
        self.precious.chmod(0o644)
        os.chown(self.keys.parent, NOBODY.pw_uid, NOBODY.pw_gid)
        self.log.chmod(0o666)
        self.before = self.state()

    def state(self) -> tuple[str, list[tuple[int, int, int]], list[str]]:
        found = [path.stat() for path in (self.precious, self.private)]
        return (
            self.precious.read_text(),
            [(one.st_uid, one.st_gid, one.st_mode) for one in found],
            sorted(path.name for path in self.private.iterdir()),
        )

    def run(self, state: str, launch: str = LAUNCH, **arguments: Any) -> dict[str, Any]:
        return super().run(state, launch, user="nobody", **arguments)


@pytest.fixture
def attacked(tmp_path: Path) -> Attacked:
    if os.geteuid():
        pytest.skip("root alone can be led astray")
    return Attacked(tmp_path)


def link_of_keys(node: Attacked) -> None:
    node.keys.symlink_to(node.precious)


def hard_link_of_keys(node: Attacked) -> None:
    node.keys.hardlink_to(node.precious)


def link_of_the_folder(node: Attacked) -> None:
    node.keys.parent.rmdir()
    node.keys.parent.symlink_to(node.private)


def link_to_a_new_file(node: Attacked) -> None:
    node.keys.symlink_to(node.private / "new")


LINKS = [link_of_keys, hard_link_of_keys, link_of_the_folder, link_to_a_new_file]


def test_a_login_user_without_tricks_gets_a_launch(attacked: Attacked) -> None:
    assert "failed" not in attacked.open()
    assert "failed" not in attacked.admit()
    made = [attacked.keys, *(attacked.home / LAUNCH).iterdir()]
    assert {path.stat().st_uid for path in made} == {NOBODY.pw_uid}
    assert {"key", "key.pub", "key-cert.pub", "accept", "reach", "created"} <= {path.name for path in made}
    assert "failed" not in attacked.run("close")
    assert not attacked.keys.exists()
    assert not attacked.home.exists()


def test_a_strict_umask_of_root_keeps_the_login_user_out_of_nothing(attacked: Attacked) -> None:
    before = os.umask(0o077)
    try:
        assert "failed" not in attacked.open()
        assert "failed" not in attacked.admit()
        assert attacked.home.stat().st_mode & 0o777 == 0o755
        assert "failed" not in attacked.run("close")
    finally:
        os.umask(before)


@pytest.mark.parametrize("when", ["open", "admit", "close"])
@pytest.mark.parametrize("attack", LINKS)
def test_no_link_of_a_login_user_leads_root_to_another_file(
    attack: Callable[[Attacked], None], when: str, attacked: Attacked
) -> None:
    if attack is link_of_the_folder:
        os.chown(attacked.keys.parent.parent, NOBODY.pw_uid, NOBODY.pw_gid)
    for state in ("open", "admit", "close"):
        if state == when:
            attacked.keys.unlink(missing_ok=True)
            attack(attacked)
        if state == "open":
            attacked.open()
        elif state == "admit":
            attacked.admit()
        else:
            attacked.run("close")
        assert attacked.state() == attacked.before, state


@pytest.mark.parametrize("name", ["key-cert.pub", "unended"])
def test_no_link_in_the_folder_of_a_launch_gives_a_file_away(name: str, attacked: Attacked) -> None:
    attacked.keys.write_text("no end")
    os.chown(attacked.keys, NOBODY.pw_uid, NOBODY.pw_gid)
    attacked.open()
    (attacked.home / LAUNCH / name).symlink_to(attacked.precious)
    assert attacked.admit()["failed"] is True
    assert attacked.state() == attacked.before


def test_keys_in_a_folder_of_root_alone_are_written_as_root(attacked: Attacked) -> None:
    assert module.keeper("/etc/ssh/keys/nobody", NOBODY).pw_uid == 0
    assert module.keeper(str(attacked.keys), NOBODY) == NOBODY
    assert module.keeper("/tmp/keys", NOBODY) == NOBODY
