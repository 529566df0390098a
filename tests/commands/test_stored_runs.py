"""Runs stored by an older gpuprov can be reported, compared, rejudged and resumed.

fixtures/runs/360de97 holds two runs of that commit on two lab nodes, with gpu_inventory, versions,
host_health, network_ports and p2p_bandwidth, before and after the faults h2d_slow and pcie_width on gpu-02's
GPU 5: the run folders without report.html, the files stored next to them, and the output of that version's
`report`. Only the kernel's name was changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.errors import ExitCode
from provision.runs import node_history
from provision.runs.store import RunFolder
from tests.support.stored import limits

STORED = Path(__file__).parent.parent / "fixtures/runs/360de97"
GOOD, BAD = "20261124T214611.117Z-validate", "20261124T214629.118Z-validate"
BAD_GPU = "GPU-9d10300c-d44e-7c25-047b-c52c777a2497"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # extractall requires a filter in 3.14 but has none in Debian 12's 3.11.2; the command works in both.
    unpack = [sys.executable, "-m", "tarfile", "-e", str(STORED / "runs.tar.xz"), str(tmp_path)]
    subprocess.run(unpack, check=True, timeout=60, capture_output=True)
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path))
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: ExitCode = ExitCode.UNHEALTHY) -> str:
    assert cli.main(["report", *words]) == code
    return capsys.readouterr().out


def expected(name: str) -> Any:
    return json.loads((STORED / name).read_text(encoding="utf-8"))


def found(report: dict[str, Any]) -> dict[str, Any]:
    """Return node and check → verdicts and findings, without the limits' sources, which are longer now."""
    return {
        f"{node['node']} {check['check']}": (
            node["verdict"],
            check["verdict"],
            [{key: value for key, value in one.items() if key != "source"} for one in check["findings"]],
        )
        for node in report["nodes"]
        for check in node["checks"]
    }


@pytest.mark.usefixtures("home")
def test_it_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = printed(capsys, BAD, "--format", "none")
    for line in (
        "1 of 2 nodes unhealthy, 1 healthy",
        "2026-11-24 21:46:11 UTC",  # the time of the run before it
        "PCIe width is 8 lanes (limit ≥ 16 lanes) → reseat or check cable",
        "host to GPU bandwidth is 11.0885 GB/s (limit ≥ 48 GB/s)",
        "gpu-02 gpu5 (serial 1659562678285, 0000:c3:00)",
        "network_ports: no RDMA card, and none is declared",
    ):
        assert line in text
    assert "all 2 nodes healthy" in printed(capsys, GOOD, "--format", "none", code=ExitCode.OK)


def test_every_format_is_written_again(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("nodes.fail", "nodes.pass", "nodes.exclude", "report.json")
    before = [(home / BAD / name).read_text() for name in names]
    printed(capsys, BAD)
    assert [(home / BAD / name).read_text() for name in names] == before
    assert "gpu-02" in (home / BAD / "report.html").read_text()
    assert "- gpu-02: pass → **fail**: " in (home / BAD / "report.md").read_text()


@pytest.mark.usefixtures("home")
def test_it_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(printed(capsys, "compare", GOOD, BAD, "--json")) == expected("compare.json")
    text = printed(capsys, "compare", GOOD, BAD).splitlines()
    for line in (
        "  gpu-02: pass → fail",
        "  gpu-02 p2p_bandwidth h2d gpu5: 55.54 → 11.09 GB/s, -80.0% (noise 2.3%)",
        "  gpu-02 gpu_inventory pcie_width gpu5: 16 → 8 lanes, -50.0% (noise 2.3%)",
    ):
        assert line in text
    earlier = (STORED / "compare.txt").read_text(encoding="utf-8").splitlines()
    assert len(text) == len(earlier) - 2, "the same without its footnote"
    assert "gpu-02: fail → pass" in printed(capsys, "compare", BAD, GOOD, code=ExitCode.OK)
    again = printed(capsys, "compare", GOOD, BAD, "--rejudge", "--json")
    assert json.loads(again) == expected("compare.json")


def test_it_is_bundled_with_the_verdict_of_now(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = limits(tmp_path / "ours.yml", 60)
    words = ("bundle", "gpu-01", GOOD, "--rejudge", "--thresholds", file, "--json")
    packed = json.loads(printed(capsys, *words, code=ExitCode.OK))
    assert Path(packed["bundle"]).parent == home / GOOD
    with tarfile.open(packed["bundle"]) as archive:
        text = b"".join(archive.extractfile(one).read() for one in archive.getmembers())  # type: ignore[union-attr]
    assert "limit ≥ 60 GB/s".encode() in text


def test_it_is_judged_again(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, BAD, "--rejudge", "--changes", "--json")
    assert json.loads(text) == expected("changes.json")
    stored, again = (
        json.loads((home / BAD / name).read_text()) for name in ("report.json", "rejudged/report.json")
    )
    assert found(again) == found(stored)
    file = limits(tmp_path / "ours.yml", 60)
    words = ("--rejudge", "--thresholds", file, "--format", "none", "--changes")
    told = printed(capsys, GOOD, *words).splitlines()
    assert told[0] == "gpu-[01-02]: pass → fail"
    assert told[1].endswith("no finding → fail (55.53 GB/s, limit ≥ 48 GB/s → ≥ 60 GB/s)")
    assert (home / GOOD / "rejudged/changes.json").exists(), "--format none has no other file"


def test_its_history_goes_on(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The node history it stored, in three kinds of files, is available to the next run."""
    assert json.loads(printed(capsys, "history", "--json", code=ExitCode.OK)) == expected("history.json")
    results = node_history.read(["gpu-01", "gpu-02"])
    assert {check: one.verdict for check, one in results["gpu-02"].items()} == {
        "gpu_inventory": "fail", "versions": "pass", "host_health": "pass", "network_ports": "skip",
        "p2p_bandwidth": "fail",
    }  # fmt: skip
    assert {one.run for one in results["gpu-01"].values()} == {BAD}
    folder = RunFolder.create("validate", {}, home)
    node_history.recall(folder, ["gpu-01", "gpu-02"])
    past = node_history.recalled(folder)
    assert [(one.run, set(one.bad)) for one in past["gpu-02"]] == [(GOOD, set()), (BAD, {BAD_GPU})]
    assert [(one.run, set(one.bad)) for one in past["gpu-01"]] == [(GOOD, set()), (BAD, set())]
