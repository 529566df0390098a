"""gpuprov report history: its text and its JSON over all runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provision.checks.health import CheckResult, FleetHealth, GpuIdentity, NodeHealth
from provision.checks.judge import Finding, Verdict
from provision.cli import main
from provision.runs import node_history
from provision.runs.store import RunFolder

FAIL, PASS = Verdict.FAIL, Verdict.PASS


def node(name: str, verdict: Verdict) -> NodeHealth:
    finding = Finding(
        "gpu_burn", verdict, "gpu3", "says so", "rate", action="none" if verdict is PASS else "replace part"
    )
    result = CheckResult("gpu_burn", verdict, (finding,), (), 1.0)
    return NodeHealth(name, verdict, (result,), (GpuIdentity(3, "H100", "", f"GPU-{name}-3", ""),))


def run(home: Path, number: int, *nodes: NodeHealth) -> None:
    name, started = f"20260501T{number:06d}.000Z-validate", f"2026-05-01T00:00:{number:02d}Z"
    (home / name).mkdir()
    health = FleetHealth(name, "0.1.0", "one.yml", started, started, ("gpu_burn",), nodes)
    node_history.record(RunFolder(home / name), {}, health)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path))
    run(tmp_path, 1, node("gpu-01", PASS), node("gpu-02", FAIL), node("gpu-03", PASS))
    run(tmp_path, 2, node("gpu-01", PASS), node("gpu-02", PASS), node("gpu-03", FAIL))
    run(tmp_path, 3, node("gpu-01", PASS), node("gpu-02", FAIL))
    return tmp_path


@pytest.mark.usefixtures("home")
def test_all_nodes_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "history"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "last verdict of 3 nodes:",
        "  fail       2  gpu-[02-03]",
        "  pass       1  gpu-01",
        "verdict changed from run to run:",
        "  gpu-02: 2 times",
        "  gpu-03: 1 time",
        "repeated faults:",
        "  gpu-02 GPU-gpu-02-3 gpu_burn.rate: came 2 times in the last 3 runs",
    ]


def test_one_node_for_a_person(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "history", "gpu-02", "--runs", str(home)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "gpu-02: 3 runs, newest first",
        "fail   2026-05-01 00:00:03 UTC  20260501T000003.000Z-validate",
        "pass   2026-05-01 00:00:02 UTC  20260501T000002.000Z-validate",
        "fail   2026-05-01 00:00:01 UTC  20260501T000001.000Z-validate",
        "the verdict changed 2 times",
        "repeated fault: GPU-gpu-02-3 gpu_burn.rate: came 2 times in the last 3 runs",
    ]


@pytest.mark.usefixtures("home")
def test_for_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "history", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["flips"] == {"gpu-02": 2, "gpu-03": 1}
    assert document["nodes"]["gpu-03"]["run"] == "20260501T000002.000Z-validate"
    assert main(["report", "history", "gpu-01", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["verdict"] for one in document["runs"]] == ["pass"] * 3


@pytest.mark.usefixtures("home")
def test_what_is_not_known_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["report", "history", "gpu-04"]) == 1
    said = capsys.readouterr().err
    assert "gpu-04: never validated: no run in " in said
    assert "did you mean gpu-0" in said
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "none"))
    assert main(["report", "history"]) == 1
    assert "→ run: gpuprov validate --nodes all" in capsys.readouterr().err


def test_a_run_that_skipped_the_check_neither_measured_nor_changed_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path))
    for number, verdict in enumerate((FAIL, Verdict.SKIP, PASS, Verdict.SKIP, FAIL, Verdict.SKIP), start=1):
        run(tmp_path, number, node("gpu-01", verdict))
    assert main(["report", "history", "gpu-01"]) == 0
    said = capsys.readouterr().out
    assert "gpu-01: 6 runs" in said
    assert "the verdict changed 2 times" in said
    assert "gpu_burn.rate: came 2 times in the last 3 runs" in said
