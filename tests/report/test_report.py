"""Writing reports: each format is written completely or not at all, for any node text."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision import report
from provision.errors import RunFolderError, UsageError
from provision.report import html
from provision.runs.store import RunFolder
from tests.support import samples

FLEETS = ("healthy", "demo", "unmeasured", "interrupted", "nothing", "hostile", "between")


@pytest.mark.parametrize("name", FLEETS)
def test_every_format_of_every_fleet_is_written(name: str, tmp_path: Path) -> None:
    written = report.write_all(getattr(samples, name)(), tmp_path, list(report.FORMATS))
    assert {kind: path.name for kind, path in written.items()} == {
        "json": "report.json",
        "html": "report.html",
        "md": "report.md",
        "junit": "report.junit.xml",
        "nodes": "nodes.exclude",
        "prometheus": "gpuprov-validation.prom",
    }
    files = {name for _, files in report.FORMATS.values() for name in files}
    assert {path.name for path in tmp_path.iterdir()} == files
    for path in tmp_path.iterdir():
        path.read_text(encoding="utf-8")


def test_only_the_formats_asked_for_are_written_and_a_run_folder_will_do(tmp_path: Path) -> None:
    folder = RunFolder.create("validate", {}, runs=tmp_path)
    assert report.write_all(samples.demo(), folder, ["md"]) == {"md": folder.path / "report.md"}
    assert not (folder.path / "report.html").exists()


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="docx") as caught:
        report.write_all(samples.demo(), tmp_path, ["md", "docx"])
    assert "junit" in caught.value.fix
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"report\.md") as caught:
        report.write_all(samples.demo(), tmp_path / "file", ["md"])
    assert "--output" in caught.value.fix


def test_a_report_that_fails_half_way_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.html").write_text("the old one")

    def render(_fleet: object) -> Iterator[str]:
        yield "half"
        raise ZeroDivisionError

    monkeypatch.setattr(html, "render", render)
    with pytest.raises(ZeroDivisionError):
        report.write_all(samples.demo(), tmp_path, ["html"])
    assert (tmp_path / "report.html").read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_a_report_may_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        written: dict[str, Any] = report.write_all(samples.demo(), tmp_path, ["md"])
    finally:
        os.umask(before)
    assert stat.S_IMODE(written["md"].stat().st_mode) == 0o640
