"""gpuprov baseline learn: from stored runs to a thresholds file that other commands accept."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from provision import cli
from provision.checks.judge import Verdict
from provision.checks.thresholds import for_sku
from provision.errors import ExitCode
from provision.runs.store import RunFolder
from provision.validate import campaign
from tests.support.stored import FIXTURE, measured


def store(runs: Path, printed: dict[str, str], *, written: bool = True) -> RunFolder:
    texts = {node: (FIXTURE.parent / name).read_text(encoding="utf-8") for node, name in printed.items()}
    return measured(runs, texts, written=written)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


FLEET = {f"gpu-0{i}": "healthy.json" for i in range(1, 6)} | {"gpu-06": "slow-pair-2-6.json"}


@pytest.mark.parametrize("written", [True, False])
def test_what_is_learnt_is_taken_by_rejudge(
    runs: Path, written: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = store(runs, FLEET, written=written)
    assert cli.main(["baseline", "learn"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "p2p_bandwidth.p2p_read" in said
    limits = for_sku("h100-sxm", Path("baseline.yml"))
    assert limits["p2p_bandwidth.h2d"].kind == "measured"
    assert folder.path.name in limits["p2p_bandwidth.h2d"].source
    assert limits["p2p_bandwidth.h2d"].machines == 6
    line = said.split("p2p_bandwidth.h2d")[1].splitlines()[1]
    assert re.fullmatch(
        r"    95 % interval [\d.]+ to [\d.]+; healthy parts failed < 0\.01 %; learnt from 6 nodes; "
        "enough to trust it",
        line,
    )
    judged = campaign.rejudge(folder, Path("baseline.yml"))
    assert {node.node for node in judged.nodes if node.verdict is Verdict.FAIL} == {"gpu-06"}
    findings = [finding for node in judged.nodes for check in node.checks for finding in check.findings]
    sources = [
        one.source for one in findings if "baseline learn" in one.source and one.verdict is Verdict.FAIL
    ]
    assert sources
    assert all(re.search(r"; 6 machines, 20\d\d-\d\d$", source) for source in sources)
    assert cli.main(["report", "--rejudge", "--thresholds", "baseline.yml"]) == ExitCode.UNHEALTHY


def test_several_runs_are_learnt_from_together(runs: Path, tmp_path: Path) -> None:
    half = list(FLEET)
    one = store(runs, {name: FLEET[name] for name in half[:3]})
    other = store(runs, {name: FLEET[name] for name in half[3:]})
    file = tmp_path / "ours.yml"
    assert cli.main(["baseline", "learn", one.path.name, "--file", str(file)]) == ExitCode.ERROR
    assert not file.exists()
    both = ["baseline", "learn", one.path.name, str(other.path), "--file", str(file), "--margin", "20"]
    assert cli.main(both) == ExitCode.OK
    source = for_sku("h100-sxm", file)["p2p_bandwidth.h2d"].source
    assert one.path.name in source
    assert other.path.name in source
    assert "less 20%" in source


def test_a_limit_of_too_few_nodes_says_how_many_make_it_trustworthy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from provision.checks.judging.baseline import Baseline, Sample, learn
    from provision.commands.baseline import _say

    rates = {"gpu-1": 47_000, "gpu-2": 49_500, "gpu-3": 50_500, "gpu-4": 51_000}
    found = [Sample("h100-sxm", "gpu_burn.rate", "r1", node, "gpu0", rate) for node, rate in rates.items()]
    learnt = learn(found, "2026-11")
    certain = learnt.certainty["h100-sxm", "gpu_burn.rate"]
    _say(learnt)
    assert f"learnt from 4 nodes; {certain.enough} make it trustworthy\n" in capsys.readouterr().out
    assert certain.enough > 4
    never = replace(certain, enough=0)
    _say(Baseline(learnt.limits, (), {("h100-sxm", "gpu_burn.rate"): never}))
    assert "learnt from 4 nodes; more than a million make it trustworthy\n" in capsys.readouterr().out


def test_too_few_nodes_are_refused_with_what_it_takes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(runs, {"gpu-01": "healthy.json"})
    assert cli.main(["baseline", "learn"]) == ExitCode.ERROR
    told = capsys.readouterr()
    assert "measured on 1 node, it takes 4" in told.out
    assert "at least 4 nodes" in told.err
    assert cli.main(["baseline", "learn", "no-such-run"]) == ExitCode.ERROR


def test_a_file_that_cannot_be_written_is_named(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(runs, FLEET)
    assert cli.main(["baseline", "learn", "--file", "/no/such/place.yml"]) == ExitCode.ERROR
    assert "/no/such/place.yml cannot be written" in capsys.readouterr().err


@pytest.mark.usefixtures("runs")
def test_the_margin_is_a_percentage() -> None:
    for wrong in ("0", "50", "much"):
        with pytest.raises(SystemExit):
            cli.main(["baseline", "learn", "--margin", wrong])
