"""An incident step by step, and every event that can come between two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provision.fleet import Fleet
from provision.remote.schedulers import PREFIX
from provision.up.watch.decide import View
from provision.up.watch.incidents import Incident, Step, Store, moved, new
from provision.up.watch.lease import Holding
from provision.up.watch.policy import Policy
from provision.up.watch.seen import Seen
from provision.up.watch.steps import ASIDE, CHECK_TRIES, PATIENCE, PLACE_TRIES, Checked, Message, Steps
from tests.support.watching import GOOD, LOST, FileScheduler, PooledScheduler, fleet, seen

NOW = 1_800_000_000.0


class World:
    """A fleet of eight nodes and two spares in which gpu-03 has failed."""

    def __init__(
        self, folder: Path, scheduler: type[FileScheduler] = FileScheduler, of: Fleet | None = None
    ) -> None:
        self.fleet = of or fleet()
        self.store = Store(folder)
        self.scheduler = scheduler(folder / "slurm.json")
        folder.mkdir(exist_ok=True)
        self.scheduler.begin(self.fleet)
        self.lease = Holding(self.store, self.scheduler)
        self.lease.keep(self.scheduler.look(list(self.fleet.nodes)), [])
        self.at, self.ages = NOW, dict[str, float]()
        self.seen: dict[str, Seen] = {name: seen(name, NOW, **GOOD) for name in self.fleet.nodes}
        self.seen["gpu-03"] = seen("gpu-03", NOW, **LOST)
        self.answers: dict[str, Checked] = {}
        self.on_verify: Callable[[str], Any] = lambda _spare: None
        self.told: list[Message] = []
        self.lines: list[str] = []
        self.steps = Steps(self, self.store, Policy(), self.lines.append)
        more = {name: LOST[name] for name in ("cause", "action", "device", "serial")}
        self.incident = new("gpu-03", NOW, **more)
        self.store.write(self.incident)

    def now(self) -> float:
        return self.at

    def view(self) -> View:
        words = self.scheduler.look(list(self.fleet.nodes))
        validated = dict.fromkeys(self.fleet.groups["gpuprov_spares"], self.at - 60)
        return View(self.at, self.fleet, self.seen, words, self.store.incidents(), validated, ages=self.ages)

    def verify(self, spare: str) -> Checked:
        self.on_verify(spare)
        return self.answers.get(spare, Checked(True, run="a-run"))

    def evidence(self, incident: Incident) -> str:  # noqa: ARG002 - the protocol requires it
        return ""

    def tell(self, message: Message) -> None:
        self.told.append(message)

    def go(self, most: int = 20) -> Incident:
        """Advance the incident until it is closed or has to wait."""
        for _ in range(most):
            if not self.incident.is_open:
                break
            before = self.incident
            self.incident, pause = self.steps.advance(before)
            assert self.on_disk() == self.incident
            if pause:
                break
        return self.incident

    def takes(self, spare: str, reason: str) -> Callable[[str], None]:
        """Return a callback under which `spare` is drained with this reason while it is checked."""

        def take(checked: str) -> None:
            if checked == spare:
                self.scheduler.set(spare, reason=reason)

        return take

    def on_disk(self) -> Incident:
        return next(one for one in self.store.incidents() if one.id == self.incident.id)

    def row(self, node: str) -> dict[str, Any]:
        with self.scheduler.rows() as rows:
            return dict(rows[node])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "watch")


def test_a_failed_node_is_drained_and_a_spare_of_its_rack_takes_its_place(world: World) -> None:
    done = world.go()
    assert (done.step, done.spare) == (Step.REPAIR, "spare-1")
    assert world.row("gpu-03")["reason"] == f"{PREFIX}{done.id} {LOST['cause']}"
    assert world.row("spare-1") == {"reason": "", "pools": ["gpu"], "jobs": []}
    assert world.scheduler.done() == ["drain gpu-03", "mark spare-1", "join spare-1 gpu", "resume spare-1"]
    (message,) = world.told
    assert message.kind == "replaced"
    assert (message.node, message.serial, message.action) == ("gpu-03", "1650923004321", "power-cycle")
    assert message.next == "gpuprov return gpu-03"


@pytest.mark.parametrize("during", [True, False], ids=["as it is checked", "between two checks"])
def test_a_spare_that_fails_itself_waits_for_repair_and_another_is_chosen(world: World, during: bool) -> None:
    failed = moved(new("spare-1", NOW, "Xid 79", was_spare=True), Step.REPAIR)

    def fails(spare: str) -> None:
        if spare == "spare-1":
            world.store.write(failed)

    if during:
        world.on_verify = fails
    else:
        world.answers["spare-1"] = Checked(False, "no answer", again=True)
        assert world.go().spare == "spare-1"
        world.answers = {}
        fails("spare-1")
    assert world.go().spare == "spare-2"
    assert "resume spare-1" not in world.scheduler.done()


def test_people_read_how_long_it_took_though_the_clock_was_set(world: World) -> None:
    world.ages[world.incident.id] = 12.0
    world.on_verify = lambda _spare: setattr(world, "at", NOW - 3600.0)
    world.go()
    assert "spare-1 took its place after 12 s" in world.told[0].text


def test_the_failed_node_leaves_its_pools_once_the_spare_is_in_them(tmp_path: Path) -> None:
    world = World(tmp_path, PooledScheduler)
    assert world.go().pools == ("gpu",)
    assert world.scheduler.done()[-3:] == ["join spare-1 gpu", "resume spare-1", "left gpu-03"]


def test_where_it_cannot_leave_them_the_spare_serves_all_the_same(tmp_path: Path) -> None:
    world = World(tmp_path, PooledScheduler)
    world.scheduler.broken = {"left": {"gpu-03": "forbidden (403)"}}
    assert world.go().step is Step.REPAIR
    assert any(line.endswith("gpu-03 keeps its pools: forbidden (403)") for line in world.lines)


def test_nothing_is_done_where_the_node_recovered_before_it_was_drained(world: World) -> None:
    world.seen["gpu-03"] = seen("gpu-03")
    assert world.go().step is Step.CLOSED
    assert world.scheduler.done() == []


def test_a_spare_that_an_earlier_watch_has_just_resumed_is_not_replaced_by_another(world: World) -> None:
    """The earlier watch completed its last step while this watch took over."""
    world.go(3)
    incident = world.incident = moved(world.on_disk(), Step.VERIFY, spare="spare-1")
    assert world.lease.note(incident) == ""
    world.scheduler.set("spare-1", reason="")
    done = world.go()
    assert (done.step, done.spare) == (Step.REPAIR, "spare-1")
    assert world.row("spare-2")["reason"] == f"{PREFIX}spare"


def test_an_incident_of_yesterday_waits_for_todays_health(world: World) -> None:
    del world.seen["gpu-03"]
    world.at = NOW + 86400
    assert (world.go().step, world.scheduler.done()) == (Step.DRAIN, [])
    world.seen["gpu-03"] = seen("gpu-03", **LOST)
    assert world.go().step is Step.REPAIR


@pytest.mark.parametrize("reason", ["fan [ann@2026]", f"{PREFIX}20990101T000000Z-gpu-03 by another watch"])
def test_who_drained_it_first_has_it(world: World, reason: str) -> None:
    world.scheduler.set("gpu-03", reason=reason)
    assert world.go().step is Step.CLOSED
    assert world.scheduler.done() == []
    assert world.row("gpu-03")["reason"] == reason


def test_a_node_that_drained_itself_is_taken_from_there(world: World) -> None:
    world.scheduler.set("gpu-03", reason=f"{PREFIX}gpu3: GPU has fallen off the bus (serial 16): power-cycle")
    done = world.go()
    assert (done.step, done.spare) == (Step.REPAIR, "spare-1")
    assert world.row("gpu-03")["reason"] == f"{PREFIX}{done.id} {LOST['cause']}"
    assert "drain gpu-03" not in world.scheduler.done()


def test_a_drain_that_fails_is_tried_again_and_told_once(world: World) -> None:
    world.scheduler.broken["drain"] = {"gpu-03": "slurmctld does not answer"}
    assert world.go().step is Step.DRAIN
    world.go()
    assert {message.id for message in world.told} == {f"{world.incident.id}.not-drained"}
    assert "slurmctld does not answer" in world.incident.note
    del world.scheduler.broken["drain"]
    assert world.go().step is Step.REPAIR


def test_a_spare_that_fails_its_last_check_goes_to_repair_and_the_next_one_is_taken(world: World) -> None:
    world.answers["spare-1"] = Checked(False, "gpu_inventory: 7 of 8 GPUs answer", "a-run")
    done = world.go()
    assert (done.step, done.spare, done.tried) == (Step.REPAIR, "spare-2", ("spare-1",))
    failed = next(one for one in world.store.incidents() if one.node == "spare-1")
    assert failed.was_spare
    assert "7 of 8" in failed.cause
    assert "resume spare-1" not in world.scheduler.done()


def test_without_a_spare_it_waits_drained_and_says_so(world: World) -> None:
    world.scheduler.set("spare-1", reason="moved [ann]")
    world.scheduler.set("spare-2", reason="moved [ann]")
    assert world.go().step is Step.CHOOSE
    assert world.row("gpu-03")["reason"].startswith(PREFIX)
    assert world.told[0].kind == "no-spare"
    assert "spare-1: somebody else drained it: moved [ann]" in world.told[0].text
    world.scheduler.set("spare-2", reason=f"{PREFIX}spare")
    assert world.go().spare == "spare-2"


def test_a_check_that_says_nothing_of_the_spare_is_made_again(world: World) -> None:
    world.answers["spare-1"] = Checked(False, "locked by another run", again=True)
    assert world.go().step is Step.VERIFY
    world.answers.clear()
    done = world.go()
    assert (done.step, done.spare, done.tried) == (Step.REPAIR, "spare-1", ())


def test_a_short_wait_does_not_read_as_a_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run may hold a spare briefly, and Slurm takes seconds until a resumed spare accepts jobs."""
    monkeypatch.setattr(world.scheduler, "resume", lambda _nodes: {})
    world.answers["spare-1"] = Checked(False, "locked by another run", again=True)
    assert world.go().note == "waiting to check spare-1: locked by another run"
    world.answers.clear()
    assert world.go().step is Step.PLACE
    assert world.incident.note.startswith("waiting until spare-1 takes jobs: it takes no jobs: ")
    monkeypatch.undo()
    assert world.go().step is Step.REPAIR
    shown = "\n".join([*world.lines, *(message.text for message in world.told)])
    assert "waiting until spare-1 takes jobs" in shown
    assert "cannot" not in shown
    assert "could not" not in shown


