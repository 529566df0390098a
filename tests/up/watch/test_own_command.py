"""Processes that the watch and `return` start: real checks, from a folder that other users can write to."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from provision import paths
from provision.api.apart import Apart
from provision.api.source import Source
from provision.api.spare_checks import SpareChecks
from provision.commands import return_
from provision.errors import ExitCode
from provision.up.watch.incidents import new
from tests.support.processes import until

HOSTILE = "import os, sys\nopen(os.environ['RAN'], 'a').write(__name__ + chr(10))\nsys.exit(0)\n"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fill the current folder with modules named like ours and others'; return the file that they write."""
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
    """Also, neither a node that does not answer nor a missing inventory counts against the spare."""
    path = tmp_path / "nodes.yml"
    path.write_text(
        "gpu_nodes: {hosts: {gpu-01: {ansible_host: 127.0.0.1, ansible_port: 1, ansible_user: nobody}}}\n"
    )
    checks = SpareChecks(Source(inventories=(path,)), 100, tmp_path)
    checked = checks.verify("gpu-01")
    assert not hostile.exists(), hostile.read_text()
    assert (checked.passed, checked.again, checked.elsewhere) == (False, True, True)
    assert checked.run, "the run is there to look at"
    assert "127.0.0.1" in checked.why or "refused" in checked.why, checked.why
    path.unlink()
    checked = checks.verify("gpu-01")
    assert (checked.passed, checked.again, checked.elsewhere) == (False, True, False)
    assert "nodes.yml" in checked.why
    assert not hostile.exists(), hostile.read_text()


def test_variables_and_passwords_of_the_command_line_reach_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    path = tmp_path / "nodes.yml"
    path.write_text("gpu_nodes: {hosts: {gpu-01: {ansible_host: 127.0.0.1, ansible_user: nobody}}}\n")
    source = Source(inventories=(path,), variables={"ansible_port": 1}, become_password="{{ no }}")
    checked = SpareChecks(source, 100, tmp_path).verify("gpu-01")
    assert "become_password: a password with {{" in checked.why
    checked = SpareChecks(replace(source, become_password="sesame"), 100, tmp_path).verify("gpu-01")
    assert "127.0.0.1:1 refused the connection" in checked.why
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"sesame" not in kept


def test_evidence_of_a_node_is_packed_without_the_names_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    path = tmp_path / "nodes.yml"
    path.write_text("gpu_nodes: {hosts: {gpu-01: {ansible_host: 127.0.0.1, ansible_port: 1}, gpu-02: {}}}\n")
    checks = SpareChecks(Source(inventories=(path,)), 100, tmp_path)
    assert checks.evidence(new("gpu-01", 1_800_000_000.0, "Xid 79")) == ""
    (archive,) = (tmp_path / "bundles").glob("gpuprov-gpu-01-*.tar.gz")
    with tarfile.open(archive) as packed:
        texts = [file.read() for one in packed if (file := packed.extractfile(one))]
    assert texts
    assert not [text for text in texts if b"gpu-02" in text]
    assert "nothing in the inventory is called 'gpu-77'" in checks.evidence(
        new("gpu-77", 1_800_000_000.0, "Xid 79")
    )


@pytest.mark.parametrize(
    ("part", "code"), [("validate", ExitCode.INCOMPLETE), ("burnin", ExitCode.INCOMPLETE)]
)
def test_return_reads_the_inventory_and_calls_each_part(
    hostile: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], part: str, code: ExitCode
) -> None:
    path = tmp_path / "nodes.yml"
    source = Source(inventories=(path,), nodes="gpu-01", variables={"ansible_port": 1})
    assert return_._part(part, source, "smoke") == ExitCode.ERROR
    assert re.search(r"^gpuprov: .*nodes\.yml.*\n  → ", capfd.readouterr().err, re.MULTILINE)
    path.write_text("gpu_nodes: {hosts: {gpu-01: {ansible_host: 127.0.0.1}}}\n")
    assert return_._part(part, source, "smoke") == code
    assert "127.0.0.1:1 refused the connection" in "".join(capfd.readouterr())
    assert not hostile.exists(), hostile.read_text()


def test_a_check_that_does_not_end_says_nothing_of_the_spare(tmp_path: Path) -> None:
    checked = SpareChecks(Source(inventories=(tmp_path / "nodes.yml",)), 0.2, tmp_path).verify("gpu-01")
    assert (checked.passed, checked.again, checked.elsewhere) == (False, True, True)
    assert checked.why == "the check did not end within 0.2 s"


ENDS_IN_ORDER = """\
import json, signal, sys, time
def end(*_):
    print(json.dumps({"found": {"run": "/runs/a-run", "code": 130, "why": "interrupted"}}))
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print(" ", flush=True)
time.sleep(60)
"""


def test_what_a_check_found_by_its_deadline_is_known(tmp_path: Path) -> None:
    apart = Apart([sys.executable, "-P", "-c", ENDS_IN_ORDER])
    checked = SpareChecks(Source(), 3.0, tmp_path, apart).verify("gpu-01")
    assert (checked.passed, checked.again, checked.run) == (False, True, "a-run")
    assert checked.why == "the check did not end within 3 s"


def test_a_watch_that_stops_ends_all_its_checks_and_begins_no_other(tmp_path: Path) -> None:
    apart = Apart([sys.executable, "-P", "-c", ENDS_IN_ORDER])
    checks = SpareChecks(Source(), 60, tmp_path, apart)
    with ThreadPoolExecutor(3) as pool:
        began = time.monotonic()
        found = [pool.submit(checks.verify, f"gpu-0{number}") for number in range(3)]
        until(lambda: len(apart._running) == 3, 20)
        time.sleep(1.0)
        checks.stop()
        answers = [one.result(20) for one in found]
    assert time.monotonic() - began < 30
    assert [(one.passed, one.again, one.why) for one in answers] == [
        (False, True, "this watch was stopped")
    ] * 3
    assert not apart._running
    assert checks.verify("gpu-04").why == "this watch was stopped"
    assert not apart._running


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (["{folder}/no-such-program"], "no process could be started: No such file or directory"),
        (["sh", "-c", "kill -9 $$"], "its process ended with status -9, and told nothing"),
        (["sh", "-c", "echo [1]"], "its process ended with status 0, and told nothing"),
    ],
)
def test_a_process_that_cannot_start_or_dies_says_nothing_of_the_spare(
    tmp_path: Path, program: list[str], why: str
) -> None:
    """Out of memory or file descriptors, each round of the watch used to fail before its heartbeat."""
    apart = Apart([word.format(folder=tmp_path) for word in program])
    checked = SpareChecks(Source(), 10, tmp_path, apart).verify("gpu-01")
    assert (checked.passed, checked.again, checked.elsewhere) == (False, True, False)
    assert checked.why == why


def test_every_python_that_we_start_leaves_the_current_folder_out() -> None:
    """`-m`, `-c` and `-` put the current folder first on the module path, unless -P or -I precedes them."""
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
