"""Two controllers of one fleet under a real Slurm: one watch acts and the other follows, until a person has
the follower take over: after a kill, with a renamed inventory, and after the loss of its state folder.

A controller is a host name (in a UTS namespace of its own) and a state folder. Each fault causes exactly one
drain and one replacement, whichever watch is at work, and a replacement is never drained.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.desired import inventory
from provision.errors import ExitCode
from provision.fleet import Fleet
from provision.remote.schedulers import PREFIX, Holder, Leases, Scheduled, chosen
from provision.up.watch.incidents import Incident, Step, Store, new, place_of
from provision.up.watch.lease import Holding
from provision.up.watch.take_over import take_over
from tests.lab import slurm_cluster
from tests.lab.gpuprov_up import Operator, said
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, LabNode, running_lab
from tests.lab.watches import declare, state_home, until, validated

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
SERVICE = ["gpu-01", "gpu-02", "gpu-03"]
SPARES = ["gpu-04", "gpu-05"]
NAMED = ("unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"')


@dataclass
class Controller:
    """A machine with this host name and state folder, from which a person runs gpuprov."""

    host: str
    home: Path
    operator: Operator
    process: subprocess.Popen[str] | None = None
    log: Path = field(default_factory=Path)

    def words(self, act: str) -> list[str]:
        with state_home(self.home):
            return [*NAMED, self.host, *self.operator._words("watch", (act,), {})]

    def call(self, act: str) -> str:
        done = subprocess.run(
            self.words(act), capture_output=True, text=True, timeout=300, check=False, env=self.environment
        )
        assert done.returncode == ExitCode.OK, said(done)
        return done.stdout + done.stderr

    def start(self) -> None:
        self.log = self.home / f"watch-{time.monotonic():.0f}.log"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                self.words("run"), stdout=out, stderr=subprocess.STDOUT, text=True, env=self.environment
            )

    def end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(how)
            process.wait(90)

    @property
    def environment(self) -> dict[str, str]:
        return {**self.operator._environment, "XDG_STATE_HOME": str(self.home)}

    @property
    def store(self) -> Store:
        with state_home(self.home):
            return Store(place_of(inventory.load(self.operator.inventory)))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LabNode, Fleet]]:
    """Start three nodes with nothing but Slurm; yield the node of Slurm's controller and the fleet."""
    nodes = tuple(NodeSpec(name, "h100-sxm") for name in SERVICE)
    folder = tmp_path_factory.mktemp("bare")
    with running_lab("leases", nodes, folder / "lab.yml") as running:
        made = [running.node(name) for name in SERVICE]
        for node in made:
            node.as_root("apt-get update -q", timeout=300)
        controller = slurm_cluster.start(made, gpus=0, patience=120)
        path = declare(running.inventory, folder / "nodes.yml", ["gpu-03"], SERVICE[0])
        yield controller, inventory.load(path)


