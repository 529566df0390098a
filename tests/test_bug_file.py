"""A bug that costs a node its answer keeps its traceback, and the message names the file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import provision
from provision import bug_file
from provision.checks.check import Raw
from provision.checks.judging import node_judge, registry
from provision.runs.store import RunFolder
from tests.checks.amd_node import facts, node_of


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget any earlier bug file, and use a private folder for temporary files."""
    monkeypatch.setattr(bug_file, "_folder", None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()


def raised(what: str) -> ZeroDivisionError:
    try:
        raise ZeroDivisionError(what)
    except ZeroDivisionError as error:
        return error


def file_of(message: str) -> Path:
    found = re.search(r"please report it with (\S+\.txt)", message)
    assert found, message
    return Path(found[1])


def test_the_traceback_is_in_the_folder_of_the_run(tmp_path: Path) -> None:
    run = RunFolder.create("validate", {}, tmp_path / "runs")
    kept = file_of(bug_file.report(raised("x")))
    assert kept.parent == run.path
    assert "ZeroDivisionError: x" in kept.read_text()
    assert ", in raised" in kept.read_text()
    assert kept.read_text().splitlines()[0] == bug_file.versions()
    assert kept.stat().st_mode & 0o77 == 0


def test_it_says_which_versions_the_bug_was_seen_with() -> None:
    gpuprov, python, ansible, system, kernel = bug_file.versions().split(", ")
    assert (gpuprov, python) == (f"gpuprov {provision.__version__}", f"Python {sys.version.split()[0]}")
    assert re.fullmatch(r"ansible-core \d+\.\d+\S*", ansible)
    assert f'PRETTY_NAME="{system}"' in Path("/etc/os-release").read_text()
    assert kernel == f"Linux {os.uname().release} {os.uname().machine}"


def test_the_same_traceback_is_kept_once_and_never_more_than_a_few(tmp_path: Path) -> None:
    bug_file.keep_in(tmp_path)
    assert bug_file.report(raised("x")) == bug_file.report(raised("x"))
    for number in range(3 * bug_file.MOST):
        assert file_of(bug_file.report(raised(str(number)))).is_file()
    assert len(list(tmp_path.glob("bug-*.txt"))) == bug_file.MOST


def test_without_a_run_or_with_its_folder_gone_it_is_a_temporary_file(tmp_path: Path) -> None:
    assert file_of(bug_file.report(raised("x"))).parent.name == "temporary"
    bug_file.keep_in(tmp_path / "gone")
    assert "ZeroDivisionError: y" in file_of(bug_file.report(raised("y"))).read_text()


def test_a_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    bug_file.keep_in(tmp_path)
    kept = file_of(bug_file.report(raised("x")))
    kept.unlink()
    kept.symlink_to(tmp_path / "elsewhere")
    bug_file.report(raised("x"))
    assert not (tmp_path / "elsewhere").exists()


def test_a_check_that_breaks_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create("validate", {}, tmp_path / "runs")
    node = node_of(facts())

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("in the check")

    monkeypatch.setattr(registry.CHECKS.of_vendor("host_health", "amd"), "parse", broken)
    result = node_judge.judge_check(node, Raw("gpu-01", "host_health"), node.limits())
    message = next(one.message for one in result.findings if "gpuprov failed" in one.message)
    assert file_of(message).parent == run.path
    assert ", in broken" in file_of(message).read_text()
    assert "and raw/gpu-01/host_health.json" in message
