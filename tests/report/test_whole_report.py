"""gpuprov report: a stored run rendered or rejudged from its stored data, without contacting a node."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from provision import cli, report
from provision.checks import check
from provision.checks.check import Output
from provision.checks.health import from_json
from provision.checks.judging.node_facts import NodeFacts
from provision.errors import ExitCode
from provision.report.terminal import summary
from provision.runs import store
from provision.runs.store import RunFolder
from provision.validate import campaign
from tests.support.stored import GPU

FIXTURES = Path(__file__).parents[1] / "fixtures" / "p2p_bandwidth"
STRICT = {
    "sku": "h100-sxm",
    "thresholds": {
        "p2p_bandwidth.p2p_write": {
            "limit": 440, "unit": "GB/s", "direction": "at_least", "kind": "measured",
            "source": "our own fleet",
        }
    },
}  # fmt: skip


def make_run(runs: Path, printed: dict[str, str]) -> RunFolder:
    """Store a validate run of one check: node → fixture with nvbandwidth's output."""
    folder = RunFolder.create("validate", {}, runs=runs)
    folder.note(inventory="inventory.yml", asked=["p2p_bandwidth"])
    for node, fixture in printed.items():
        folder.append("facts", asdict(NodeFacts(node, {}, {"gpu": GPU}, {})))
        text = (FIXTURES / fixture).read_text(encoding="utf-8")
        output = Output("nvbandwidth", ("nvbandwidth",), 0, text, "", 9.0)
        store.keep_raw(folder, check.Raw(node, "p2p_bandwidth", (output,), 9.0))
    report.write_all(campaign.rejudge(folder), folder, ["json"])
    return folder


@pytest.fixture
def run(runs: Path) -> RunFolder:
    return make_run(runs, {"gpu-01": "healthy.json", "gpu-02": "slow-pair-2-6.json"})


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("report.*")}


def test_the_newest_run_is_rendered_in_all_formats_and_the_exit_code_is_its_health(
    run: RunFolder, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder.create("drift", {}, runs=runs)  # newer, but without a health result
    assert cli.main(["report"]) == ExitCode.UNHEALTHY
    assert names(run.path) == {"report.json", "report.html", "report.md", "report.junit.xml"}
    assert (run.path / "nodes.exclude").read_text() == "gpu-02\n"
    told = capsys.readouterr().out
    assert told.startswith("1 of 2 nodes unhealthy, 1 healthy\n")
    assert "gpu2-gpu6" in told
    assert str(run.path / "report.html") in told
    assert "judged again" not in told


@pytest.mark.parametrize("how", ["folder", "name", "file", "runs"])
def test_a_run_may_be_named_in_several_ways(
    how: str, run: RunFolder, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(runs, {"gpu-09": "healthy.json"})
    named = {
        "folder": [str(run.path)],
        "name": [run.path.name],
        "file": [str(run.path / "report.json")],
        "runs": [run.path.name, "--runs", str(runs)],
    }[how]
    if how == "runs":
        monkeypatch.delenv("GPUPROV_RUNS")
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    assert (
        cli.main(["report", *named, "--format", "md", "--output", str(tmp_path / "out")])
        == ExitCode.UNHEALTHY
    )
    assert names(tmp_path / "out") == {"report.md"}
    assert "gpu-02" in (tmp_path / "out" / "report.md").read_text()
    assert names(run.path) == {"report.json"}


def test_json_prints_the_report_and_nothing_else(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["report", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((run.path / "report.json").read_text())


def test_judging_again_under_other_limits_says_whose_verdict_changed(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = tmp_path / "strict.yml"
    limits.write_text(json.dumps(STRICT))  # JSON is YAML
    before = (run.path / "report.json").read_text()
    assert cli.main(["report", "--rejudge", "--thresholds", str(limits)]) == ExitCode.UNHEALTHY
    told = capsys.readouterr().out
    assert "judged again:\n  gpu-01: pass → fail\n" in told
    assert "our own fleet" in (run.path / "rejudged" / "report.html").read_text()
    assert (run.path / "report.json").read_text() == before
    assert cli.main(["report", "--rejudge"]) == ExitCode.UNHEALTHY
    assert "judged again:\n  no verdict changed\n" in capsys.readouterr().out


def test_changes_go_to_stderr_when_a_program_reads(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = tmp_path / "strict.yml"
    limits.write_text(json.dumps(STRICT))
    cli.main(["report", str(run.path), "--rejudge", "--thresholds", str(limits), "--json"])
    said = capsys.readouterr()
    assert {node["verdict"] for node in json.loads(said.out)["nodes"]} == {"fail"}
    assert said.err == "gpu-01: pass → fail\n"


def test_a_run_cut_off_before_its_report_can_be_judged_from_what_it_kept(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    (run.path / "report.json").unlink()
    assert cli.main(["report"]) == ExitCode.ERROR
    assert "--rejudge" in capsys.readouterr().err
    assert cli.main(["report", "--rejudge"]) == ExitCode.UNHEALTHY
    assert "no earlier report" in capsys.readouterr().out


def test_healthy_is_0_and_not_measured_is_5(runs: Path) -> None:
    make_run(runs, {"gpu-01": "healthy.json"})
    assert cli.main(["report"]) == ExitCode.OK
    make_run(runs, {"gpu-01": "error-in-case.json"})
    assert cli.main(["report"]) == ExitCode.INCOMPLETE


def spoil(path: Path, **fields: Any) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, **fields}))


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [
        ("no runs", "no validate run in"),
        ("wrong name", "did you mean"),
        ("garbage", "report.json cannot be read"),
        ("not a report", "report.json: not a health report"),
        ("newer report", "format 99"),
        ("newer run", "newer gpuprov"),
        ("run of up", "a run of `up`"),
        ("empty folder", "is not a run folder"),
    ],
)
def test_what_cannot_be_reported_is_a_clear_line(
    spoiled: str, said: str, run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {
        "no runs": ["--runs", str(tmp_path / "none")],
        "wrong name": [run.path.name.replace("validate", "validat")],
        "empty folder": [str(tmp_path)],
    }.get(spoiled, [])
    if spoiled == "garbage":
        (run.path / "report.json").write_text("{cut")
    elif spoiled == "not a report":
        (run.path / "report.json").write_text('{"format": 1, "nodes": [3]}')
    elif spoiled == "newer report":
        spoil(run.path / "report.json", format=99)
    elif spoiled == "newer run":
        spoil(run.path / "run.json", format=99)
    elif spoiled == "run of up":
        spoil(run.path / "run.json", verb="up")
        arguments = [str(run.path)]
    assert cli.main(["report", *arguments]) == ExitCode.ERROR
    complaint = capsys.readouterr().err
    assert said in complaint
    assert "Traceback" not in complaint
    assert "\n  → " in complaint


@pytest.mark.parametrize("arguments", [["--thresholds", "x.yml"], ["--format", "docx"], ["--format", ""]])
def test_a_wrong_command_line_is_exit_2(run: RunFolder, arguments: list[str]) -> None:
    try:
        code = cli.main(["report", str(run.path), *arguments])
    except SystemExit as stopped:  # raised by argparse
        code = int(str(stopped.code))
    assert code == ExitCode.USAGE


def test_the_summary_of_a_judged_run_names_only_the_slow_pair(run: RunFolder) -> None:
    told = summary(from_json(json.loads((run.path / "report.json").read_text())))
    assert "gpu-02 gpu2-gpu6" in told
    assert "✗ FAIL" in told
    assert "gpu-01" not in told
