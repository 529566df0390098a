"""A report's context from run folders: charts of stored samples, and the previous run."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path

import pytest

from provision import cli, report
from provision.checks import check
from provision.checks.check import Output
from provision.checks.gpu import telemetry
from provision.checks.health import FleetHealth
from provision.checks.judging.node_facts import NodeFacts
from provision.report import context
from provision.report.causes import worst_first
from provision.report.context import Context
from provision.runs import node_history, store
from provision.runs.store import RunFolder
from provision.validate import campaign
from tests.support.stored import GPU

FIXTURES = Path(__file__).parents[1] / "fixtures" / "gpu_burn"


def samples(hot: int | None = None) -> str:
    """Return nvidia-smi's samples of a one-minute burn; one GPU may run hot and be throttled."""
    rows = [", ".join(telemetry.FIELDS)]
    for second in range(0, 60, 2):
        for gpu in range(8):
            held = gpu == hot and second > 20
            heat = 35 + round(30 * (1 - math.exp(-second / 12))) + (22 if gpu == hot else 0)
            cells = [
                f"2026/05/04 10:00:{second:02d}.{gpu:03d}", gpu, 100, heat, 690.5 - 150 * held,
                1830 - 420 * held, 5, 5, 16, 16, "0x0000000000000048" if held else "0x0000000000000004",
            ]  # fmt: skip
            rows.append(", ".join(str(cell) for cell in cells))
    return "\n".join(rows) + "\n"


def stored(
    runs: Path, nodes: dict[str, int | None], beside: str | None = None
) -> tuple[RunFolder, FleetHealth]:
    """Store a run of gpu_burn: node → its hot GPU; `beside`: samples to use for every node instead."""
    folder = RunFolder.create("validate", {}, runs=runs)
    folder.note(inventory="inventory.yml", asked=["gpu_burn"])
    text = (FIXTURES / "healthy.txt").read_text(encoding="utf-8")
    for node, hot in nodes.items():
        folder.append("facts", asdict(NodeFacts(node, {}, {"gpu": GPU}, {})))
        burn = Output("gpu_burn", ("/usr/bin/gpu_burn", "-tc", "60"), 0, text, "", 61.0)
        argv = ("nvidia-smi", "-lms", "2000")
        output = samples(hot) if beside is None else beside
        sampler = Output(telemetry.NAME, argv, -15, output, "", 61.0, beside="gpu_burn")
        store.keep_raw(folder, check.Raw(node, "gpu_burn", (burn, sampler), 61.0))
    health = campaign.rejudge(folder)
    node_history.record(folder, {}, health)
    report.write_all(health, folder, ["json"])
    return folder, health


def test_the_samples_a_run_kept_are_read(runs: Path) -> None:
    folder, health = stored(runs, {"gpu-01": None, "gpu-02": 5})
    found = context.of_run(folder, health)
    (load,) = found.loads["gpu-02"]
    assert (load.check, load.raw) == ("gpu_burn", "raw/gpu-02/gpu_burn.json")
    assert list(load.series) == [f"gpu{i}" for i in range(8)]
    assert load.series["gpu5"].clocks[-1] == 1410
    assert found.not_read == ()
    assert found.earlier is None


def test_only_the_worst_nodes_samples_are_read_and_few_of_each(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "_NODES", 2)
    monkeypatch.setattr(context, "_SAMPLES", 10)
    folder, health = stored(runs, {"gpu-01": None, "gpu-02": None, "gpu-03": 5, "gpu-04": None})
    found = context.of_run(folder, health)
    assert list(found.loads) == ["gpu-03", "gpu-01"]
    assert found.not_read == ("gpu-02", "gpu-04")
    assert {len(one.seconds) for load in found.loads["gpu-03"] for one in load.series.values()} == {10}
    assert next(node.node for node in worst_first(health)) == "gpu-03"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 99}'])
def test_raw_output_that_cannot_be_read_again_costs_its_plot_only(runs: Path, damage: str) -> None:
    folder, health = stored(runs, {"gpu-01": None, "gpu-02": 5})
    (folder.path / "raw/gpu-02/gpu_burn.json").write_text(damage)
    assert list(context.of_run(folder, health).loads) == ["gpu-01"]


def test_samples_that_were_not_understood_have_no_plot(runs: Path) -> None:
    folder, health = stored(runs, {"gpu-01": None}, beside="no devices were found\n")
    assert context.of_run(folder, health) == Context()


def test_the_command_draws_the_hot_gpu_and_says_what_is_new(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(runs, {"gpu-01": None, "gpu-02": None})
    folder, _ = stored(runs, {"gpu-01": None, "gpu-02": 5})
    assert cli.main(["report", folder.path.name]) == 3
    assert "1 newly unhealthy or not measured: gpu-02" in " ".join(capsys.readouterr().out.split())
    page = (folder.path / "report.html").read_text(encoding="utf-8")
    assert 'aria-label="SM clock of 8 GPUs 1410 to 1830 MHz; gpu5 (fail) 1410 to 1830 MHz"' in page
    assert page.count('<svg class="plot"') == 2 * 3
    assert '<svg class="strip"' in page
    assert "## Since the last run" in (folder.path / "report.md").read_text(encoding="utf-8")
