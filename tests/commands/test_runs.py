"""gpuprov runs: the stored runs and their outcomes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from provision import cli
from provision.errors import ExitCode
from provision.runs.store import RunFolder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["runs", *words]) == ExitCode.OK
    return capsys.readouterr().out


def test_what_was_run_is_listed_newest_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = RunFolder.create("validate", {"nodes": ["gpu-01", "gpu-02"]})
    done.note(inventory="/srv/fleet.yml", counts={"pass": 1, "fail": 1, "warn": 0})
    done.finish(ExitCode.UNHEALTHY)
    under_way = RunFolder.create("up", {})
    time.sleep(0.002)  # within the same millisecond, runs are sorted by verb
    damaged = RunFolder.create("drift", {})
    (damaged.path / "run.json").write_text("{")
    lines = printed(capsys).splitlines()
    assert lines[0].startswith(f"{damaged.path.name}  ")
    assert "run.json cannot be read" in lines[0]
    assert lines[1:] == [
        f"{under_way.path.name}  no exit code",
        f"{done.path.name}  exit 3  2 nodes  1 pass, 1 fail  /srv/fleet.yml",
    ]
    assert printed(capsys, "list", "--runs", str(home)).splitlines() == lines
    rows = json.loads(printed(capsys, "--json"))["runs"]
    assert [(row["run"], row["verb"]) for row in rows] == [
        (folder.path.name, verb)
        for folder, verb in ((damaged, "drift"), (under_way, "up"), (done, "validate"))
    ]
    assert rows[2]["counts"] == {"pass": 1, "fail": 1, "warn": 0}
    assert (rows[2]["nodes"], rows[2]["exit_code"], rows[1]["exit_code"]) == (2, 3, None)


def test_a_list_that_is_long_says_how_much_of_it_is_not_shown(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys) == f"there is no run in {home}\n"
    for _ in range(23):
        RunFolder.create("drift", {})
    assert printed(capsys).splitlines()[20:] == ["… and 3 more; --json has all"]
    assert len(json.loads(printed(capsys, "--json"))["runs"]) == 23


@pytest.mark.usefixtures("home")
def test_what_a_run_folder_says_cannot_write_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder.create("up", {})
    run.note(inventory="\x1b[2Jforged", nodes={"not": "a list"}, counts=["odd"])
    assert "\x1b" not in printed(capsys)