BLIP = Checked(False, "spare-1 does not answer", "a-run", again=True, elsewhere=True)


def test_a_blip_of_the_network_costs_no_spare(world: World) -> None:
    """While no spare can be checked, none counts as failed; each is checked again after the outage."""
    world.answers = dict.fromkeys(("spare-1", "spare-2"), BLIP)
    assert world.go().step is Step.CHOOSE
    assert list(world.steps.aside) == ["spare-1", "spare-2"]
    for _ in range(10):
        world.go()
    assert [one.node for one in world.store.incidents()] == ["gpu-03"], "no spare went to repair"
    assert world.told == [], "the watch reports spares that cannot be checked; this is the same event"
    assert "could not be checked: spare-1 does not answer" in world.incident.note
    world.answers.clear()
    world.at += ASIDE + 1
    done = world.go()
    assert (done.step, done.spare, done.tried) == (Step.REPAIR, "spare-1", ())
    assert list(world.steps.aside) == ["spare-2"]


def test_a_node_that_waits_long_for_spares_that_cannot_be_checked_is_reported(world: World) -> None:
    world.answers = dict.fromkeys(("spare-1", "spare-2"), BLIP)
    world.go()
    world.at += PATIENCE + 1
    world.go()
    assert {message.kind for message in world.told} == {"no-spare"}


