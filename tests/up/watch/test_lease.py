"""Leases of nodes: their content, the watch that may act, and the watch that follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from provision.errors import GpuprovError
from provision.remote.schedulers import Scheduled
from provision.remote.schedulers.lease import Lease, put, read
from provision.up.watch import heartbeat
from provision.up.watch.aside import set_aside
from provision.up.watch.incidents import Step, Store, moved, new
from provision.up.watch.lease import Holding, placement, placements, refuse_half_taken, refuse_held
from tests.support.one_watch import One
from tests.support.watched import healths
from tests.support.watching import FileScheduler, fleet

STRANGE = Lease("f", "h", 3, "ctl 1:/home/ann's/{{ x }}]", "id=1 gpu-01 spare-1")


@pytest.mark.parametrize("before", ["", "rack 7 [moved]", "a [gpuprov watch: fleet=x holder=y count=1] b"])
def test_a_lease_stands_behind_the_words_of_others(before: str) -> None:
    text = put(before, STRANGE)
    assert read(text) == STRANGE
    assert "{{" not in text
    assert put(text, None) == put(before, None)


@pytest.mark.parametrize(
    "text",
    [
        "[gpuprov watch: holder=]",
        "[gpuprov watch: fleet=x holder=y count=-1]",
        "[gpuprov watch: fleet=x holder=../../y count=1]",
    ],
)
def test_a_lease_that_cannot_be_read_is_not_free(text: str) -> None:
    lease = read(text)
    assert lease is not None
    assert (lease.holder, lease.at) == ("", "a watch whose lease cannot be read")


def scheduler(folder: Path) -> FileScheduler:
    made = FileScheduler(folder / "slurm.json")
    made.begin(fleet())
    return made


def holding(folder: Path, slurm: FileScheduler, **kept: str) -> Holding:
    store = Store(folder)
    if kept:
        store.write_lease(kept)
    return Holding(store, slurm, lambda _seconds: None)


def kept(one: Holding, slurm: FileScheduler, nodes: list[str] | None = None) -> list[str]:
    """Observe all nodes and return those on which the watch may act."""
    names = nodes or list(fleet().nodes)
    words = slurm.look(names)
    one.saw(words)
    one.keep(words, [])
    return [name for name in names if one.acts_on(name)]


def test_the_first_takes_all_and_the_second_follows_for_good(tmp_path: Path) -> None:
    slurm = scheduler(tmp_path)
    one, two = holding(tmp_path / "one", slurm), holding(tmp_path / "two", slurm)
    assert kept(one, slurm) == list(fleet().nodes)
    assert kept(two, slurm) == []
    assert two.follows == one.at
    assert two.news()[0][1].startswith(f"gpu-[01-08], spare-[1-2]: watched by {one.at}. This watch follows")
    again = Holding(Store(tmp_path / "one"), slurm)
    assert kept(again, slurm) == list(fleet().nodes), "its folder has its name"
    # `slurmctld -c` deletes all leases. A follower takes none: it does not know the work done under them.
    slurm.path.with_suffix(".leases").unlink()
    assert kept(Holding(Store(tmp_path / "two"), slurm), slurm) == []
    assert kept(one, slurm) == list(fleet().nodes)


def test_new_nodes_are_taken_by_who_has_the_others(tmp_path: Path) -> None:
    slurm = scheduler(tmp_path)
    some = ["gpu-01", "gpu-02"]
    one, two = holding(tmp_path / "one", slurm), holding(tmp_path / "two", slurm)
    assert kept(one, slurm, some) == some
    assert kept(two, slurm) == []
    assert kept(one, slurm) == list(fleet().nodes)


def test_two_fleets_in_one_scheduler_do_not_meet(tmp_path: Path) -> None:
    slurm = scheduler(tmp_path)
    one, two = holding(tmp_path / "one", slurm), holding(tmp_path / "two", slurm)
    assert kept(one, slurm, ["gpu-01", "gpu-02"]) == ["gpu-01", "gpu-02"]
    assert kept(two, slurm, ["gpu-03", "gpu-04"]) == ["gpu-03", "gpu-04"]


@pytest.mark.parametrize(("mine", "has"), [("a", ["gpu-01"]), ("z", [])])
def test_of_two_that_got_some_each_one_gives_way(tmp_path: Path, mine: str, has: list[str]) -> None:
    class Halved(FileScheduler):
        """A scheduler in which another watch writes gpu-02 at the same time and wins."""

        def lease(
            self, leases: Mapping[str, Lease | None], before: Mapping[str, Lease | None]
        ) -> dict[str, str]:
            problems = super().lease(leases, before)
            if leases.get("gpu-02"):
                now = {"gpu-02": leases["gpu-02"]}
                super().lease({"gpu-02": Lease("other", "m", 1, "ctl-9:/x")}, now)
            return problems

    slurm = Halved(tmp_path / "slurm.json")
    slurm.begin(fleet())
    one = holding(tmp_path / "one", slurm, holder=mine)
    assert kept(one, slurm, ["gpu-01", "gpu-02"]) == has
    assert one.news(), "this other one does not give way"
    assert ("gpu-01" in slurm.leases() and bool(slurm.leases()["gpu-01"])) == bool(has)


def test_where_no_lease_can_be_written_nothing_is_done(tmp_path: Path) -> None:
    slurm = scheduler(tmp_path)
    slurm.broken = {"lease": {"gpu-01": "Access/permission denied"}}
    one = holding(tmp_path / "one", slurm)
    assert kept(one, slurm, ["gpu-01", "gpu-02"]) == ["gpu-02"]
    assert one.trouble == {"gpu-01": "Access/permission denied"}


def test_what_the_leases_say_of_replacements() -> None:
    waits = new("gpu-01", 1.0, "x", number=1)
    done = replace(moved(new("gpu-02", 2.0, "x", number=2), Step.REPAIR), spare="spare-1", placed=3.0)
    about = replace(moved(new("gpu-03", 4.0, "x", number=3), Step.PLACE), spare="spare-2")
    found = placements([waits, done, about])
    assert found == {
        **dict.fromkeys(("gpu-02", "spare-1"), placement(done)),
        **dict.fromkeys(("gpu-03", "spare-2"), placement(about)),
    }
    failed = new("spare-1", 5.0, "x", number=4)
    assert placements([done, failed])["spare-1"] == placement(done), "it served when it failed"
    assert placements([replace(done, returned=6.0, returned_number=5)])["gpu-02"] == "spare"


def test_what_lost_incidents_have_left_in_the_leases_stays(tmp_path: Path) -> None:
    slurm = scheduler(tmp_path)
    one = holding(tmp_path / "one", slurm)
    done = replace(moved(new("gpu-02", 2.0, "x", number=2), Step.REPAIR), spare="spare-1", placed=3.0)
    for incidents in ([done], []):
        one.keep(slurm.look(list(fleet().nodes)), incidents)
        words = slurm.look(["gpu-02", "spare-1"])
        assert {word.lease and word.lease.placed for word in words.values()} == {placement(done)}
    back = moved(replace(done, spare="", placed=None), Step.CHOOSE)
    one.keep(slurm.look(list(fleet().nodes)), [back])
    words = slurm.look(["gpu-02", "spare-1"])
    assert {word.lease and word.lease.placed for word in words.values()} == {""}


# The watch with its leases.


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[One, One]]:
    """Two watches of one fleet; the first one is at work."""
    with ExitStack() as stack:
        slurm = scheduler(tmp_path)
        made = One(tmp_path / "one", slurm), One(tmp_path / "two", slurm)
        for one in made:
            stack.enter_context(one.store.alone())
            stack.callback(one.watch.stop)
            for spare in ("spare-1", "spare-2"):
                one.store.write_validated(spare, one.watch.now(), "pass", "before")
            one.pace(ask_all=0.0, ask_some=0.0)
            one.watch.round(0.01)
        yield made


def test_a_follower_tells_once_whom_it_follows_and_does_nothing(two: tuple[One, One]) -> None:
    first, second = two
    second.stream.next = healths(fleet(), ["gpu-07"])
    for _ in range(20):
        second.watch.round(0.01)
    assert [message.kind for message in second.told] == ["following"]
    assert second.told[0].text.startswith("gpu-[01-08], spare-[1-2]: watched by ")
    assert [line for line in second.lines if line.endswith("and is left to the watch that has it")]
    assert (second.store.incidents(), second.checks.made, first.scheduler.done()) == ([], [], [])
    assert second.store.lease()["follows"] == first.watch.lease.at


def test_a_follower_neither_opens_the_breaker_nor_tells_of_it(two: tuple[One, One]) -> None:
    first, second = two
    second.pace(ask_all=0.0, ask_some=0.0, beat=0.0)
    second.stream.next = healths(fleet(), [f"gpu-{number:02d}" for number in range(1, 7)])
    for _ in range(10):
        second.watch.round(0.01)
    assert first.scheduler.breaker() is None
    first.scheduler.open_breaker("the one at work has opened it")
    for _ in range(10):
        second.watch.round(0.01)
    assert [message.kind for message in second.told] == ["following"]
    assert heartbeat.last(second.store.path)["held"] == []
    assert second.notes[-1] == ["READY=1", "WATCHDOG=1", f"STATUS=follows {first.watch.lease.at}"]


def test_a_cluster_that_does_not_answer_makes_no_follower_for_good(tmp_path: Path) -> None:
    """Some nodes belong to another watch, and the scheduler of the rest is briefly unreachable."""
    slurm = scheduler(tmp_path)
    names = list(fleet().nodes)
    one, two = holding(tmp_path / "one", slurm), holding(tmp_path / "two", slurm)
    assert kept(two, slurm, names[:2]) == names[:2]
    assert kept(one, slurm, names[2:-1]) == names[2:-1]
    words = slurm.look(names[:-1])
    words |= {name: Scheduled(name, error="no answer") for name in names[2:-1]}
    one.saw(words)
    one.keep(words, [])
    assert kept(one, slurm) == names[2:], "also the new node, which nobody has"
    assert one.follows == Store(tmp_path / "one").lease()["follows"] == ""


def test_who_follows_a_watch_that_is_not_at_work_says_so_while_it_lasts(tmp_path: Path) -> None:
    """After a renamed inventory or a lost state folder, its own earlier leases keep the watch from acting."""
    slurm = scheduler(tmp_path)
    first, second = One(tmp_path / "one", slurm), One(tmp_path / "two", slurm)
    second.pace(ask_all=0.0, beat=0.0)
    with second.store.alone():
        with first.store.alone():
            first.watch.round(0.01)
            second.watch.round(0.01)
            second.watch.round(0.01)
            assert heartbeat.last(second.store.path)["held"] == []
        second.watch.round(0.01)
        row = heartbeat.last(second.store.path)
        assert row["held"] == ["nobody-acts"]
        assert heartbeat.state({**row, "follows": "x"}, row["at"], running=True) == "held"
        assert [message.kind for message in second.told] == ["following", "nobody-acts"]
        assert second.told[1].text.startswith(f"{first.watch.lease.at} is not at work")
        assert second.told[1].next.startswith("gpuprov watch state")
        second.watch.stop()
        first.watch.stop()


def test_who_has_lost_its_lease_file_says_that_nobody_acts(tmp_path: Path) -> None:
    slurm = scheduler(tmp_path)
    assert kept(holding(tmp_path / "one", slurm), slurm) == list(fleet().nodes)
    (tmp_path / "one" / "lease.json").unlink()
    again = holding(tmp_path / "one", slurm)
    assert kept(again, slurm) == []
    assert "is not at work" in again.unattended
    far = holding(tmp_path / "two", slurm)
    for name, word in slurm.look(list(fleet().nodes)).items():
        slurm.lease({name: Lease("f", "other", 2, "ctl-9:/x")}, {name: word.lease})
    assert (kept(far, slurm), far.unattended) == ([], "")


def taken(of: One) -> None:
    """Take over the watch's nodes by a command on another machine."""
    for name, word in of.scheduler.look(list(fleet().nodes)).items():
        of.scheduler.lease({name: Lease("f", "other", 2, "ctl-9:/x")}, {name: word.lease})


