"""Nodes of a real Slurm cluster with running jobs: drained, waited for, resumed, and left to others.

Slurm 24.11 of Debian 13; slurmctld runs on the first node, the host of the group gpuprov_slurm. The texts in
tests/remote/schedulers/test_slurm_text.py were recorded here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprov_lab.spec import NodeSpec
from provision.desired import inventory
from provision.fleet import Fleet
from provision.remote.schedulers import Holder
from provision.remote.schedulers.slurm import Slurm
from provision.up.watch.incidents import Store
from provision.up.watch.lease import Holding
from tests.lab import slurm_cluster
from tests.lab.gpuprov_up import Operator
from tests.lab.lab_nodes import Lab, LabNode, running_lab

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = tuple(NodeSpec(name, "l40s") for name in ("s1", "s2"))
    with running_lab("hsl", nodes, tmp_path_factory.mktemp("lab") / "lab.yml") as running:
        for node in running.nodes:
            node.as_root("apt-get update")
        slurm_cluster.start(running.nodes, gpus=0, patience=120)
        document = yaml.safe_load(running.inventory.read_text())
        document["gpuprov_slurm"] = {"hosts": {"s1": {}}}
        document["gpu_nodes"]["vars"]["gpuprov_scheduler"] = "slurm"
        running.inventory.write_text(yaml.safe_dump(document))
        yield running


@pytest.fixture
def controller(lab: Lab) -> Iterator[LabNode]:
    """Yield the node with Slurm's commands; afterwards no job is left, and every node is idle."""
    first = lab.nodes[0]
    yield first
    first.as_root("scancel --user=ops; systemctl start slurmctld")
    first.run("sudo scontrol update NodeName=s1,s2 State=RESUME", check=False)
    wait(lambda: states(first) == {"s1": "idle", "s2": "idle"}, 60)


@pytest.fixture
def fleet(lab: Lab) -> Fleet:
    return inventory.load(lab.inventory)


@pytest.fixture
def slurm(fleet: Fleet) -> Slurm:
    return Slurm(fleet, {"s1": "s1", "s2": "s2"})


@pytest.fixture
def operator(lab: Lab, tmp_path: Path) -> Operator:
    return Operator(lab.inventory, tmp_path)