def test_leases_of_a_real_slurm(bare: tuple[LabNode, Fleet], tmp_path: Path) -> None:
    """Two watches take leases at once; Slurm restarts; one watch takes over; Slurm loses all its state."""
    controller, fleet = bare
    controller.as_root("scontrol update NodeName=gpu-03 Comment='rack 7, moved'")
    stores = [Store(tmp_path / name) for name in ("one", "two")]
    for store in stores:
        store.path.mkdir()
    # Each watch has its own connection to Slurm, as on two machines.
    both = [Holding(store, slurm_of(fleet)) for store in stores]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda holding: kept(holding, fleet), both))
    has = [kept(holding, fleet) for holding in both]
    assert sorted(map(len, has)) == [0, 3], has
    one, two = sorted(both, key=lambda holding: len(kept(holding, fleet)), reverse=True)
    assert two.follows == one.at

    for command in (
        "scontrol reconfigure && sleep 6",
        "systemctl restart slurmctld && sleep 5",
        "kill -9 $(pidof slurmctld); sleep 1; systemctl restart slurmctld && sleep 5",
    ):
        controller.as_root(command)
        assert (len(kept(one, fleet)), kept(two, fleet)) == (3, []), command
    comment = controller.as_root("scontrol show node gpu-03 | grep Comment=").stdout
    assert comment.strip().startswith("Comment=rack 7, moved [gpuprov watch: fleet="), comment

    # gpu-02 has failed and its spare is in service; now the watch's folder is lost.
    slurm = slurm_of(fleet)
    incident = new("gpu-02", time.time(), "gpu3: GPU has fallen off the bus", spare="gpu-03")
    assert (
        slurm.drain({"gpu-02": incident.reason, "gpu-03": f"{incident.id} takes the place of gpu-02"}) == {}
    )
    assert one.note(incident) == ""
    assert slurm.resume(["gpu-03"]) == {}
    third = Store(tmp_path / "three")
    third.path.mkdir()
    with third.alone():
        take_over(fleet, third, slurm_of(fleet), None, print)
    (rebuilt,) = third.incidents()
    assert (rebuilt.id, rebuilt.step, rebuilt.spare) == (incident.id, Step.REPAIR, "gpu-03")
    assert rebuilt.cause == incident.cause
    assert (kept(one, fleet), kept(two, fleet)) == ([], [])
    found = slurm.look(list(fleet.nodes))
    assert {word.lease.count for word in found.values() if word.lease} == {2}
    assert (found["gpu-02"].holder, found["gpu-03"].holder) == (Holder.US, Holder.NOBODY)

    controller.as_root(
        "systemctl stop slurmctld; su slurm -s /bin/sh -c 'slurmctld -c'; sleep 4;"
        " kill $(pidof slurmctld); sleep 2; systemctl start slurmctld; sleep 3"
    )
    assert {word.lease for word in slurm.look(list(fleet.nodes)).values()} == {None}
    assert (kept(one, fleet), kept(two, fleet)) == ([], []), "who followed does not begin by itself"
    assert len(kept(Holding(third, slurm_of(fleet)), fleet)) == 3


def slurm_of(fleet: Fleet) -> Leases:
    found, _ = chosen.only(fleet, {})
    assert isinstance(found, Leases)
    return found


def kept(holding: Holding, fleet: Fleet) -> list[str]:
    """Observe all nodes and return those on which the watch may act."""
    words = holding._scheduler.look(list(fleet.nodes))
    assert not [word.error for word in words.values() if word.error]
    holding.saw(words)
    holding.keep(words, [])
    return [name for name in fleet.nodes if holding.acts_on(name)]


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = tuple(NodeSpec(name, "h100-sxm") for name in (*SERVICE, *SPARES))
    disks = {node.name: images.with_slurm() for node in nodes}
    with running_lab("lease", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", images=disks) as running:
        yield running


@pytest.fixture(scope="module")
def controllers(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Controller]]:
    folder = tmp_path_factory.mktemp("controllers")
    path = declare(
        lab.inventory,
        folder / "nodes.yml",
        SPARES,
        SERVICE[0],
        gpuprov_watch={"hourly": 100, "share": 100},
    )
    operator = Operator(path, tmp_path_factory.mktemp("runs"))
    slurm_cluster.start([lab.node(name) for name in (*SERVICE, *SPARES)], patience=120)
    done = operator.call("up", "--yes", timeout=2400)
    assert done.returncode == ExitCode.OK, said(done)
    made = []
    for host in ("ctl-1", "ctl-2"):
        (folder / host).mkdir()
        made.append(Controller(host, folder / host, operator))
    with state_home(made[0].home):
        done = operator.call("watch", "spare", "--nodes", ",".join(SPARES))
    assert done.returncode == ExitCode.OK, said(done)
    yield made
    for one in made:
        one.end(signal.SIGTERM)


def words(controller: Controller) -> dict[str, Scheduled]:
    fleet = inventory.load(controller.operator.inventory)
    found = chosen.only(fleet, {})[0].look(list(fleet.nodes))
    assert not [one.error for one in found.values() if one.error]
    return found


def replaced(store: Store, node: str) -> Incident | None:
    return next((one for one in store.incidents() if one.node == node and one.placed), None)