def test_who_loses_the_lease_stops_at_its_next_step(two: tuple[One, One]) -> None:
    first, _ = two
    first.checks.answers["spare-2"] = first.checks.answers["spare-1"] = replace(
        first.checks.verify("x"), passed=False, again=True, why="another run has it"
    )
    first.stream.next = healths(fleet(), ["gpu-07"])
    first.until(lambda: any(one.step is Step.VERIFY for one in first.store.incidents()), "chosen")
    taken(first)
    first.checks.answers = {}
    for _ in range(30):
        first.watch.round(0.01)
    (incident,) = first.store.incidents()
    assert incident.is_open
    assert "resume spare-2" not in first.scheduler.done()
    assert sum("has lost a lease" in line for line in first.lines) <= 1
    assert "following" in {message.kind for message in first.told}
    assert first.told[-1].text.startswith("gpu-[01-08], spare-[1-2]: watched by ctl-9:/x.")


@pytest.mark.parametrize("step", [Step.DRAIN, Step.CHOOSE, Step.VERIFY, Step.PLACE, Step.EVIDENCE])
def test_no_step_is_done_without_the_lease(two: tuple[One, One], step: Step) -> None:
    """The lease was lost just now, and the watch has not observed that yet."""
    first, _ = two
    spare = "spare-2" if step in (Step.VERIFY, Step.PLACE, Step.EVIDENCE) else ""
    incident = replace(moved(new("gpu-07", first.watch.now(), "x", number=1), step), spare=spare)
    first.store.write(incident)
    taken(first)
    before = first.scheduler.done()
    assert first.watch._on(incident)[0] == incident
    assert first.scheduler.done() == before
    assert first.checks.made == []


