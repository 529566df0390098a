"""Run folders: loss of at most the last record, no access for other users, refusal of newer formats."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from provision import paths
from provision.errors import RunFolderError
from provision.node_names import file_name
from provision.runs import store
from provision.runs.store import HISTORY, RunFolder, latest

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(paths.PACKAGE.parent)}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create("up", {}, tmp_path)


def test_what_is_appended_is_read_back_in_order(run: RunFolder) -> None:
    run.append("facts", {"node": "a", "n": 1})
    run.append("facts", {"node": "ü", "n": 2})
    assert list(run.read("facts")) == [{"node": "a", "n": 1}, {"node": "ü", "n": 2}]
    assert list(run.read("never-written")) == []


def test_many_records_are_appended_as_one_by_one(run: RunFolder) -> None:
    records = [{"n": n, "token": "x"} for n in range(3)]
    run.append_all("at-once", records)
    run.append_all("at-once", [])
    for record in records:
        run.append("in-turn", record)
    assert (run.path / "at-once.jsonl").read_text() == (run.path / "in-turn.jsonl").read_text()
    places = [place for place, _ in run.placed("at-once")]
    assert [run.record_at("at-once", place)["n"] for place in reversed(places)] == [2, 1, 0]


def test_only_the_owner_can_read_a_run(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run = RunFolder.create("up", {}, tmp_path / "runs")
        run.append("events", {"a": 1})
        run.write("raw/n/x.json", "{}")
        run.finish(0)
    finally:
        os.umask(before)
    for path in (tmp_path / "runs").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_the_folders_name_says_when_and_what_and_two_never_share_one(tmp_path: Path) -> None:
    made = [RunFolder.create("up", {}, tmp_path).path for _ in range(20)]
    assert len(set(made)) == 20
    assert sorted(made) == made
    assert all(path.name.endswith("Z-up") for path in made)


def rows(runs: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (runs / HISTORY).read_text(encoding="utf-8").splitlines()]


def test_finishing_is_noted_and_makes_one_row_of_history(tmp_path: Path) -> None:
    run = RunFolder.create("up", {"full": True}, tmp_path)
    assert run.meta()["finished"] is None
    assert run.meta()["arguments"] == {"full": True}
    run.note(inventory="/etc/fleet.yml")
    run.finish(3)
    assert RunFolder.open(run.path).meta()["exit_code"] == 3
    (row,) = rows(tmp_path)
    assert (row["run"], row["verb"], row["exit_code"]) == (run.path.name, "up", 3)
    assert row["inventory"] == "/etc/fleet.yml"


def test_the_latest_run_is_found_by_verb(tmp_path: Path) -> None:
    first = RunFolder.create("up", {}, tmp_path)
    second = RunFolder.create("validate", {}, tmp_path)
    assert latest(runs=tmp_path).path == second.path
    assert latest("up", tmp_path).path == first.path
    with pytest.raises(RunFolderError, match="no drift run"):
        latest("drift", tmp_path)


def test_runs_are_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "here"))
    assert RunFolder.create("up", {}).path.parent == tmp_path / "here"
    monkeypatch.delenv("GPUPROV_RUNS")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert RunFolder.create("up", {}).path.parent == tmp_path / "state" / "gpuprov" / "runs"


def test_a_newer_format_is_refused_politely(run: RunFolder) -> None:
    run.note(format=store.FORMAT + 1)
    with pytest.raises(RunFolderError, match="newer gpuprov") as caught:
        RunFolder.open(run.path)
    assert "upgrade" in caught.value.fix


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"verb": "up"}', "[" * 5_000])
def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunFolderError):
        RunFolder.open(tmp_path)
    with pytest.raises(RunFolderError, match=r"no run\.json"):
        RunFolder.open(tmp_path / "elsewhere")


def test_a_runs_folder_that_cannot_be_made_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError) as caught:
        RunFolder.create("up", {}, tmp_path / "file" / "runs")
    assert "GPUPROV_RUNS" in caught.value.fix


def test_a_last_line_cut_by_a_kill_is_passed_over_and_never_joined_to_the_next(run: RunFolder) -> None:
    run.append("events", {"n": 1})
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"n": 2, "text": "cut he')
    assert list(run.read("events")) == [{"n": 1}]
    run.append("events", {"n": 3})
    assert list(run.read("events")) == [{"n": 1}, {"n": 3}]


def test_a_cut_line_longer_than_a_block_is_dropped_too(run: RunFolder) -> None:
    run.append("events", {"n": 1})
    with (run.path / "events.jsonl").open("a") as file:
        file.write("x" * 200_000)
    run.append("events", {"n": 2})
    assert list(run.read("events")) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("strange", ["garbage", "[" * 5_000])
def test_a_broken_line_in_the_middle_is_not_passed_over(run: RunFolder, strange: str) -> None:
    (run.path / "events.jsonl").write_text(f'{{"n": 1}}\n{strange}\n{{"n": 3}}\n')
    with pytest.raises(RunFolderError, match=r"events\.jsonl:2"):
        list(run.read("events"))


KILLED = """
import sys
from pathlib import Path
from provision.runs.store import RunFolder
run = RunFolder.create("up", {}, Path(sys.argv[1]))
n = 0
while True:
    run.append("events", {"n": n, "text": "x" * 500})
    n += 1
    if n == 200:
        print("go", flush=True)
