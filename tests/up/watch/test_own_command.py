"""The runs that the watch and `return` start: real ones, from a folder that somebody else can write to."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from provision import paths
from provision.desired import inventory
from provision.errors import ExitCode
from provision.up.watch.checking import Checking
from provision.up.watch.returning import command, run_here

HOSTILE = "import os, sys\nopen(os.environ['RAN'], 'a').write(__name__ + chr(10))\nsys.exit(0)\n"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with modules that are named as ours and as others'; the file they would write."""
    folder = tmp_path / "cwd"
    (folder / "provision").mkdir(parents=True)
    (folder / "provision" / "__init__.py").write_text("")
    for name in ("provision/cli", "json", "yaml", "argparse", "paramiko", "sitecustomize"):
        (folder / f"{name}.py").write_text(HOSTILE)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    monkeypatch.setenv("PYTHONPATH", f".{os.pathsep}")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    return tmp_path / "ran"


def test_the_folder_is_hostile(hostile: Path) -> None:
    subprocess.run([sys.executable, "-m", "provision.cli"], check=False)
    assert hostile.exists()


def test_nothing_of_the_current_folder_is_imported(hostile: Path, tmp_path: Path) -> None:
    """Nor does a node that does not answer, or an inventory that is gone, say anything of a spare."""
    path = tmp_path / "nodes.yml"
    path.write_text(
        "gpu_nodes: {hosts: {gpu-01: {ansible_host: 127.0.0.1, ansible_port: 1, ansible_user: nobody}}}\n"
    )
    checking = Checking(inventory.load(path), [], 100, tmp_path)
    checked = checking.verify("gpu-01")
    assert not hostile.exists(), hostile.read_text()
    assert (checked.passed, checked.again, checked.elsewhere) == (False, True, True)
    assert checked.run, "the run is there to look at"
    assert "127.0.0.1" in checked.why or "refused" in checked.why, checked.why
    path.unlink()
    checked = checking.verify("gpu-01")
    assert (checked.passed, checked.again, checked.elsewhere) == (False, True, False)
    assert "nodes.yml" in checked.why
    assert not hostile.exists(), hostile.read_text()


def test_return_starts_nothing_of_it(hostile: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_here(command("validate", "/no/nodes.yml", "gpu-01", [], "smoke")) == ExitCode.ERROR
    assert "/no/nodes.yml" in capfd.readouterr().err
    assert not hostile.exists(), hostile.read_text()


def test_a_check_that_does_not_end_says_nothing_of_the_spare(tmp_path: Path) -> None:
    path = tmp_path / "nodes.yml"
    path.write_text("gpu_nodes: {hosts: {gpu-01: {ansible_host: 127.0.0.1, ansible_port: 1}}}\n")
    checked = Checking(inventory.load(path), [], 0.2, tmp_path).verify("gpu-01")
    assert (checked.passed, checked.again, checked.elsewhere) == (False, True, True)
    assert checked.why == "the check did not end within 0.2 s"


def test_every_python_that_we_start_leaves_the_current_folder_out() -> None:
    """`-m`, `-c` and `-` put it in front of all others: -P or -I must stand before them."""
    wrong = []
    for path in sorted(paths.PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "sys.executable" in text else ():
            if not isinstance(node, ast.List | ast.Tuple):
                continue
            words = [ast.unparse(element) for element in node.elts]
            if "sys.executable" in words:
                after = " ".join(words[words.index("sys.executable") + 1 :][:2])
                if any(flag in after for flag in ("'-m'", "'-c'", "'-'")) and not any(
                    safe in after for safe in ("'-P'", "'-I'")
                ):
                    wrong.append(f"{path.relative_to(paths.PACKAGE)}:{node.lineno}: {after}")
    assert wrong == []


def test_a_process_that_cannot_be_started_says_nothing_of_the_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory or files left here, each round of the watch ended in an error before its heartbeat."""
    path = tmp_path / "nodes.yml"
    path.write_text("gpu_nodes: {hosts: {gpu-01: {}}}\n")
    monkeypatch.setattr(paths, "own_command", lambda: [str(tmp_path / "no-such-program")])
    checked = Checking(inventory.load(path), [], 1, tmp_path).verify("gpu-01")
    assert (checked.passed, checked.again, checked.elsewhere) == (False, True, False)
    assert checked.why == "no process could be started: No such file or directory"