def test_a_replacement_is_in_the_leases_before_its_spare_is_resumed(two: tuple[One, One]) -> None:
    first, _ = two
    seen: list[dict[str, str]] = []
    resume: Callable[..., dict[str, str]] = first.scheduler.resume

    def resumed(nodes: list[str]) -> dict[str, str]:
        words = first.scheduler.look(["gpu-07", "spare-2"])
        seen.append({name: word.lease.placed if word.lease else "" for name, word in words.items()})
        return resume(nodes)

    first.scheduler.resume = resumed  # type: ignore[method-assign,assignment]
    first.stream.next = healths(fleet(), ["gpu-07"])
    first.until(lambda: any(one.placed for one in first.store.incidents()), "replaced")
    (incident,) = first.store.incidents()
    assert seen == [dict.fromkeys(("gpu-07", "spare-2"), placement(incident))]


def test_other_commands_leave_the_nodes_of_another_watch_alone(two: tuple[One, One]) -> None:
    first, second = two
    words = first.scheduler.look(["spare-1"])
    refuse_held(words, first.store)
    with pytest.raises(GpuprovError, match=r"spare-1 is watched by .*/one/watch"):
        refuse_held(words, second.store)
    set_aside(["spare-1"], fleet(), (), first.scheduler, print)


def test_a_take_over_that_was_interrupted_is_not_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path)
    refuse_half_taken(store)
    Holding(store, scheduler(tmp_path)).save(taking=True)
    with pytest.raises(GpuprovError, match="a take-over was interrupted"):
        refuse_half_taken(store)
