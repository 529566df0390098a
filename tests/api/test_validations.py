"""gpuprov.validate without a terminal: its measurements, events and files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import gpuprov
from provision.checks.judge import Verdict
from provision.errors import ExitCode
from provision.fleet import Fleet, Node
from provision.runs.store import RunFolder
from tests.support.machines import Machines
from tests.support.machines import machines as machines

TWO = gpuprov.Campaign(checks=("gpu_inventory", "gpu_burn"), formats=("json", "nodes"))


def loaded(names: Sequence[str], folder: Path) -> gpuprov.LoadedFleet:
    return gpuprov.LoadedFleet(Fleet(folder / "i.yml", {one: Node(one, (), {}) for one in names}, {}), {})


def test_events_are_typed_and_the_result_has_what_the_command_prints(
    machines: Machines, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    machines.add("gpu-01")
    machines.errors["gpu-02"] = "no route to host"
    events: list[gpuprov.Event] = []
    result = gpuprov.validate(loaded(["gpu-01", "gpu-02"], tmp_path), TWO, events.append)
    assert capfd.readouterr() == ("", "")
    chosen, began, run, *_, ended = [event for event in events if not isinstance(event, gpuprov.Step)]
    assert (chosen, began) == (
        gpuprov.ChecksChosen(("gpu-01", "gpu-02"), ("gpu_inventory", "gpu_burn"), 2, between=False),
        gpuprov.RunBegan(result.folder),
    )
    assert (run, ended) == (gpuprov.Began("validate", 4), gpuprov.Ended())
    assert [event for event in events if isinstance(event, gpuprov.NodeLeftOut)] == [
        gpuprov.NodeLeftOut("gpu-02", "unreachable: no route to host", 2)
    ]
    assert [event for event in events if isinstance(event, gpuprov.CheckBegan | gpuprov.CheckEnded)] == [
        gpuprov.CheckBegan("gpu-01", "gpu_inventory"),
        gpuprov.CheckEnded("gpu-01", "gpu_inventory", "pass"),
        gpuprov.CheckBegan("gpu-01", "gpu_burn"),
        gpuprov.CheckEnded("gpu-01", "gpu_burn", "pass"),
    ]
    assert {node.node: node.verdict for node in result.health.nodes} == {
        "gpu-01": Verdict.PASS,
        "gpu-02": Verdict.ERROR,
    }
    assert result.code is ExitCode.INCOMPLETE
    assert sorted(result.files) == ["json", "nodes"]
    assert result.document() == json.loads((result.folder / "report.json").read_text())
    meta = RunFolder.open(result.folder).meta()
    assert (meta["exit_code"], meta["counts"]["pass"], meta["counts"]["error"]) == (5, 1, 1)


def test_an_interrupt_ends_the_measuring_and_not_the_report(machines: Machines, tmp_path: Path) -> None:
    machines.add("gpu-01")
    machines.interrupt_at = "gpu_burn"
    fleet, events = loaded(["gpu-01"], tmp_path), list[gpuprov.Event]()
    result = gpuprov.validate(fleet, TWO, events.append)
    assert (result.code, result.health.interrupted) == (ExitCode.INTERRUPTED, True)
    assert gpuprov.Note("interrupted; what this run started on nodes is being ended") in events
    assert (result.folder / "report.json").exists()
    assert machines.locks.holders == {}
    machines.interrupt_at = ""
    on = gpuprov.Campaign(resume=str(result.folder))
    assert gpuprov.validate(fleet, on, events.append).folder == result.folder
    assert gpuprov.CheckEnded("gpu-01", "gpu_inventory", "pass", "measured before") in events
    assert events[-2] == gpuprov.CheckEnded("gpu-01", "gpu_burn", "pass")


def test_mistakes_are_told_before_a_node_is_asked(machines: Machines, tmp_path: Path) -> None:
    machines.add("gpu-01")
    fleet = loaded(["gpu-01"], tmp_path)
    for wrong, said in [
        (gpuprov.Campaign(checks=("gpu_brun",)), "gpu_brun"),
        (gpuprov.Campaign(checks="gpu_brun"), "gpu_brun"),
        (gpuprov.Campaign(stage="fast"), "unknown stage 'fast'"),
        (gpuprov.Campaign(pairs="some"), "unknown choice of pairs 'some'"),
        (gpuprov.Campaign(formats=("json", "pdf")), "unknown report format 'pdf'"),
        (gpuprov.Campaign(forks=0), "forks=0"),
        (gpuprov.Campaign(timeout=-1.0), "timeout=-1.0"),
        (gpuprov.Campaign(thresholds=tmp_path / "absent.yml"), "absent.yml"),
        (gpuprov.Campaign(thresholds=str(tmp_path / "absent.yml")), "absent.yml"),
        (gpuprov.Campaign(resume=str(tmp_path / "absent")), "absent"),
    ]:
        with pytest.raises(gpuprov.GpuprovError, match=said):
            gpuprov.validate(fleet, wrong)
    with pytest.raises(gpuprov.GpuprovError, match="there is no node to validate"):
        gpuprov.validate(loaded([], tmp_path))
    assert machines.asked == []


def test_reports_that_cannot_be_written_leave_a_run_that_says_how_it_ended(
    machines: Machines, tmp_path: Path
) -> None:
    machines.add("gpu-01")

    def block(event: gpuprov.Event) -> None:
        if isinstance(event, gpuprov.RunBegan):
            (event.folder / "report.json").mkdir()
            blocked.append(event.folder)

    blocked: list[Path] = []
    with pytest.raises(gpuprov.GpuprovError, match=r"cannot write .*report\.json"):
        gpuprov.validate(loaded(["gpu-01"], tmp_path), TWO, block)
    assert RunFolder.open(blocked[0]).meta()["exit_code"] == ExitCode.OK