def is_right(controller: Controller, pairs: dict[str, str]) -> None:
    """Assert one drain and one replacement for each failed node, and no other change."""
    found = words(controller)
    for node, spare in pairs.items():
        assert found[node].reason.startswith(PREFIX), found[node]
        assert node in found[node].reason
        assert (found[spare].holder, found[spare].takes_jobs) == (Holder.NOBODY, True), found[spare]
    spares = set(SPARES) - set(pairs.values())
    drained = {name for name, word in found.items() if word.holder is not Holder.NOBODY}
    assert drained == {*pairs, *spares}
    incidents = [one for one in controller.store.incidents() if one.step is not Step.CLOSED]
    assert {one.node: one.spare for one in incidents} == pairs


def test_one_acts_and_the_other_takes_over(lab: Lab, controllers: list[Controller]) -> None:
    one, two = controllers
    one.start()
    until(lambda: len(validated(one.store)) == 2, 300, "the spares are validated", one.log)
    two.start()
    until(
        lambda: "following: gpu-[01-05]: watched by ctl-1:" in two.log.read_text(), 60, "it follows", two.log
    )
    assert "it follows ctl-1:" in two.call("state")

    lab.node("gpu-02").fault("gpu_off_bus", gpu=3)
    until(lambda: replaced(one.store, "gpu-02") is not None, 180, "a spare is in its place", one.log)
    first = replaced(one.store, "gpu-02")
    assert first is not None
    pairs = {"gpu-02": first.spare}
    is_right(one, pairs)
    assert two.store.incidents() == []

    master = lab.node(SERVICE[0])
    master.as_root("scontrol reconfigure && sleep 6 && systemctl restart slurmctld")
    time.sleep(5)
    holder = one.store.lease()["holder"]
    assert {word.lease and word.lease.holder for word in words(one).values()} == {holder}

    one.end(signal.SIGKILL)
    time.sleep(35)  # longer than the follower's interval between two queries of the scheduler
    is_right(one, pairs)
    assert two.store.incidents() == []
    two.end(signal.SIGTERM)
    print(two.call("take-over"))  # noqa: T201
    two.start()
    one.start()
    until(
        lambda: "following: gpu-[01-05]: watched by ctl-2:" in one.log.read_text(), 60, "it follows", one.log
    )
    until(lambda: len(validated(two.store)) == 1, 300, "the spare that is left is validated", two.log)
    is_right(two, pairs)

    lab.node("gpu-03").fault("gpu_off_bus", gpu=5)
    until(lambda: replaced(two.store, "gpu-03") is not None, 180, "a spare is in its place", two.log)
    pairs["gpu-03"] = next(name for name in SPARES if name != first.spare)
    is_right(two, pairs)
    assert [each.node for each in one.store.incidents()] == ["gpu-02"]
    one.end(signal.SIGTERM)
    until(lambda: not any(each.is_open for each in two.store.incidents()), 300, "evidence is kept", two.log)


def follows_and_takes_over(controller: Controller, pairs: dict[str, str]) -> str:
    """Return the output of take-over, after which the watch runs and changes nothing in its first rounds."""
    controller.start()
    until(lambda: "following: " in controller.log.read_text(), 60, "it follows", controller.log)
    controller.end(signal.SIGTERM)
    printed = controller.call("take-over")
    controller.start()
    until(lambda: "watching 5 nodes" in controller.log.read_text(), 60, "it watches", controller.log)
    time.sleep(35)
    is_right(controller, pairs)
    assert "following" not in controller.log.read_text()
    controller.end(signal.SIGTERM)
    return printed


def test_a_renamed_inventory_and_a_lost_state_folder(controllers: list[Controller]) -> None:
    _, two = controllers
    two.end(signal.SIGTERM)
    pairs = {one.node: one.spare for one in two.store.incidents()}
    assert sorted(pairs) == ["gpu-02", "gpu-03"]
    before = {one.id for one in two.store.incidents()}
    path = two.operator.inventory
    renamed = Controller(
        two.host, two.home, Operator(path.rename(path.with_name("renamed.yml")), two.operator.runs)
    )
    printed = follows_and_takes_over(renamed, pairs)
    assert "2 incidents copied from " in printed
    assert {one.id for one in renamed.store.incidents()} == before

    shutil.rmtree(renamed.home / "gpuprov")
    printed = follows_and_takes_over(renamed, pairs)
    assert "rebuilt from the scheduler" in printed
    assert {one.id for one in renamed.store.incidents()} == before
    assert os.listdir(renamed.home / "gpuprov")  # noqa: PTH208
