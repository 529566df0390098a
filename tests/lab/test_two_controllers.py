"""Twenty faults under a real Slurm, while two controllers are killed, cut off from the network and have their
clocks set in the middle: each fault gets one drain and one replacement.

One watch acts and the other one follows; `gpuprov watch take-over` turns that round, also while the first one
is cut off or dead. What counts is the log of slurmctld, which neither of them writes.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from gpuprov_lab.spec import NodeSpec
from provision.desired import inventory
from provision.errors import ExitCode
from provision.remote.schedulers import Holder, Scheduler, chosen
from provision.remote.schedulers.slurm_text import hosts
from provision.up.watch import returning
from provision.up.watch.incidents import Incident, Step
from tests.lab import slurm_cluster
from tests.lab.controllers import Controller, controllers
from tests.lab.gpuprov_up import Operator
from tests.lab.images import Images
from tests.lab.lab_nodes import Lab, running_lab
from tests.lab.slurm_ledger import Change, Health, Ledger, bare_fleet
from tests.lab.watches import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
# Slurm's controller is the first node, which never fails here.
SERVICE = ["gpu-01", "gpu-02", "gpu-03", "gpu-04"]
SPARES = ["gpu-05", "gpu-06"]
LIMITS = {"hourly": 1000, "rack_hourly": 1000, "share": 100, "breaker_nodes": 1000, "return_hours": 0}
# What dies in the middle of a check leaves its spare locked for little longer than this.
LIMITS |= {"verify_seconds": 30}
HOUR, DAY = 3600, 86400
PATIENCE = 240.0  # seconds from a fault, or from the end of what disturbs it, to its end


@dataclass
class Fleet:
    """The fleet, its Slurm and both controllers; `acting`: the one whose watch has the leases."""

    slurm: Scheduler
    health: Health
    ledger: Ledger
    acting: Controller
    other: Controller
    known: list[Change] = field(default_factory=list)

    def incident(self, node: str) -> Incident | None:
        """The incident of a failed node in the folder of the acting watch."""
        found = [one for one in self.acting.store.incidents() if one.node == node and one.holds_node]
        return found[-1] if found else None

    def at(self, node: str, step: Step) -> None:
        """Wait until the incident is at this step, or behind it."""
        order = list(Step)

        def reached() -> bool:
            one = self.incident(node)
            return one is not None and order.index(one.step) >= order.index(step)

        until(reached, 120, f"{node} is at {step}", self.acting.log)

    def taken_over(self) -> None:
        """The other controller's watch becomes the one that acts."""
        self.other.stop()
        print(self.other.call("take-over"))  # noqa: T201
        self.acting, self.other = self.other, self.acting
        self.acting.start()


Disturbance = Callable[[Fleet, Callable[[Step], None]], None]


def nothing(_fleet: Fleet, _at: Callable[[Step], None]) -> None: ...


def killed(step: Step, seconds: int = 0, away: float = 0.0) -> Disturbance:
    """The acting watch dies at this step and is started again, with its clock set meanwhile."""

    def disturb(fleet: Fleet, at: Callable[[Step], None]) -> None:
        at(step)
        fleet.acting.kill()
        fleet.acting.step_clock(seconds)
        time.sleep(away)
        fleet.acting.start()

    return disturb


def stepped(step: Step, seconds: int) -> Disturbance:
    """The clock of the acting controller is set at this step."""

    def disturb(fleet: Fleet, at: Callable[[Step], None]) -> None:
        at(step)
        fleet.acting.step_clock(seconds)

    return disturb


def cut(step: Step, away: float, seconds: int = 0) -> Disturbance:
    """The acting controller has no network for a while, in which its clock is set."""

    def disturb(fleet: Fleet, at: Callable[[Step], None]) -> None:
        at(step)
        fleet.acting.cut_off()
        fleet.acting.step_clock(seconds)
        time.sleep(away)
        fleet.acting.connect()

    return disturb


