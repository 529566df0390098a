"""scripts/release refuses a bad release without changing anything, and otherwise builds and tags."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "gpuprov"
dynamic = ["version"]
requires-python = ">=3.11"
[tool.hatch.version]
path = "provision/__init__.py"
[tool.hatch.build.targets.wheel]
packages = ["provision"]
"""
OF_THE_LAB = (
    PYPROJECT.replace('"gpuprov"', '"gpuprov-lab"')
    .replace('path = "', 'path = "../')
    .replace('["provision"]', '["gpuprov_lab"]')
)
CHANGELOG = """\
# Changelog

## Unreleased

## 0.2.0

### Added

- Something.

## 0.1.9

## 0.1.0

- First.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a small committed project of the same layout at version 0.1.0."""
    folder = tmp_path / "project"
    for name, text in {
        "pyproject.toml": PYPROJECT,
        "CHANGELOG.md": CHANGELOG,
        "provision/__init__.py": '"""A project."""\n\n__version__ = "0.1.0"\n',
        "lab/pyproject.toml": OF_THE_LAB,
        "lab/gpuprov_lab/__init__.py": "",
        ".gitignore": "/dist/\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/release", folder / "scripts/release")
    for arguments in (["init", "-q"], ["config", "user.name", "T"], ["config", "user.email", "t@localhost"]):
        git(folder, *arguments)
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", "A change")


def release(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(folder / "scripts/release"), *arguments],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def state(folder: Path) -> tuple[str, str, str]:
    return git(folder, "rev-parse", "HEAD"), git(folder, "tag"), git(folder, "status", "--porcelain")


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("1.2", "1.2 is not a version"),
        ("v0.2.0", "v0.2.0 is not a version"),
        ("0.0.9", "0.0.9 is older than the current version 0.1.0"),
        ("0.1.0rc1", "0.1.0rc1 is older than the current version 0.1.0"),
        ("0.3.0", "CHANGELOG.md has no section of 0.3.0"),
        ("0.1.9", "CHANGELOG.md lists no change of 0.1.9"),
    ],
)
def test_a_version_that_cannot_be_released_is_refused(project: Path, version: str, reason: str) -> None:
    before = state(project)
    done = release(project, version)
    assert (done.returncode, before) == (1, state(project))
    assert reason in done.stderr
    assert "→" in done.stderr
    assert "Traceback" not in done.stderr


def test_uncommitted_changes_are_refused(project: Path) -> None:
    (project / "new.txt").write_text("not committed")
    done = release(project, "0.2.0")
    assert done.returncode == 1
    assert "uncommitted changes" in done.stderr


def test_a_tag_that_exists_is_refused(project: Path) -> None:
    git(project, "tag", "v0.2.0")
    done = release(project, "0.2.0")
    assert done.returncode == 1
    assert "the tag v0.2.0 exists already" in done.stderr


def test_a_dry_run_changes_nothing(project: Path) -> None:
    before = state(project)
    done = release(project, "0.2.0", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert before == state(project)
    assert not (project / "dist").exists()


def test_a_release_is_built_committed_and_tagged(project: Path) -> None:
    done = release(project, "0.2.0")
    assert done.returncode == 0, done.stderr
    assert {file.name for file in (project / "dist").iterdir()} == {
        "gpuprov-0.2.0-py3-none-any.whl",
        "gpuprov-0.2.0.tar.gz",
        "gpuprov_lab-0.2.0-py3-none-any.whl",
        "gpuprov_lab-0.2.0.tar.gz",
    }
    assert '__version__ = "0.2.0"' in git(project, "show", "v0.2.0:provision/__init__.py")
    assert "- Something." in git(project, "tag", "--list", "--format=%(contents)", "v0.2.0")
    assert git(project, "status", "--porcelain") == ""


def test_a_build_that_fails_leaves_the_version_as_it_was(project: Path) -> None:
    (project / "pyproject.toml").write_text("[build-system]\nrequires = []\nbuild-backend = 'absent'\n")
    commit(project)
    before = state(project)
    done = release(project, "0.2.0")
    assert done.returncode == 1
    assert before == state(project)
    assert "nothing was tagged" in done.stderr
