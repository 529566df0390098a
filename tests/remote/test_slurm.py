"""The scheduler interface on an in-memory Slurm; tests/lab/test_slurm.py uses a real one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provision.fleet import Fleet, Node
from provision.remote import node_program
from provision.remote.schedulers import Holder, Job
from provision.remote.schedulers import commands as way
from provision.remote.schedulers.commands import Commands, CommandsError, Done
from provision.remote.schedulers.lease import Lease
from provision.remote.schedulers.slurm import Slurm
from tests.support.slurm_cluster import Cluster

FLEET = Fleet(Path("fleet.yml"), {}, {})


def slurm(cluster: Cluster, **names: str) -> Slurm:
    return Slurm(FLEET, names or {name: name for name in cluster.nodes}, cluster)


def test_it_drains_and_resumes_what_is_free_or_its_own() -> None:
    cluster = Cluster({"a": ["IDLE", ""], "b": ["IDLE+DRAIN", "bad fan"], "c": ["MIXED", ""]})
    one = slurm(cluster)
    assert one.drain({"a": "up 1", "b": "up 1", "c": "up 1"}) == {}
    assert cluster.nodes["b"] == ["IDLE+DRAIN", "bad fan"]
    assert cluster.updates == [("NodeName=a,c", "State=DRAIN", "Reason=gpuprov: up 1")]
    assert one.drain({"a": "up 2"}) == {}
    assert one.resume(["a", "b", "c"]) == {}
    assert {name: state for name, (state, _) in cluster.nodes.items()} == {
        "a": "IDLE",
        "b": "IDLE+DRAIN",
        "c": "MIXED",
    }
    assert one.resume(["a"]) == {}
    assert len(cluster.updates) == 2


def test_denied() -> None:
    cluster = Cluster({"a": ["IDLE", ""], "c": ["IDLE+DRAIN", "gpuprov: x"]}, denied="Invalid user id")
    why = "slurm_update error: Invalid user id: "
    why += "who runs scontrol must be root, SlurmUser or an operator of Slurm"
    assert slurm(cluster).drain({"a": "x"}) == {"a": why}
    assert slurm(cluster).resume(["c"]) == {"c": why}
    assert slurm(cluster).mark({"c": "y"}) == {"c": why}


def test_one_refused_does_not_keep_the_others() -> None:
    cluster = Cluster({"a": ["IDLE+DRAIN", "gpuprov: x"], "b": ["IDLE+DRAIN", "gpuprov: x"]})
    one = slurm(cluster)
    inner = cluster._node

    def part(given: dict[str, str]) -> Done:  # as 24.11 does: a is updated, the whole rejected
        if given["NodeName"] == "a,b":
            inner({**given, "NodeName": "a"})
            return Done(1, "", "slurm_update error: Invalid node name specified\n")
        return inner(given)

    cluster._node = part  # type: ignore[method-assign]
    assert one.resume(["a", "b"]) == {}
    assert [state for state, _ in cluster.nodes.values()] == ["IDLE", "IDLE"]


def test_a_name_that_slurm_does_not_know_and_jobs_of_the_others() -> None:
    cluster = Cluster({"a": ["MIXED", ""]}, jobs=["7|eve|1:00|a"])
    looked = slurm(cluster, a="a", b="bb").look(["a", "b"])
    assert looked["a"].jobs == (Job("7", "eve", 60),)
    assert (
        looked["b"].error
        == "Slurm does not know bb: set gpuprov_scheduler_name to the name that Slurm has for it"
    )


def test_a_job_that_is_not_shown_counts() -> None:
    looked = slurm(Cluster({"a": ["ALLOCATED", ""]})).look(["a"])
    assert looked["a"].jobs == (Job("?"),)


def test_no_controller() -> None:
    one = slurm(Cluster({"a": ["IDLE", ""]}, down="Unable to contact slurm controller (connect failure)"))
    why = "Unable to contact slurm controller (connect failure)"
    assert one.look(["a"])["a"].error == why
    assert (one.drain({"a": "x"}), one.resume(["a"]), one.mark({"a": "x"})) == ({"a": why},) * 3


@pytest.mark.parametrize("adds", [True, False])
def test_joining_partitions(adds: bool) -> None:
    cluster = Cluster(
        {"a": ["IDLE", ""], "b": ["IDLE", ""]}, pools={"gpu": ["a", "b"], "big": ["a"]}, adds=adds
    )
    assert slurm(cluster).join("b", "a", ("gpu", "big")) == ""
    assert cluster.pools == {"gpu": ["a", "b"], "big": ["a", "b"]}
    before = len(cluster.updates)
    assert slurm(cluster).join("b", "a", ("gpu", "big")) == ""
    assert len(cluster.updates) == before


def test_mark_only_what_is_ours() -> None:
    cluster = Cluster({"a": ["IDLE+DRAIN", "bad fan"], "b": ["IDLE", ""], "c": ["IDLE+DRAIN", "gpuprov: x"]})
    problems = slurm(cluster).mark({"a": "y", "b": "y", "c": "y"})
    assert problems == {
        "a": "somebody else holds it (bad fan [root@2026-11-25T23:52:56])",
        "b": "gpuprov does not hold it (IDLE)",
    }
    assert cluster.nodes["c"][1] == "gpuprov: y"
    assert slurm(cluster).look(["c"])["c"].holder is Holder.US


LEASE = Lease("f1", "h1", 2, "ctl-1:/home/ann b/.local", "I gpu-03 gpu-65")


def test_leases_stand_in_comments_behind_those_of_the_site() -> None:
    cluster = Cluster({"a": ["IDLE", ""], "b": ["IDLE", ""]}, comments={"b": "rack 7, moved"})
    one = slurm(cluster, a="a", b="b")
    assert one.lease(dict.fromkeys("ab", LEASE), dict.fromkeys("ab")) == {}
    assert [word.lease for word in one.look(["a", "b"]).values()] == [LEASE, LEASE]
    assert cluster.comments["b"].startswith("rack 7, moved [gpuprov watch: ")
    assert one.lease({"b": None}, {"b": LEASE}) == {}
    assert cluster.comments["b"] == "rack 7, moved"


def fleet_of(nodes: int, denied: str = "") -> tuple[Cluster, list[str], Slurm, list[int]]:
    """Build a cluster with a site comment on each node; also return the commands per round trip."""
    names = [f"gpu-{number:04d}" for number in range(nodes)]
    comments = {name: f"asset {number}" for number, name in enumerate(names)}
    cluster = Cluster({name: ["IDLE", ""] for name in names}, comments=comments, denied=denied)
    trips: list[int] = []

    def counted(commands: Sequence[Sequence[str]]) -> list[Done]:
        trips.append(len(commands))
        return cluster(commands)

    return cluster, names, Slurm(FLEET, {name: name for name in names}, counted), trips


def test_leases_of_a_large_fleet_take_few_round_trips() -> None:
    cluster, names, one, trips = fleet_of(1000)
    assert one.lease(dict.fromkeys(names, LEASE), dict.fromkeys(names)) == {}
    assert len(trips) == 3 + 1000 / 50
    assert all(word.lease == LEASE for word in one.look(names).values())
    assert cluster.comments["gpu-0999"].startswith("asset 999 [gpuprov watch: ")


@pytest.mark.parametrize("denied", ["Access/permission denied", "Unable to contact slurm controller"])
def test_who_may_change_no_node_does_not_try_each(denied: str) -> None:
    cluster, names, one, _ = fleet_of(900, denied)
    cluster.comments.clear()
    problems = one.lease(dict.fromkeys(names, LEASE), dict.fromkeys(names))
    assert list(problems) == names
    assert all(denied in why for why in problems.values())
    assert len(cluster.updates) == 3


def test_who_does_not_answer_is_asked_once_for_all_nodes() -> None:
    """Each query may take half a minute, and the watch is killed after five minutes."""
    cluster, names, one, trips = fleet_of(1000)
    cluster.down = "scontrol: no answer after 30 s"
    states = one.look(names)
    assert list(states) == names
    assert {state.error for state in states.values()} == {cluster.down}
    assert one.drain(dict.fromkeys(names, "x")) == dict.fromkeys(names, cluster.down)
    assert trips == [2, 1]


def test_a_slurm_without_comments_of_nodes_says_so() -> None:
    cluster, names, one, _ = fleet_of(2)
    # As scontrol prints it (src/scontrol/update_node.c).
    strange = "Update of this parameter is not supported: Comment=x"
    answer = Done(1, "", f"{strange}\nRequest aborted\n")
    cluster._node = lambda given: answer  # type: ignore[method-assign]  # noqa: ARG005 - as it is called
    assert one.lease(dict.fromkeys(names, LEASE), dict.fromkeys(names)) == dict.fromkeys(names, strange)


def test_a_lease_that_another_watch_changed_is_left() -> None:
    cluster = Cluster({"a": ["IDLE", ""], "b": ["IDLE", ""]})
    one = slurm(cluster, a="a", b="b")
    assert one.lease({"a": replace(LEASE, holder="h2")}, {"a": None}) == {}
    said = one.lease(dict.fromkeys("ab", LEASE), dict.fromkeys("ab"))
    assert said == {"a": "another watch changed its lease just now"}
    assert [word.lease.holder for word in one.look(["a", "b"]).values() if word.lease] == ["h2", "h1"]
    cluster.denied = "Access/permission denied"
    assert "Access/permission denied" in one.lease({"b": None}, {"b": LEASE})["b"]
    cluster.down = "Unable to contact slurm controller"
    assert one.lease({"b": None}, {"b": LEASE}) == {"b": cluster.down}


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def ran(folder: Path, *commands: list[str], seconds: float = 5) -> list[Done]:
    text = node_program.scheduler_command_program(
        {"commands": list(commands), "seconds": seconds, "folders": [str(folder), "/usr/bin", "/bin"]}
    )
    said = subprocess.run([sys.executable, "-I", "-S", "-"], input=text.encode("ascii"), capture_output=True)
    assert said.stderr == b""
    return Commands._understood(said.stdout)


def test_the_program_that_runs_commands(tmp_path: Path) -> None:
    program(tmp_path, "scontrol", 'printf "%s|" "$@"; echo "$SQUEUE_FORMAT" >&2; exit 3')
    (done,) = ran(tmp_path, ["scontrol", "a b", "{{ x }} ü '\"$(id)"])
    assert done == Done(3, "a b|{{ x }} ü '\"$(id)|", "\n")
    program(tmp_path, "hang", "sleep 60 & sleep 60")
    hung = ran(tmp_path, ["hang"], ["scontrol"], seconds=0.5)
    assert [one.error for one in hung] == ["hang gave no answer within 0.5 s"]
    assert ran(tmp_path, ["sinfoo"])[0].error == "sinfoo is not installed"


def test_the_next_host_is_asked_when_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {name: Node(name, ("gpuprov_slurm",), {}) for name in ("h1", "h2")}
    asked: list[str] = []

    def there(_self: Commands, host: Node, _program: str, _limit: float) -> bytes:
        asked.append(host.name)
        if host.name == "h1":
            raise CommandsError("unreachable → is it powered on?")
        return b"@"

    monkeypatch.setattr(Commands, "_there", there)
    monkeypatch.setattr(Commands, "_understood", staticmethod(lambda _said: [Done(0)]))
    go = way.Commands(
        Fleet(Path("f"), nodes, {"gpuprov_slurm": ("h1", "h2")}), "gpuprov_slurm", lambda _: False
    )
    assert go([["scontrol"]]) == go([["scontrol"]]) == [Done(0)]
    assert asked == ["h1", "h2", "h2"]
    one = way.Commands(Fleet(Path("f"), {}, {}, others={"h1": nodes["h1"]}), "gpuprov_slurm", lambda _: False)
    with pytest.raises(CommandsError, match="h1: unreachable"):
        one([["scontrol"]])
