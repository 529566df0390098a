"""The module with which a role observes a node, run as a program like on the node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.modules import Host


class Node(Host):
    def look(self, **asked: Any) -> dict[str, Any]:
        return self.module("gpuprov_look", False, **asked)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_files_are_read_and_what_is_not_there_is_null(node: Node) -> None:
    (node.folder / "version").write_bytes(b"580 \xff\n")
    asked = {name: str(node.folder / name) for name in ("version", "nothing", "bin")}
    found = node.look(files=asked)
    assert found["files"] == {"version": "580 \N{REPLACEMENT CHARACTER}\n", "nothing": None, "bin": ""}
    assert not found["changed"]


def test_at_most_a_mebibyte_of_a_file_is_read(node: Node) -> None:
    (node.folder / "log").write_text("x" * 3_000_000)
    assert len(node.look(files={"log": str(node.folder / "log")})["files"]["log"]) == 1024 * 1024


def test_of_a_path_is_said_where_it_leads(node: Node) -> None:
    (node.folder / "lib.so.580").touch()
    (node.folder / "lib.so").symlink_to("lib.so.580")
    (node.folder / "broken").symlink_to("gone")
    asked = {name: str(node.folder / name) for name in ("lib.so", "lib.so.580", "broken", "nothing")}
    real = str((node.folder / "lib.so.580").resolve())
    assert node.look(paths=asked)["paths"] == {
        "lib.so": real,
        "lib.so.580": real,
        "broken": None,
        "nothing": None,
    }


def test_programs_answer_in_english_without_a_shell(node: Node) -> None:
    node.program("tool", 'echo "$LC_ALL:$2"\necho trouble >&2\nexit 3')
    found = node.look(programs={"tool": ["tool", "-x", "$HOME;a b"], "none": ["no-such-program", 1]})
    assert found["programs"] == {
        "tool": {"rc": 3, "stdout": "C:$HOME;a b", "stderr": "trouble"},
        "none": {"rc": 127, "stdout": "", "stderr": found["programs"]["none"]["stderr"]},
    }
    assert "no-such-program" in found["programs"]["none"]["stderr"]


@pytest.mark.parametrize("argv", [["tool"], ["no-such-program"]])
def test_a_needed_program_that_fails_ends_the_task_with_its_words(node: Node, argv: list[str]) -> None:
    node.program("tool", "echo database is locked >&2\nexit 3")
    asked = {"packages": argv, "other": ["false"]}
    assert not node.look(programs=asked).get("failed")
    answer = node.look(programs=asked, needed=["packages"])
    assert answer["failed"]
    assert answer["msg"].startswith(f"{argv[0]} ended with ")
    assert ("database is locked" if argv == ["tool"] else "no-such-program") in answer["msg"]


def test_a_program_that_never_answers_costs_its_own_answer_only(node: Node) -> None:
    node.program("hangs", "sleep 60")
    begun = time.monotonic()
    found = node.look(programs={"hangs": ["hangs"], "quick": ["echo", "here"]}, timeout=1)
    assert found["programs"]["hangs"] == {"rc": 124, "stdout": "", "stderr": "no answer within 1 s"}
    assert found["programs"]["quick"]["stdout"] == "here"
    assert time.monotonic() - begun < 30


def test_files_are_found_by_name_depth_and_content(node: Node) -> None:
    top = node.folder / "top"
    for name, text in (
        ("a.conf", "# x\n  memlock 1\n"),
        ("b.conf", "memlok\n"),
        ("c.txt", "memlock 1\n"),
        ("one/d.conf", "memlock 2\n"),
        ("one/two/e.conf", "memlock 3\n"),
    ):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    (top / "link").symlink_to(top / "one")

    def found(**asked: Any) -> list[str]:
        paths = node.look(folders={"it": {"path": str(top) + "/", **asked}})["folders"]["it"]
        return [str(Path(path).relative_to(top)) for path in paths]

    assert found() == ["a.conf", "b.conf", "c.txt"]
    assert found(names=["*.conf"], contains=r"\s*memlock\s") == ["a.conf"]
    assert found(names=["*.conf"], contains=r"\s*memlock\s", depth=2) == ["a.conf", "one/d.conf"]
    assert found(names=["*.conf"], depth=3)[-1] == "one/two/e.conf"
    assert node.look(folders={"none": {"path": "/no/such/folder"}})["folders"] == {"none": []}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"files": {"a": "relative"}}, "files: a: 'relative' cannot be used: an absolute path is needed"),
        ({"programs": {"a": "ls -l"}}, "programs: a: 'ls -l' cannot be used: a list is needed"),
        ({"folders": {"a": {"path": "/x", "contains": "("}}}, "folders: a: "),
        ({"folders": {"a": {"path": "/x", "pattern": "*"}}}, "there is no pattern"),
        ({"folders": {"a": {"names": ["*"]}}}, "folders: a: "),
    ],
)
def test_an_option_that_cannot_be_meant_is_named(node: Node, asked: dict[str, Any], said: str) -> None:
    answer = node.look(**asked)
    assert answer["failed"]
    assert said in answer["msg"]
