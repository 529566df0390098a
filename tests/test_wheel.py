"""The built wheels are complete, gpuprov's has nothing of the lab, and both run from an empty folder."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def built(project: Path, folder: Path) -> Path:
    """Build and return the wheel of the project in that folder."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(project)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel_of_the_lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ROOT / "lab", tmp_path_factory.mktemp("lab"))


def below(*parts: str) -> set[str]:
    """Return the files that git tracks below a folder, which must be in the wheel."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", *parts], check=True, capture_output=True, text=True, timeout=60
    )
    return set(listed.stdout.split())


def test_everything_a_run_needs_is_inside(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert "provision/py.typed" in inside  # without this file mypy ignores the types of an installed gpuprov
    assert below("provision") <= inside
    packed = below("playbooks", "roles", "docs", "README.md", "CHANGELOG.md")
    assert {f"provision/_packed/{name}" for name in packed} <= inside


def test_nothing_of_the_lab_is_inside(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    of_the_lab = {path.name for path in (ROOT / "lab/gpuprov_lab/silicon").iterdir()} - {"__pycache__"}
    assert {"nvidia_smi", "gpu_burn.py", "run.py"} <= of_the_lab
    assert [
        name for name in archive.namelist() if re.search(r"(^|/)(gpuprov_lab|lab|silicon)(/|$)", name)
    ] == []
    (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    assert "Requires-Dist: gpuprov-lab; extra == 'lab'" in archive.read(metadata).decode()


def test_everything_a_lab_needs_is_inside(wheel_of_the_lab: Path) -> None:
    inside = set(zipfile.ZipFile(wheel_of_the_lab).namelist())
    needed = {name.removeprefix("lab/") for name in below("lab/gpuprov_lab")}
    assert {"gpuprov_lab/py.typed", "gpuprov_lab/fixtures/driver.yml"} < needed <= inside
    assert {name.partition("/")[0] for name in inside if ".dist-info/" not in name} == {"gpuprov_lab"}
    (license_,) = (name for name in inside if name.endswith(".dist-info/licenses/LICENSE"))
    assert zipfile.ZipFile(wheel_of_the_lab).read(license_) == (ROOT / "LICENSE").read_bytes()


@pytest.mark.timeout(400)
def test_it_runs_from_an_empty_folder_in_a_new_environment(
    wheel: Path, wheel_of_the_lab: Path, tmp_path: Path
) -> None:
    environment = tmp_path / "env"
    venv.create(environment, with_pip=True)
    python = str(environment / "bin" / "python")
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*install, str(wheel)], check=True, timeout=360)
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
    listed = gpuprov("docs", "checks")
    assert "gpu_burn" in listed.stdout, listed.stderr
    assert "## Bastions" in gpuprov("docs", "connecting").stdout
    # The packed roles are found: a misspelt role variable gets the known one as a suggestion.
    refused = gpuprov("plan", "--set", "nvidia_driver_versoin=1")
    assert "nvidia_driver_version" in refused.stderr, refused.stderr

    assert gpuprov("--help").returncode == 0
    without = gpuprov("lab", "up", "--nodes", "3")
    assert (without.returncode, without.stderr.splitlines()) == (
        1,
        [
            "gpuprov: gpuprov lab comes with gpuprov-lab, which is not installed",
            "  → in a checkout of gpuprov: pip install ./lab",
        ],
    )
    assert gpuprov("--print-completion", "bash").returncode == 0
    places = ["--no-index", "--find-links", str(wheel.parent), "--find-links", str(wheel_of_the_lab.parent)]
    subprocess.run([*install, *places, "gpuprov[lab]"], check=True, timeout=100)
    assert "burn_errors" in gpuprov("lab", "faults").stdout
    program = (
        "import sys, pathlib\n"
        "from gpuprov_lab import packages, places, replica\n"
        "assert len(packages.read_packages(places.PACKAGES, '6.12')['cuda']) > 50\n"
        "replica.make(pathlib.Path(sys.argv[1]), 'h100-sxm', '580.126.09')\n"
    )
    subprocess.run([python, "-c", program, tmp_path / "machine"], check=True, timeout=100)
    assert (tmp_path / "machine/state/state.json").is_file()

    # Deleting a checkout leaves an entry point without its module.
    (module,) = environment.glob("lib/python3*/site-packages/gpuprov_lab")
    module.rename(tmp_path / "gone")
    damaged = gpuprov("lab", "status")
    assert (damaged.returncode, damaged.stderr.splitlines()) == (
        1,
        [
            "gpuprov: gpuprov-lab is damaged: No module named 'gpuprov_lab'",
            "  → install it again, in a checkout of gpuprov: pip install ./lab",
        ],
    )
