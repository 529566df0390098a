"""The built wheel carries playbooks, roles, data and node programs, and runs from an empty folder."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    return next(folder.glob("gpuprov-*.whl"))


def below(*parts: str) -> set[str]:
    """The files git knows below a folder: what must be inside the wheel."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", *parts], check=True, capture_output=True, text=True, timeout=60
    )
    return set(listed.stdout.split())


def test_everything_a_run_needs_is_inside(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert "provision/py.typed" in inside  # without it mypy ignores the types of an installed gpuprov
    assert below("provision") <= inside
    packed = below("playbooks", "roles", "docs", "README.md", "CHANGELOG.md")
    assert {f"provision/_packed/{name}" for name in packed} <= inside


@pytest.mark.timeout(400)
def test_it_runs_from_an_empty_folder_in_a_new_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "env"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(wheel)],
        check=True,
        timeout=360,
    )
    empty = tmp_path / "empty"
    empty.mkdir()

    def gpuprov(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [environment / "bin" / "gpuprov", *arguments],
            cwd=empty,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        )

    assert gpuprov("init").returncode == 0
    assert (empty / "inventory.yml").is_file()
    listed = gpuprov("validate", "--list")
    assert "gpu_burn" in listed.stdout, listed.stderr
    assert "## Bastions" in gpuprov("docs", "connecting").stdout
    # The packed roles are found: an unknown role variable is told from a known one.
    refused = gpuprov("plan", "--set", "nvidia_driver_versoin=1")
    assert "nvidia_driver_version" in refused.stderr, refused.stderr