def killed_and_taken_over(step: Step, seconds: int = 0) -> Disturbance:
    """The acting controller dies; a person has the other one take over, and then the first one is back."""

    def disturb(fleet: Fleet, at: Callable[[Step], None]) -> None:
        at(step)
        fleet.acting.kill()
        fleet.other.step_clock(seconds)
        fleet.taken_over()
        fleet.other.start()

    return disturb


def cut_and_taken_over(step: Step, away: float, seconds: int = 0) -> Disturbance:
    """The acting controller is cut off, and the other one takes over before the network is back."""

    def disturb(fleet: Fleet, at: Callable[[Step], None]) -> None:
        at(step)
        fleet.acting.cut_off()
        fleet.other.step_clock(seconds)
        fleet.taken_over()
        time.sleep(away)
        fleet.other.connect()

    return disturb


def follower(fleet: Fleet, at: Callable[[Step], None]) -> None:
    """What happens to the follower is nothing to the fault."""
    fleet.other.kill()
    at(Step.DRAIN)
    fleet.other.step_clock(-3 * HOUR)
    fleet.other.start()
    at(Step.VERIFY)
    fleet.other.cut_off()
    time.sleep(10)
    fleet.other.connect()


def both_killed(fleet: Fleet, at: Callable[[Step], None]) -> None:
    at(Step.VERIFY)
    fleet.acting.kill()
    fleet.other.kill()
    fleet.acting.step_clock(HOUR)
    fleet.other.start()  # the follower is back first
    time.sleep(20)
    fleet.acting.start()


FAULTS: list[tuple[str, Disturbance]] = [
    ("nothing else happens", nothing),
    ("killed as it drains", killed(Step.DRAIN)),
    ("killed as it checks the spare", killed(Step.VERIFY)),
    ("killed as it puts the spare into service", killed(Step.PLACE)),
    ("killed as it keeps evidence", killed(Step.EVIDENCE, away=5)),
    ("an hour forward as it checks the spare", stepped(Step.VERIFY, HOUR)),
    ("an hour back as it drains", stepped(Step.DRAIN, -HOUR)),
    ("three days forward as it chooses", stepped(Step.CHOOSE, 3 * DAY)),
    ("five days back as it puts the spare into service", stepped(Step.PLACE, -5 * DAY)),
    ("killed as it checks the spare, and an hour back", killed(Step.VERIFY, -HOUR)),
    ("killed as it drains, and two days forward", killed(Step.DRAIN, 2 * DAY)),
    ("cut off for 20 s as it checks the spare", cut(Step.VERIFY, 20)),
    ("cut off for 50 s as it drains, and an hour back", cut(Step.DRAIN, 50, -HOUR)),
    ("the follower dies, is set back and cut off", follower),
    ("dead as it checks the spare, and taken over", killed_and_taken_over(Step.VERIFY)),
    ("dead as it puts the spare into service, and taken over by one a day ahead",
     killed_and_taken_over(Step.PLACE, DAY)),
    ("cut off as it checks the spare, and taken over", cut_and_taken_over(Step.VERIFY, 5)),
    ("cut off as it drains, and taken over by one an hour back", cut_and_taken_over(Step.DRAIN, 5, -HOUR)),
    ("cut off as it puts the spare into service, and taken over", cut_and_taken_over(Step.PLACE, 20)),
    ("both die, and the follower is back first", both_killed),
]  # fmt: skip


