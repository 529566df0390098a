"""Rejudging a stored run: exactly the nodes with a changed verdict are listed, each with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.checks import check
from provision.checks.health import FleetHealth, NodeHealth
from provision.checks.judge import Verdict
from provision.errors import ExitCode, RunFolderError
from provision.report.diff import diff
from provision.runs.store import RunFolder
from provision.validate import campaign
from tests.support.stored import FIXTURE, limits, measured, slower


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """Store a run of three nodes: host copies as recorded, 3 % slower and 6 % slower."""
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    healthy = FIXTURE.read_text(encoding="utf-8")
    shares = {"gpu-01": 1.0, "gpu-02": 0.97, "gpu-03": 0.94}
    return measured(tmp_path / "runs", {node: slower(healthy, factor) for node, factor in shares.items()})


def lowest(run: RunFolder, node: str) -> float:
    found = next(one for one in campaign.rejudge(run).nodes if one.node == node)
    return min(float(m.value) for m in found.checks[0].measurements if m.metric == "h2d")


def test_a_tightened_threshold_lists_exactly_the_nodes_it_fails(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = (lowest(run, f"gpu-0{i}") for i in (1, 2, 3))
    assert first > second > third > 48
    for value, failing in (
        (third - 0.1, []),
        ((second + third) / 2, ["gpu-03"]),
        (first - 0.01, ["gpu-02", "gpu-03"]),
    ):
        file = limits(tmp_path / "ours.yml", round(value, 3))
        code = cli.main(["report", "--rejudge", "--thresholds", file, "--changes", "--json"])
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert code == (ExitCode.UNHEALTHY if failing else ExitCode.OK)
        assert [node["node"] for node in said["nodes"]] == failing
        assert said == json.loads((run.path / "rejudged" / "changes.json").read_text())
        for node in said["nodes"]:
            assert (node["was"], node["now"]) == ("pass", "fail")
            assert node["findings"]
            for finding in node["findings"]:
                named = (finding["check"], finding["metric"], finding["now"])
                assert named == ("p2p_bandwidth", "h2d", "fail")
                assert finding["limit_was"] == "≥ 48 GB/s"
                assert finding["limit_now"] == f"≥ {value:g} GB/s"
                assert finding["value"] < value


def test_a_person_reads_node_check_metric_and_both_limits(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = limits(tmp_path / "ours.yml", round((lowest(run, "gpu-02") + lowest(run, "gpu-03")) / 2, 1))
    cli.main(["report", "--rejudge", "--thresholds", file, "--changes"])
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "gpu-03: pass → fail"
    assert all(line.startswith("gpu-03 ") for line in told[1:])
    assert "p2p_bandwidth h2d" in told[1]
    assert "limit ≥ 48 GB/s → ≥ " in told[1]
    cli.main(["report", "--rejudge", "--changes"])
    assert capsys.readouterr().out == "no verdict changed\n"


def test_no_node_and_no_file_of_the_run_is_touched(run: RunFolder, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    cli.main(["report", "--rejudge", "--thresholds", limits(tmp_path / "ours.yml", 60)])
    assert all(path.read_bytes() == text for path, text in before.items())


def test_changes_need_something_to_compare(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--changes"]) == ExitCode.USAGE
    (run.path / "report.json").unlink()
    assert cli.main(["report", "--rejudge", "--changes"]) == ExitCode.ERROR
    assert "no earlier report" in capsys.readouterr().err


def test_nodes_that_come_and_go_are_told() -> None:
    def fleet(*nodes: NodeHealth) -> FleetHealth:
        return FleetHealth("r", "0", "", "", "", (), nodes)

    found = diff(
        fleet(NodeHealth("a", Verdict.PASS, ()), NodeHealth("b", Verdict.PASS, ())),
        fleet(NodeHealth("b", Verdict.PASS, ()), NodeHealth("c", Verdict.FAIL, ())),
    )
    assert [(one.node, one.was, one.now) for one in found.verdicts] == [
        ("c", "not in the report", "fail"),
        ("a", "pass", "not in the report"),
    ]


@pytest.mark.parametrize(
    "damaged",
    [
        '{"format": 1, "outputs": [',
        "",
        '{"format": 1}',
        "\0\0\0",
        '{"format": 1, "outputs": [{"name": "nvbandwidth", "argv": [], "rc": 0, "stdout": null, "stderr": "",'
        '"seconds": 1}]}',
    ],
)
def test_a_damaged_file_costs_one_check_of_one_node(damaged: str, run: RunFolder) -> None:
    file = run.path / check.raw_path("gpu-02", "p2p_bandwidth")
    file.write_text(damaged)
    code = cli.main(["report", "--rejudge", "--format", "json,html"])
    assert code == ExitCode.INCOMPLETE
    health = json.loads((run.path / "rejudged" / "report.json").read_text())
    verdicts = {one["node"]: [check["verdict"] for check in one["checks"]] for one in health["nodes"]}
    assert verdicts == {"gpu-01": ["pass"], "gpu-02": ["error"], "gpu-03": ["pass"]}
    (finding,) = health["nodes"][1]["checks"][0]["findings"]
    assert finding["message"].startswith(f"{file} is damaged: ")


def test_a_file_of_a_newer_gpuprov_is_not_guessed_at(run: RunFolder) -> None:
    (run.path / check.raw_path("gpu-02", "p2p_bandwidth")).write_text('{"format": 2, "outputs": []}')
    with pytest.raises(RunFolderError, match="written by a newer gpuprov"):
        campaign.rejudge(run)