def wait(true: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not come true in time"
        time.sleep(0.5)


def states(controller: LabNode) -> dict[str, str]:
    said = controller.run("sinfo --noheader --Node --format='%N %T'", check=False).stdout.split()
    return dict(zip(said[::2], said[1::2], strict=True))


def shown(controller: LabNode, node: str, field: str) -> str:
    said = controller.run(f"scontrol show node {node}").stdout
    return next((line.strip() for line in said.splitlines() if line.strip().startswith(field)), "")


def submit(controller: LabNode, node: str, seconds: int = 600) -> str:
    said = controller.run(
        f"sbatch --parsable --nodelist={node} --chdir=/tmp --output=/dev/null --wrap 'sleep {seconds}'"
    ).stdout.strip()
    wait(lambda: "R" in controller.run(f"squeue --noheader --job={said} --format=%t").stdout, 30)
    return said


def test_a_node_is_drained_its_job_goes_on_and_it_is_returned(slurm: Slurm, controller: LabNode) -> None:
    job = submit(controller, "s2")
    why = 'GPU 3: it\'s "lost" {{ x }}\nXid 79'
    assert slurm.drain({"s2": why}) == {}
    looked = slurm.look(["s1", "s2"])
    assert (looked["s1"].holder, looked["s1"].takes_jobs, looked["s1"].jobs) == (Holder.NOBODY, True, ())
    said = looked["s2"]
    assert (said.holder, said.takes_jobs, said.down, said.pools) == (Holder.US, False, False, ("gpu",))
    assert said.reason.startswith('gpuprov: GPU 3: it\'s "lost" {{ x }} Xid 79 [root@')
    assert [(one.id, one.user) for one in said.jobs] == [(job, "ops")]
    assert said.jobs[0].seconds is not None
    assert said.jobs[0].seconds < 60
    assert slurm.drain({"s2": "another"}) == {}
    assert "GPU 3" in slurm.look(["s2"])["s2"].reason  # drained once
    assert slurm.mark({"s2": "still it", "s1": "x"}) == {"s1": "gpuprov does not hold it (IDLE)"}
    assert slurm.look(["s2"])["s2"].reason.startswith("gpuprov: still it [")
    assert slurm.resume(["s1", "s2"]) == {}
    assert slurm.resume(["s2"]) == {}
    said = slurm.look(["s2"])["s2"]
    assert (said.holder, [one.id for one in said.jobs]) == (Holder.NOBODY, [job])


def test_what_a_person_drained_is_theirs_also_in_the_middle(slurm: Slurm, controller: LabNode) -> None:
    controller.as_root("scontrol update NodeName=s1 State=DRAIN Reason='bad fan'")
    assert slurm.drain({"s1": "x", "s2": "y"}) == {}
    controller.as_root("scontrol update NodeName=s2 Reason='mine now'")
    assert slurm.resume(["s1", "s2"]) == {}
    looked = slurm.look(["s1", "s2"])
    assert {name: (said.holder, said.reason.partition(" [")[0]) for name, said in looked.items()} == {
        "s1": (Holder.OTHERS, "bad fan"),
        "s2": (Holder.OTHERS, "mine now"),
    }
    assert "somebody else holds it (mine now [root@" in slurm.mark({"s2": "x"})["s2"]


def test_a_node_that_slurm_had_lost_is_not_made_idle(slurm: Slurm, lab: Lab, controller: LabNode) -> None:
    lab.node("s2").as_root("systemctl stop slurmd")  # or it registers, and ReturnToService=2 resumes it
    controller.as_root("scontrol update NodeName=s2 State=DOWN Reason='Not responding'")
    said = slurm.look(["s2"])["s2"]
    assert (said.holder, said.down, said.takes_jobs) == (Holder.NOBODY, True, False)
    assert slurm.drain({"s2": "up 1"}) == {}
    assert slurm.mark({"s2": "up 2"}) == {}
    assert "gpuprov: (was DOWN: Not responding) up 2" in shown(controller, "s2", "Reason=")
    assert slurm.resume(["s2"]) == {}
    assert shown(controller, "s2", "State=").startswith("State=DOWN")
    assert "DRAIN" not in shown(controller, "s2", "State=")
    assert shown(controller, "s2", "Reason=").startswith("Reason=Not responding [")
    lab.node("s2").as_root("systemctl start slurmd")
    wait(lambda: states(controller)["s2"] == "idle", 60)


def test_a_node_that_a_person_set_down_is_theirs(slurm: Slurm, controller: LabNode) -> None:
    controller.as_root("scontrol update NodeName=s2 State=DOWN Reason='swap the board'")
    assert slurm.drain({"s2": "x"}) == {}
    assert slurm.resume(["s2"]) == {}
    assert shown(controller, "s2", "State=").startswith("State=DOWN")
    assert slurm.look(["s2"])["s2"].holder is Holder.OTHERS


def test_joining_partitions(slurm: Slurm, controller: LabNode) -> None:
    controller.as_root("scontrol create PartitionName=extra Nodes=s1")
    try:
        assert slurm.join("s2", "s1", ("gpu", "extra")) == ""
        assert slurm.join("s2", "s1", ("gpu", "extra")) == ""
        assert slurm.look(["s2"])["s2"].pools == ("gpu", "extra")
    finally:
        controller.as_root("scontrol delete PartitionName=extra")


def test_names_that_slurm_does_not_know(fleet: Fleet, controller: LabNode) -> None:
    slurm = Slurm(fleet, {"s1": "s1", "s2": "gpu-99"})
    why = "Slurm does not know gpu-99: set gpuprov_scheduler_name to the name that Slurm has for it"
    looked = slurm.look(["s1", "s2"])
    assert (looked["s1"].error, looked["s2"].error) == ("", why)
    assert slurm.drain({"s1": "x", "s2": "x"}) == {"s2": why}
    assert slurm.resume(["s1", "s2"]) == {"s2": why}
    assert states(controller)["s1"] == "idle"


def test_without_slurmctld_each_node_has_a_line(slurm: Slurm, controller: LabNode) -> None:
    controller.as_root("systemctl stop slurmctld")
    why = "s1: slurm_load_node error: Unable to contact slurm controller (connect failure)"
    assert {said.error for said in slurm.look(["s1", "s2"]).values()} == {why}
    assert slurm.drain({"s2": "x"}) == {"s2": why}
    assert slurm.resume(["s2"]) == {"s2": why}
    assert slurm.join("s2", "s1", ("gpu",)) == why


def test_a_slurmctld_that_hangs_ends_by_slurms_own_timeout(slurm: Slurm, controller: LabNode) -> None:
    controller.as_root("kill -STOP $(pidof slurmctld)")
    try:
        began = time.monotonic()
        why = slurm.look(["s2"])["s2"].error
        assert why == "s1: slurm_load_node error: Socket timed out on send/recv operation"
        assert time.monotonic() - began < 60
    finally:
        controller.as_root("kill -CONT $(pidof slurmctld)")


def test_up_waits_for_a_job_and_returns_the_node(operator: Operator, controller: LabNode) -> None:
    job = submit(controller, "s2", 25)
    done = operator.call(
        "up", "--yes", "--nodes", "s2", gpuprov_roles=["host_settings"], gpuprov_job_wait=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"s2: job {job} of ops" in done.stderr
    assert states(controller)["s2"] == "idle"
    calls = [(row["hook"], row.get("status")) for row in operator.records("hooks")]
    assert calls == [("drain", None), ("drain", 0), ("undrain", None), ("undrain", 0)]


def test_up_leaves_a_node_alone_whose_job_does_not_end(operator: Operator, controller: LabNode) -> None:
    job = submit(controller, "s1")
    done = operator.call(
        "up", "--yes", "--nodes", "s1", "--full", gpuprov_roles=["host_settings"], gpuprov_job_wait=3
    )
    assert done.returncode == 3, done.stdout + done.stderr
    (record,) = [row for row in operator.records("outcomes") if row["node"] == "s1"]
    assert record["status"] == "not attempted"
    assert f"job {job} of ops" in record["message"]
    assert "did not end within 3 s" in record["message"]
    assert not operator.records("events")
    assert states(controller)["s1"] in ("mixed", "allocated")


def test_validate_leaves_a_node_with_a_job_out(operator: Operator, controller: LabNode) -> None:
    job = submit(controller, "s2")
    done = operator.call("validate", "--nodes", "s2", "--json", "--checks", "gpu_burn")
    assert done.returncode == 5, done.stdout + done.stderr
    (node,) = json.loads(done.stdout)["nodes"]
    assert node["verdict"] == "error"
    assert f"job {job} of ops" in node["error"]


def test_one_command_reads_and_closes_the_breaker(
    operator: Operator, slurm: Slurm, controller: LabNode
) -> None:
    def breaker(*words: str) -> str:
        done = operator.call("watch", "breaker", *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert breaker() == "closed: nodes that fail are drained\n"
    slurm.open_breaker("3 of 3 nodes")
    assert breaker() == "open: 3 of 3 nodes\n"
    assert "the breaker of all drains is open (3 of 3 nodes)" in slurm.permit("s2", 10, 3)
    assert breaker("--close") == "closed: nodes that fail are drained\n"
    assert controller.run("scontrol --oneliner show reservation").stdout.startswith("No reservations")


def test_a_watch_takes_over_from_a_folder_that_is_named(
    operator: Operator, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earlier watch had a different folder; its leases are in Slurm."""
    earlier = Store(tmp_path / "earlier")
    before = Holding(earlier, slurm)
    with earlier.alone():
        before.keep(slurm.look(["s1", "s2"]), [])
    assert before.acts_on("s1", "s2")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    done = operator.call("watch", "take-over", "--from", str(earlier.path))
    assert done.returncode == 0, done.stderr
    assert f"taken from {before.at}" in done.stdout + done.stderr
    leases = [word.lease for word in slurm.look(["s1", "s2"]).values()]
    assert {(one.fleet, one.holder == before.holder, one.count) for one in leases if one} == {
        (before.fleet, False, 2)
    }
    assert len(leases) == 2
    slurm.lease(dict.fromkeys(("s1", "s2")), {name: slurm.look([name])[name].lease for name in ("s1", "s2")})
    assert [word.lease for word in slurm.look(["s1", "s2"]).values()] == [None, None]