"""


def test_a_kill_costs_at_most_the_record_being_written(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
    run = latest("up", tmp_path)
    numbers = [record["n"] for record in run.read("events")]
    assert len(numbers) >= 200
    assert numbers == list(range(len(numbers)))
    assert run.meta()["finished"] is None


APPENDING = """
import sys
from pathlib import Path
from provision.runs.store import RunFolder
for _ in range(50):
    RunFolder.create("up", {}, Path(sys.argv[1])).finish(0)
"""


def test_controllers_side_by_side_keep_the_history_whole(tmp_path: Path) -> None:
    command = [sys.executable, "-c", APPENDING, str(tmp_path)]
    processes = [subprocess.Popen(command, env=ENVIRONMENT) for _ in range(3)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]
    assert len({row["run"] for row in rows(tmp_path)}) == 150


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "raw/../../x", ""])
def test_nothing_is_written_outside_the_folder(run: RunFolder, name: str) -> None:
    with pytest.raises(ValueError, match="inside a run folder"):
        run.write(name, "x")


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "../../etc/passwd", "a\x00b", "ü" * 200, "-x", "a b", "%2F"]
)
def test_a_nodes_name_is_always_one_harmless_file_name(run: RunFolder, name: str) -> None:
    quoted = file_name(name)
    assert quoted not in ("", ".", "..")
    assert not quoted.startswith(".")
    assert "/" not in quoted
    path = run.write(f"raw/{quoted}/check.json", "{}")
    assert path.parent.parent == run.path / "raw"


def test_different_nodes_have_different_file_names() -> None:
    names = ["a/b", "a%2Fb", "a", "A", ".", "%2E", "x" * 300, "x" * 301]
    assert len({file_name(name) for name in names}) == len(names)
    assert file_name("gpu-01.rack_2") == "gpu-01.rack_2"


def test_values_of_keys_named_like_secrets_are_not_written(tmp_path: Path) -> None:
    run = RunFolder.create("up", {"set": {"ansible_become_password": "hunter2"}}, tmp_path)
    run.append("events", {"deep": [{"api_token": "hunter2"}], "fine": 1})
    run.write_json("plan.json", {"n": {"registry_secret": "hunter2"}})
    assert not [path for path in run.path.rglob("*") if path.is_file() and "hunter2" in path.read_text()]
    assert next(iter(run.read("events")))["fine"] == 1


def test_a_file_is_replaced_whole(run: RunFolder) -> None:
    run.write("report.json", json.dumps({"n": 1}))
    path = run.write("report.json", json.dumps({"n": 2}))
    assert json.loads(path.read_text()) == {"n": 2}
    assert sorted(p.name for p in run.path.iterdir()) == ["report.json", "run.json"]
