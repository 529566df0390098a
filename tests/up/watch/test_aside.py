"""Setting nodes aside as spares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provision.errors import GpuprovError, UsageError
from provision.remote.schedulers import PREFIX
from provision.up.watch.aside import set_aside
from provision.up.watch.incidents import Incident, Step, moved, new
from tests.support.watching import FileScheduler, fleet


def scheduler(folder: Path) -> FileScheduler:
    made = FileScheduler(folder / "slurm.json")
    made.begin(fleet())
    return made


def test_an_idle_node_becomes_a_spare(tmp_path: Path) -> None:
    slurm, said = scheduler(tmp_path), list[str]()
    slurm.set("spare-1", reason="")
    set_aside(["spare-1", "spare-2"], fleet(), (), slurm, said.append)
    assert slurm.done() == ["drain spare-1"]
    assert said == ["spare-1 is a spare", "spare-2 is a spare"]


def test_a_node_with_a_job_may_serve_for_another_watch(tmp_path: Path) -> None:
    slurm = scheduler(tmp_path)
    slurm.set("spare-1", reason="", jobs=["4711"])
    with pytest.raises(UsageError, match="in service: job 4711 runs on it"):
        set_aside(["spare-1"], fleet(), (), slurm, print)
    assert slurm.done() == []


def incidents() -> list[Incident]:
    """Two incidents: spare-2 replaces gpu-07, and spare-1 failed."""
    placed = replace(moved(new("gpu-07", 1.0, "x", number=1), Step.REPAIR), spare="spare-2", placed=2.0)
    return [placed, moved(new("spare-1", 3.0, "x", number=2), Step.REPAIR)]


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("gpu-01", "not in the group gpuprov_spares"),
        ("spare-2", "it took the place of a failed node"),
        ("spare-1", "it waits for repair"),
    ],
)
def test_what_is_no_spare_is_refused(tmp_path: Path, node: str, why: str) -> None:
    slurm = scheduler(tmp_path)
    slurm.set(node, reason="")
    with pytest.raises(UsageError, match=why):
        set_aside([node], fleet(), incidents(), slurm, print)
    assert slurm.done() == []


@pytest.mark.parametrize(
    ("row", "broken", "why"),
    [
        ({"reason": "mine [ann]"}, {}, "somebody else drained spare-1: mine"),
        ({"reason": ""}, {"look": {"spare-1": "timeout"}}, "no answer from the scheduler: timeout"),
        ({"reason": ""}, {"drain": {"spare-1": "denied"}}, "cannot be drained: denied"),
    ],
)
def test_what_the_scheduler_does_not_allow_is_one_line(
    tmp_path: Path, row: dict[str, str], broken: dict[str, dict[str, str]], why: str
) -> None:
    slurm = scheduler(tmp_path)
    slurm.set("spare-1", **row)
    slurm.broken = broken
    with pytest.raises(GpuprovError, match=why):
        set_aside(["spare-1"], fleet(), (), slurm, print)
    with slurm.rows() as rows:
        assert rows["spare-1"]["reason"] == row["reason"] != f"{PREFIX}spare"
