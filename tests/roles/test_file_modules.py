"""Our modules that write a role's files and request a reboot, run as programs like on a node."""

from __future__ import annotations

import grp
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.modules import Host

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files are given to root")


class Node(Host):
    def files(
        self, *files: dict[str, Any], check: bool = False, absent: tuple[Path, ...] = ()
    ) -> dict[str, Any]:
        told = [{**file, "path": str(self.folder / file["path"])} for file in files]
        gone = [str(path) for path in absent]
        return self.module(
            "gpuprov_files", check, files=told, absent=gone, _ansible_remote_tmp=str(self.folder)
        )

    def reboot(self, why: str, check: bool = False) -> dict[str, Any]:
        before = f"module.REQUIRED = {str(self.folder / 'reboot-required')!r}"
        return self.module("gpuprov_reboot", check, before, why=why)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


ONE = {"path": "new/folder/one.conf", "content": "a = 1\nb = ä\n"}
TWO = {"path": "two.sh", "content": "#!/bin/sh\n", "mode": "0755"}


def test_files_are_written_once_with_their_modes_and_folders(node: Node) -> None:
    assert node.files(ONE, TWO)["changed"] is True
    for file, mode in ((ONE, 0o644), (TWO, 0o755)):
        path = node.folder / file["path"]
        assert path.read_text() == file["content"]
        assert (path.stat().st_mode & 0o777, path.stat().st_uid, path.stat().st_gid) == (mode, 0, 0)
    assert (node.folder / "new").stat().st_mode & 0o777 == 0o755
    assert node.files(ONE, TWO)["paths"] == []


def test_a_file_of_another_owner_or_mode_is_given_back(node: Node) -> None:
    node.files(TWO)
    path = node.folder / "two.sh"
    for spoil in (lambda: path.chmod(0o777), lambda: os.chown(path, 1, 1)):
        spoil()
        assert node.files(TWO)["paths"] == [str(path)]
        assert (path.stat().st_mode & 0o777, path.stat().st_uid) == (0o755, 0)


def test_a_secret_is_never_readable_by_others_and_belongs_to_its_group(node: Node) -> None:
    secret = {"path": "new/key", "content": "a\n", "mode": "0640", "group": "daemon"}
    path = node.folder / "new/key"
    seen = (
        "import os; module.AnsibleModule.set_mode_if_different = lambda self, path, *more: "
        "open(str(path) + '.seen', 'a').write('%o ' % (os.stat(path).st_mode & 0o777))"
    )
    for _ in range(2):
        path.unlink(missing_ok=True)
        node.module(
            "gpuprov_files", False, seen, absent=[], _ansible_remote_tmp=str(node.folder),
            files=[{**secret, "path": str(path)}],
        )  # fmt: skip
    assert (node.folder / "new/key.seen").read_text() == "600 600 ", "before it has its mode, only root may"
    assert node.files(secret)["changed"] is True
    status = path.stat()
    assert (status.st_mode & 0o777, status.st_uid, grp.getgrgid(status.st_gid).gr_name) == (
        0o640,
        0,
        "daemon",
    )
    assert node.files(secret)["changed"] is False
    path.chmod(0o644)
    assert node.files({**secret, "content": "b\n"})["paths"] == [str(path)]
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_secret_has_its_group_and_is_shown_nowhere(node: Node) -> None:
    secret = {"path": "password", "secret": "correct horse\n", "mode": "0640", "group": "daemon"}
    answer = node.files(secret)
    path = node.folder / "password"
    assert path.read_text() == "correct horse\n"
    assert (path.stat().st_mode & 0o777, path.group()) == (0o640, "daemon")
    assert "correct horse" not in str(answer["diff"])
    assert node.files(secret)["paths"] == []


def test_a_file_that_its_program_refuses_replaces_nothing(node: Node) -> None:
    checked = {"path": "one.conf", "validate": ["grep", "-q", "good", "%s"]}
    assert node.files({**checked, "content": "good\n"})["changed"] is True
    answer = node.files({**checked, "content": "bad\n"})
    assert answer["failed"] is True
    assert "one.conf: grep refuses it" in answer["msg"]
    assert (node.folder / "one.conf").read_text() == "good\n"
    assert node.files({**checked, "content": "bad\n"}, check=True)["changed"] is True


def test_a_file_without_content_is_removed_before_others_are_written(node: Node) -> None:
    path = node.folder / "two.sh"
    node.files(TWO)
    assert node.files({"path": "two.sh"})["paths"] == [str(path)]
    assert not path.exists()
    assert node.files({"path": "two.sh"}, absent=(path,))["changed"] is False
    path.symlink_to("/nowhere")
    assert node.files(absent=(path,))["changed"] is True
    assert not path.is_symlink()


def test_check_mode_changes_nothing_and_shows_the_difference(node: Node) -> None:
    node.files(TWO)
    answer = node.files({**TWO, "content": "#!/bin/bash\n"}, ONE, check=True)
    assert [difference["before"] for difference in answer["diff"]] == ["#!/bin/sh\n", ""]
    assert [difference["after"] for difference in answer["diff"]] == ["#!/bin/bash\n", ONE["content"]]
    assert (node.folder / "two.sh").read_text() == "#!/bin/sh\n"
    assert not (node.folder / "new").exists()


def test_a_path_that_cannot_be_written_is_named_and_what_was_done_is_said(node: Node) -> None:
    (node.folder / "blocked").touch()
    answer = node.files(TWO, {"path": "blocked/file", "content": ""})
    assert answer["failed"] is True
    assert answer["msg"] == f"{node.folder}/blocked/file: Not a directory"
    assert answer["paths"] == [str(node.folder / "two.sh")]


def test_a_reboot_is_asked_for_once_for_each_reason(node: Node) -> None:
    reasons = node.folder / "reboot-required.pkgs"
    assert node.reboot("a (one)", check=True)["changed"] is True
    assert not reasons.exists()
    reasons.write_text("linux-image")  # without a newline at the end
    assert [node.reboot(why)["changed"] for why in ("a (one)", "b\n(two)", "a (one)")] == [True, True, False]
    assert reasons.read_text() == "linux-image\na (one)\nb (two)\n"
    assert (node.folder / "reboot-required").read_text() == "*** System restart required ***\n"
