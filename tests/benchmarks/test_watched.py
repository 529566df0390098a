"""The base of the watch benchmarks: a file-based Slurm, health results, and the rules of a correct
substitution. Speed itself is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import health_results, slurm_stub
from benchmarks.slurm_stub import Change, Cluster
from benchmarks.substitution import Substitution
from provision.fleet import Fleet
from provision.remote.schedulers import Holder
from provision.remote.schedulers.commands import Command, Done
from provision.remote.schedulers.slurm import Slurm
from provision.up.watch.incidents import Incident, Step, new
from provision.up.watch.seen import seen
from provision.validate.status.status import judged
from tests.support.health_results import printed

# --- the file-based Slurm, driven by gpuprov's own client


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    one = Cluster(tmp_path / "slurm.json")
    one.begin(["a", "b"], ["s"])
    return one


@pytest.fixture
def slurm(cluster: Cluster) -> Slurm:
    def ask(commands: Sequence[Command]) -> list[Done]:
        return [Done(*slurm_stub.main(cluster, words)) for words in commands]

    return Slurm(Fleet(Path("fleet.yml"), {}, {}), {name: name for name in "abs"}, ask)


def done(cluster: Cluster) -> list[tuple[str, str]]:
    return [(change.kind, change.node) for change in cluster.changes()]


def test_gpuprov_replaces_a_node_in_it(cluster: Cluster, slurm: Slurm) -> None:
    assert slurm.drain({"s": "spare"}) == {}
    assert slurm.drain({"a": "no fan"}) == {}
    assert slurm.mark({"s": "takes the place of a"}) == {}
    assert slurm.join("s", "a", ["gpu"]) == ""
    assert slurm.resume(["s"]) == {}
    assert done(cluster) == [("drain", "s"), ("drain", "a"), ("mark", "s"), ("join", "s"), ("resume", "s")]
    looked = slurm.look(["a", "b", "s"])
    assert (looked["a"].holder, looked["a"].state) == (Holder.US, "IDLE+DRAIN")
    assert looked["a"].reason.startswith("gpuprov: no fan [root@")
    assert [name for name, one in looked.items() if one.takes_jobs] == ["b", "s"]
    assert {one.pools for one in looked.values()} == {("gpu",)}


def test_what_changes_nothing_is_no_change(cluster: Cluster, slurm: Slurm) -> None:
    for _ in range(2):
        assert slurm.drain({"a": "no fan"}) == {}
        assert slurm.join("b", "a", ["gpu"]) == ""
        assert slurm.resume(["b"]) == {}
    assert done(cluster) == [("drain", "a")]


def test_it_refuses_what_slurm_refuses(cluster: Cluster, slurm: Slurm) -> None:
    assert slurm_stub.main(cluster, ["scontrol", "update", "NodeName=a", "State=RESUME"]) == (
        1,
        "",
        "slurm_update error: Invalid node state specified\n",
    )
    assert slurm_stub.main(cluster, ["squeue", "--nodelist=a,x"])[2] == "squeue: error: Invalid node name x\n"
    cluster.begin(["a"], [])
    assert slurm.look(["a", "b"])["b"].error.startswith("Slurm does not know b")
    assert slurm.drain({"b": "no fan"})["b"].startswith("Slurm does not know b")
    assert done(cluster) == []


def test_it_runs_as_a_program_on_a_python_alone(cluster: Cluster, tmp_path: Path) -> None:
    words = [sys.executable, "-I", "-S", slurm_stub.__file__, str(tmp_path / "slurm.json"), "scontrol"]
    told = [*words, "update", "NodeName=a", "State=DRAIN", "Reason=gpuprov: two words"]
    assert subprocess.run(told, capture_output=True, check=True).stdout == b""
    shown = subprocess.run([*words, "show", "node", "a"], capture_output=True, check=True, text=True).stdout
    assert "   State=IDLE+DRAIN " in shown
    assert "   Reason=gpuprov: two words [root@" in shown
    assert done(cluster) == [("drain", "a")]


# --- the health results


def of(result: dict[str, Any]) -> Any:
    uptime = {"boot_id": result["boot_id"], "uptime": result["uptime"] + 1}
    return seen(judged("n1", printed(json.dumps(result).encode(), **uptime)), 0.0)


def test_gpuprov_reads_the_results_as_they_are_meant() -> None:
    good, bad = of(health_results.healthy("n1", 60)), of(health_results.lost(5, "n1", 60))
    assert (good.healthy, good.fatal, good.trouble) == (True, False, "")
    assert (bad.healthy, bad.fatal, bad.device, bad.serial) == (False, True, "gpu5", "1650923004325")
    assert bad.cause == "gpu5 has fallen off the bus (Xid 79)"


# --- correct substitutions

BEFORE = {
    "a": {"state": "IDLE", "reason": "", "pool": "gpu"},
    "b": {"state": "IDLE", "reason": "gpuprov: long ago", "pool": "gpu"},
    "s": {"state": "IDLE+DRAIN", "reason": "gpuprov: spare", "pool": ""},
    "t": {"state": "IDLE+DRAIN", "reason": "gpuprov: spare", "pool": ""},
}
INCIDENT: Incident = replace(new("a", 101.0, "gpu3 has fallen off"), step=Step.REPAIR, spare="s")
AFTER = {
    **BEFORE,
    "a": {"state": "IDLE+DRAIN", "reason": f"gpuprov: {INCIDENT.reason}", "pool": "gpu"},
    "s": {"state": "IDLE", "reason": "gpuprov: takes the place of a", "pool": "gpu"},
}
KINDS = (("drain", "a"), ("mark", "s"), ("join", "s"), ("resume", "s"))
CHANGES = tuple(Change(102.0 + number, *change) for number, change in enumerate(KINDS))
RIGHT = Substitution("a", 3, 100.0, INCIDENT, CHANGES)


def test_a_right_substitution_and_its_times() -> None:
    assert RIGHT.wrong(BEFORE, AFTER) == ""
    assert list(RIGHT.seconds.values()) == [1.0, 2.0, 4.0, 5.0]


@pytest.mark.parametrize(
    ("one", "after", "why"),
    [
        (replace(RIGHT, node="b"), AFTER, "the incident is of a"),
        (replace(RIGHT, gpu=4), AFTER, "gpu3 has fallen off"),
        (replace(RIGHT, incident=replace(INCIDENT, step=Step.CLOSED)), AFTER, "closed"),
        (replace(RIGHT, incident=replace(INCIDENT, spare="")), AFTER, "no node took its place; s, t waited"),
        (replace(RIGHT, incident=replace(INCIDENT, spare="b")), AFTER, "b took its place"),
        (replace(RIGHT, changes=(CHANGES[0], *CHANGES)), AFTER, "Slurm was told"),
        (replace(RIGHT, changes=(*CHANGES, Change(106.0, "drain", "b"))), AFTER, "Slurm was told"),
        (replace(RIGHT, changes=(*CHANGES[:2], CHANGES[3])), AFTER, "Slurm was told"),
        (RIGHT, {**AFTER, "a": {**AFTER["a"], "reason": "gpuprov: another"}}, "Slurm has {'a'"),
        (RIGHT, {**AFTER, "s": {**AFTER["s"], "pool": ""}}, "Slurm has {'s'"),
        (RIGHT, {**AFTER, "b": {**AFTER["b"], "state": "IDLE+DRAIN"}}, "Slurm has {'b'"),
    ],
)
def test_a_substitution_that_is_not_right(one: Substitution, after: Any, why: str) -> None:
    assert why in one.wrong(BEFORE, after)