@pytest.fixture(scope="module")
def lab(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    nodes = tuple(NodeSpec(name, "none") for name in (*SERVICE, *SPARES))
    disks = {node.name: images.slurm_alone() for node in nodes}
    with running_lab("two", nodes, tmp_path_factory.mktemp("lab") / "lab.yml", images=disks) as running:
        yield running


@pytest.fixture(scope="module")
def fleet(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("controllers")
    path = bare_fleet(lab.inventory, folder / "nodes.yml", SPARES, SERVICE[0], **LIMITS)
    nodes = {name: lab.node(name) for name in (*SERVICE, *SPARES)}
    ledger = Ledger(slurm_cluster.start(list(nodes.values()), gpus=0, patience=120))
    health = Health(nodes)
    for name in nodes:
        health.write(name)
    for name in SPARES:
        ledger.leave(name)
    slurm = chosen.only(inventory.load(path), {})[0]
    with controllers(lab.record, Operator(path, folder / "runs"), folder, "ctl-1", "ctl-2") as (one, two):
        one.call("spare", "--nodes", ",".join(SPARES))
        one.start()
        until(lambda: len(one.store.validated()) == len(SPARES), 120, "the spares are validated", one.log)
        two.start()
        until(lambda: "following: " in two.log.read_text(), 60, "it follows", two.log)
        yield Fleet(slurm, health, ledger, one, two)
        one.stop()
        two.stop()


def test_each_fault_has_one_drain_and_one_replacement(fleet: Fleet) -> None:
    fleet.known = fleet.ledger.changes()
    serving = set(SERVICE)
    for number, (what, disturb) in enumerate(FAULTS):
        node = sorted(serving - {SERVICE[0]})[number % (len(serving) - 1)]
        began = time.monotonic()
        fleet.health.write(node, lost=number % 8)
        disturb(fleet, functools.partial(fleet.at, node))

        def ended(node: str = node) -> bool:
            one = fleet.incident(node)
            return one is not None and one.placed is not None and not one.is_open

        until(ended, PATIENCE, f"{what}: {node} is replaced", fleet.acting.log)
        incident = fleet.incident(node)
        assert incident is not None
        print(f"{number}: {what}: {node} by {incident.spare}: {time.monotonic() - began:.0f} s")  # noqa: T201
        serving = serving - {node} | {incident.spare}
        is_right(fleet, incident, serving)
        returned(fleet, incident)
    time.sleep(40)  # a follower that is still to notice something has noticed it by then
    assert fleet.ledger.changes() == fleet.known, "nothing is done after the last fault"
    ended_right(fleet, serving)


def is_right(fleet: Fleet, incident: Incident, serving: set[str]) -> None:
    """One drain of the failed node, one resume of its replacement, and nothing else since the last fault."""
    every = fleet.ledger.changes()
    new = every[len(fleet.known) :]
    marks = f"{incident.id} takes the place of {incident.node}"
    counted = Counter((one.kind, one.node) for one in new)
    assert counted["drain", incident.node] == 1, new
    assert counted["resume", incident.spare] == 1, new
    for one in new:
        if one.node == incident.node:
            assert one.reason.startswith(incident.id), (one, incident)
        elif one.kind == "drain":
            assert one.node not in serving or one.reason == marks, (one, incident)
        else:
            assert one.node == incident.spare, (one, incident)
    # After its resume nothing more was done to the replacement.
    assert [one.kind for one in new if one.node == incident.spare][-1] == "resume", new
    words = fleet.slurm.look([*SERVICE, *SPARES])
    assert {name for name, word in words.items() if word.takes_jobs} == serving, words
    assert {word.holder for name, word in words.items() if name not in serving} == {Holder.US}
    assert set(hosts(fleet.ledger.partition())) == {*serving, incident.node}


def returned(fleet: Fleet, incident: Incident) -> None:
    """The node is repaired, and becomes a spare as `gpuprov return` makes it one."""
    acting = fleet.acting
    fleet.health.write(incident.node)
    fleet.ledger.leave(incident.node)

    def passed(_part: str) -> int:
        return ExitCode.OK

    def now() -> float:
        return time.time() + acting.ahead

    assert returning.bring_back(incident, acting.store, fleet.slurm, passed, now, print) == ExitCode.OK
    fleet.known = fleet.ledger.changes()


def ended_right(fleet: Fleet, serving: set[str]) -> None:
    """No incident is left in the middle, and who acts has all leases."""
    store = fleet.acting.store
    assert not [one for one in store.incidents() if one.is_open]
    assert not store.damaged
    words = fleet.slurm.look([*SERVICE, *SPARES])
    assert {word.lease and word.lease.holder for word in words.values()} == {store.lease()["holder"]}
    assert {name for name, word in words.items() if word.takes_jobs} == serving
    assert "state: follows" not in fleet.acting.call("state")
    assert "it follows" in fleet.other.call("state")