def test_a_spare_whose_check_cannot_start_is_left_for_another(world: World) -> None:
    """A missing vault file, a full disk or another run's lock may affect every spare, or only this one."""
    world.answers["spare-1"] = Checked(False, "vault.txt: No such file", again=True)
    tries = 0
    while world.go().step is not Step.REPAIR:
        tries += 1
        assert tries < CHECK_TRIES, "no other spare was tried"
    assert (world.incident.spare, world.incident.tried) == ("spare-2", ())
    assert world.steps.aside["spare-1"] == (NOW, "could not be checked: vault.txt: No such file")


def test_so_many_spares_an_hour_go_to_repair_and_no_more(tmp_path: Path) -> None:
    world = World(tmp_path / "watch", of=fleet(spares=5))
    bad = Checked(False, "nvidia-smi: not found", "a-run")
    world.answers = {f"spare-{number}": bad for number in range(1, 6)}
    assert world.go().step is Step.CHOOSE
    lost = [one.node for one in world.store.incidents() if one.was_spare]
    assert len(lost) == Policy().spares_hourly == 2
    (message,) = world.told
    assert message.kind == "no-spare"
    assert "2 spares went to repair within an hour, which is the limit (gpuprov_watch.spares_hourly)" in (
        message.text
    )
    world.answers.clear()
    world.at += 3601
    assert world.go().step is Step.REPAIR


