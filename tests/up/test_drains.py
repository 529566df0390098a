"""`up` and the schedulers: nodes are drained, their jobs finish, they return; drains by others are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from provision.errors import InventoryError
from provision.fleet import Fleet, Node
from provision.remote.schedulers import Evicts, chosen
from provision.remote.schedulers.chosen import Schedulers
from provision.remote.schedulers.kubernetes import Kubernetes
from provision.remote.schedulers.slurm import Slurm
from provision.up import hooks
from provision.up.drains import Drains
from tests.support.slurm_cluster import Cluster


@dataclass
class Run:
    """The drains of one run over a cluster in memory, with a simulated clock.
    `after`: seconds → action at that time."""

    cluster: Cluster
    waits: int = 600
    after: dict[float, Callable[[], Any]] = field(default_factory=dict)
    now: float = 0.0
    said: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    def pause(self, seconds: float) -> None:
        self.now += seconds
        for due in [due for due in self.after if due <= self.now]:
            self.after.pop(due)()

    @property
    def drains(self) -> Drains:
        slurm = Slurm(Fleet(Path("f"), {}, {}), {name: name for name in self.cluster.nodes}, self.cluster)
        return Drains(
            Schedulers(dict.fromkeys("abc", slurm), dict.fromkeys("abc", self.waits)),
            "R1",
            lambda event, nodes: self.records.append({"hook": event, "nodes": list(nodes)}),
            lambda call: self.records.append(
                {"hook": call.hook, "nodes": list(call.nodes), "status": call.status}
            ),
            self.said.append,
            self.pause,
            lambda: self.now,
        )

    @property
    def states(self) -> dict[str, str]:
        return {name: state for name, (state, _) in self.cluster.nodes.items()}


def test_a_node_is_drained_waited_for_and_returned() -> None:
    run = Run(Cluster({"a": ["MIXED", ""], "b": ["IDLE", ""]}, jobs=["7|eve|4:02|a"]))

    def ended() -> None:
        run.cluster.jobs.clear()
        run.cluster.nodes["a"][0] = "IDLE+DRAIN"

    run.after[70] = ended
    assert run.drains.drain(["a", "b", "no-scheduler"]) == {}
    assert run.cluster.nodes == {name: ["IDLE+DRAIN", "gpuprov: up R1"] for name in "ab"}
    line = "a: job 7 of eve (4 min 2 s) runs on it: waiting for it, {} of 600 s"
    assert run.said == [line.format(0), line.format(60)]
    assert hooks.left_drained(run.records) == {"a", "b"}
    assert run.drains.undrain(["a", "b"]) == {}
    assert run.states == {"a": "IDLE", "b": "IDLE"}
    assert hooks.left_drained(run.records) == frozenset()


def test_a_job_that_does_not_end_puts_its_node_back_and_no_other() -> None:
    run = Run(Cluster({"a": ["MIXED", ""], "b": ["IDLE", ""]}, jobs=["7|eve|4:02|a"]), waits=30)
    assert run.drains.drain(["a", "b"]) == {
        "a": "job 7 of eve (4 min 2 s) runs on it, and did not end within 30 s"
    }
    assert run.states == {"a": "MIXED", "b": "IDLE+DRAIN"}
    assert run.now == 30
    assert hooks.left_drained(run.records) == {"b"}


class Evicting(Slurm):
    """A scheduler that restarts jobs on other nodes, except those of one user."""

    cluster: Cluster

    def evict(self, nodes: Sequence[str], deadline: float) -> dict[str, str]:
        assert deadline > 0
        kept = [job for job in self.cluster.jobs if "|bob|" in job]
        self.cluster.jobs[:] = kept
        stuck = {job.rpartition("|")[2] for job in kept}
        return {node: "pod of bob: nobody would start it again" for node in nodes if node in stuck}


def test_what_does_not_end_is_moved_elsewhere_where_that_can_be_done() -> None:
    jobs = ["7|eve|4:02|a", "8|bob|4:02|b"]
    run = Run(Cluster({"a": ["MIXED", ""], "b": ["MIXED", ""]}, jobs=jobs), waits=30)
    drains = run.drains
    evicting = Evicting(Fleet(Path("f"), {}, {}), {"a": "a", "b": "b"}, run.cluster)
    evicting.cluster = run.cluster
    drains.schedulers = Schedulers(dict.fromkeys("ab", evicting), dict.fromkeys("ab", 30))
    assert drains.drain(["a", "b"]) == {"b": "pod of bob: nobody would start it again"}
    assert run.now >= 30, "they had their time to end by themselves"
    assert run.said[-1] == "a, b: moving elsewhere what did not end by itself"
    assert issubclass(Kubernetes, Evicts)
    assert "DRAIN" in run.states["a"]
    assert "DRAIN" not in run.states["b"]


def test_what_a_person_or_a_burn_in_holds_is_changed_and_stays_out() -> None:
    held = {"a": ["IDLE+DRAIN", "bad fan"], "b": ["IDLE+DRAIN", "gpuprov: burn-in X: GPU 3"]}
    run = Run(Cluster({name: list(row) for name, row in held.items()}))
    assert run.drains.drain(["a", "b"]) == {}
    assert run.drains.undrain(["a", "b"]) == {}
    assert run.cluster.nodes == held
    assert run.cluster.updates == []
    assert "a: out of service already (bad fan [root@2026-11-25T23:52:56]), and stays so" in run.said
    assert hooks.left_drained(run.records) == frozenset()


def test_a_person_takes_over_in_the_middle() -> None:
    run = Run(Cluster({"a": ["IDLE", ""]}))
    assert run.drains.drain(["a"]) == {}
    run.cluster.nodes["a"][1] = "mine now"
    assert run.drains.undrain(["a"]) == {}
    assert run.states == {"a": "IDLE+DRAIN"}
    assert "a: not returned to service: mine now [root@2026-11-25T23:52:56]" in run.said
    assert hooks.left_drained(run.records) == frozenset()


@pytest.mark.parametrize("reason", ["gpuprov: up R0", "gpuprov: (was DOWN: Not responding) up R0"])
def test_what_a_killed_up_left_drained_is_taken_over(reason: str) -> None:
    run = Run(Cluster({"a": ["IDLE+DRAIN", reason]}))
    assert run.drains.drain(["a"]) == {}
    assert run.drains.undrain(["a"]) == {}
    assert run.states == {"a": "IDLE"}


def test_what_a_killed_up_left_drained_stays_so_when_a_job_does_not_end() -> None:
    """Such a node may be half changed, or have failed its health gate."""
    run = Run(Cluster({"a": ["MIXED+DRAIN", "gpuprov: up R0"]}, jobs=["7|eve|4:02|a"]), waits=30)
    assert "did not end within 30 s" in run.drains.drain(["a"])["a"]
    assert run.states == {"a": "MIXED+DRAIN"}
    assert hooks.left_drained(run.records) == {"a"}


def test_a_scheduler_that_does_not_answer_keeps_the_node_untouched() -> None:
    run = Run(Cluster({"a": ["IDLE", ""]}, down="Unable to contact slurm controller"))
    assert run.drains.drain(["a"]) == {"a": "its scheduler: Unable to contact slurm controller"}
    assert hooks.left_drained(run.records) == frozenset()


def test_it_falls_silent_while_jobs_are_waited_for() -> None:
    run = Run(Cluster({"a": ["MIXED", ""]}, jobs=["7|eve|4:02|a"]), waits=60)
    run.after[20] = lambda: setattr(run.cluster, "down", "no answer")
    problem = run.drains.drain(["a"])["a"]
    assert problem.startswith("its scheduler does not say whether jobs run on it (no answer), and did not")
    assert problem.endswith("; and it is still drained: its scheduler: no answer")
    assert hooks.left_drained(run.records) == {"a"}
    run.cluster.down = ""
    assert run.drains.undrain(["a"]) == {}
    assert run.states == {"a": "MIXED"}


def test_denied_it_changes_nothing() -> None:
    run = Run(Cluster({"a": ["IDLE", ""]}, denied="Invalid user id"))
    assert run.drains.drain(["a"])["a"].startswith("slurm_update error: Invalid user id")
    assert hooks.left_drained(run.records) == frozenset()


def fleet(**variables: Any) -> Fleet:
    names = ("gpu-01.site", "10.0.0.7")
    return Fleet(Path("f"), {name: Node(name, (), variables) for name in names}, {})


def test_which_scheduler_a_node_has() -> None:
    made: dict[str, Any] = {}

    def maker(_fleet: Fleet, names: Any) -> Slurm:
        made.update(names)
        return Slurm(_fleet, names)

    makers = {"slurm": maker}
    found = chosen.load(fleet(gpuprov_scheduler="slurm", gpuprov_job_wait=5), {}, makers)
    assert made == {"gpu-01.site": "gpu-01", "10.0.0.7": "10.0.0.7"}
    assert set(found.waits.values()) == {5}
    assert len(found.grouped(list(found.of))) == 1
    for variables in ({}, {"gpuprov_scheduler": "none"}, {"gpuprov_drain_hook": "x"}):
        assert chosen.load(fleet(**variables), {}).of == {}


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        (
            {"gpuprov_scheduler": "slurm", "gpuprov_drain_hook": "x"},
            "gpu-01.site: gpuprov_scheduler is slurm, and it has gpuprov_drain_hook: two would drain it",
        ),
        ({"gpuprov_scheduler": "hooks"}, "gpu-01.site: gpuprov_scheduler is hooks, and it has no hook"),
        (
            {"gpuprov_scheduler": "slurm", "gpuprov_scheduler_name": "n1"},
            "would all be n1 in slurm",
        ),
    ],
)
def test_two_masters_of_one_node_are_refused(variables: dict[str, Any], line: str) -> None:
    with pytest.raises(InventoryError) as refused:
        chosen.load(fleet(**variables), {})
    assert line in refused.value.what