def test_a_node_that_a_person_resumed_while_it_waited_is_left_in_service(world: World) -> None:
    for spare in ("spare-1", "spare-2"):
        world.scheduler.set(spare, reason="moved [ann]")
    assert world.go().step is Step.CHOOSE
    world.scheduler.set("gpu-03", reason="")
    assert world.go().step is Step.CLOSED


def test_the_next_command_has_the_nodes_of_this_watch(world: World) -> None:
    world.steps = Steps(world, world.store, Policy(), world.lines.append, " --nodes rack1")
    world.go()
    assert world.told[0].next == "gpuprov return gpu-03 --nodes rack1"


def test_a_person_who_takes_the_spare_meanwhile_has_it(world: World) -> None:
    world.on_verify = world.takes("spare-1", "mine [ann]")
    done = world.go()
    assert done.spare == "spare-2"
    assert world.row("spare-1")["reason"] == "mine [ann]"


def test_two_watches_never_take_the_same_spare(world: World) -> None:
    other = f"{PREFIX}20990101T000000Z-gpu-07 takes the place of gpu-07"
    world.on_verify = world.takes("spare-1", other)
    assert world.go().spare == "spare-2"
    assert world.row("spare-1")["reason"] == other


def test_a_spare_that_dies_while_it_is_put_in_is_left_out(world: World) -> None:
    def dies(spare: str) -> None:
        if spare == "spare-1":
            world.seen[spare] = seen(spare, **LOST)

    world.on_verify = dies
    for _ in range(PLACE_TRIES + 1):
        world.go()
    assert (world.incident.step, world.incident.spare) == (Step.REPAIR, "spare-2")
    assert "resume spare-1" not in world.scheduler.done()


def test_a_spare_that_cannot_join_is_put_back_and_people_are_told(world: World) -> None:
    world.scheduler.broken["join"] = {"spare-1": "no partition gpu"}
    for _ in range(PLACE_TRIES + 1):
        world.go()
    assert (world.incident.step, world.incident.spare) == (Step.REPAIR, "spare-2")
    assert "not-placed" in {message.kind for message in world.told}
    assert world.row("spare-1")["reason"].startswith(PREFIX)


def test_a_spare_that_takes_no_jobs_after_all_is_drained_again(world: World) -> None:
    world.scheduler.set("spare-1", down=True)
    for _ in range(PLACE_TRIES + 1):
        world.go()
    assert world.incident.spare == "spare-2"
    assert world.row("spare-1")["reason"].startswith(PREFIX)


def test_every_step_can_be_done_twice(world: World) -> None:
    """The watch was killed after a step was done and before that was written."""
    for step in (Step.DRAIN, Step.CHOOSE, Step.VERIFY, Step.PLACE, Step.EVIDENCE):
        assert world.incident.step is step
        world.steps.advance(world.incident)
        world.store.write(world.incident)  # the incident as before the step
        world.incident, _ = world.steps.advance(world.incident)
    assert (world.incident.step, world.incident.spare) == (Step.REPAIR, "spare-1")
    assert world.scheduler.done() == ["drain gpu-03", "mark spare-1", "join spare-1 gpu", "resume spare-1"]


@pytest.mark.parametrize(
    ("reason", "health", "step", "kinds"),
    [
        ("", LOST, Step.DRAIN, ["not-drained"]),
        ("", GOOD, Step.CLOSED, []),
        ("moved [ann]", LOST, Step.CLOSED, []),
        (f"{PREFIX}spare", LOST, Step.REPAIR, ["spare-failed"]),
    ],
    ids=["put into service", "well again", "a person has it", "waits"],
)
def test_a_spare_that_failed_is_marked_or_told_of(
    tmp_path: Path, reason: str, health: dict[str, Any], step: Step, kinds: list[str]
) -> None:
    world = World(tmp_path)
    world.incident = new("spare-1", NOW, "gpu3: lost", was_spare=True)
    world.scheduler.set("spare-1", reason=reason)
    world.seen["spare-1"] = seen("spare-1", NOW, **health)
    assert world.go().step is step
    assert list(dict.fromkeys(message.kind for message in world.told)) == kinds


@pytest.mark.parametrize(("seconds", "waits"), [(30, False), (90, True), (-3600, True)])
def test_an_incident_that_is_not_of_the_last_minute_waits_for_a_health_result(
    tmp_path: Path, seconds: float, waits: bool
) -> None:
    """If the clock was set back, an old incident looks new, but its node may have recovered since."""
    world = World(tmp_path)
    del world.seen["gpu-03"]
    world.at = NOW + seconds
    world.go(1)
    assert (world.incident.step is Step.DRAIN) == waits
