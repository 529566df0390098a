"""The watch at work over a scheduler in a file: health in, decisions, spares kept, people told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provision.errors import RunFolderError
from provision.remote.protocol import unreachable
from provision.remote.schedulers import PREFIX
from provision.up.watch import service
from provision.up.watch.incidents import Incident, Step, Store, moved, new, serving
from provision.up.watch.policy import Policy
from provision.up.watch.service import Watch
from provision.up.watch.steps import Checked, Message
from provision.validate.status.status import NodeStatus, judged
from tests.support.watched import healths
from tests.support.watching import FileScheduler, fleet


class Stream:
    def __init__(self) -> None:
        self.next: list[NodeStatus] = healths(fleet(), [])

    def changes(self, seconds: float) -> Sequence[NodeStatus]:
        found, self.next = self.next, []
        if not found:
            time.sleep(min(seconds, 0.01))
        return found


class Checks:
    def __init__(self) -> None:
        self.made: list[str] = []
        self.answers: dict[str, Checked] = {}

    def verify(self, spare: str) -> Checked:
        self.made.append(spare)
        return self.answers.get(spare, Checked(True, run=f"run-of-{spare}"))

    def evidence(self, incident: Incident) -> str:
        return f"none of {incident.node}"

    def stop(self) -> None: ...


class One:
    """A watch, and what it is told and tells."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "watch")
        self.stream, self.checks = Stream(), Checks()
        self.scheduler = FileScheduler(folder / "slurm.json")
        self.scheduler.begin(fleet())
        self.told: list[Message] = []
        self.over: set[str] = set()
        self.lines: list[str] = []
        self.late = 0.0  # seconds that its clock is ahead
        self.watch = Watch(
            fleet(),
            Policy(),
            self.store,
            self.stream,
            self.scheduler,
            self.checks,
            self,
            self.lines.append,
            lambda: time.time() + self.late,
        )

    def tell(self, message: Message) -> None:
        if message.id not in {one.id for one in self.told}:
            self.told.append(message)

    def settle(self, over: Callable[[Message], bool]) -> None:
        self.over = {one.id for one in self.told if over(one)}

    def until(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < end, f"{what}: {self.lines}"
            self.watch.round(0.01)

    def reason(self, node: str) -> str:
        with self.scheduler.rows() as rows:
            return str(rows[node]["reason"])


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[One]:
    monkeypatch.setattr(service, "PACE", 0.0)
    made = One(tmp_path)
    with made.store.alone():
        yield made
        made.watch.stop()


def validated(one: One) -> set[str]:
    return {name for name, row in one.store.validated().items() if row["verdict"] == "pass"}


def test_spares_are_kept_out_of_service_and_validated_each_once(one: One) -> None:
    one.scheduler.set("spare-2", reason="")
    one.until(lambda: validated(one) == {"spare-1", "spare-2"}, "validated")
    for _ in range(20):
        one.watch.round(0.01)
    assert sorted(one.checks.made) == ["spare-1", "spare-2"]
    assert one.reason("spare-2") == f"{PREFIX}spare"
    assert "spare-2 is kept as a spare" in one.lines


def test_a_validation_that_grows_old_is_renewed_in_time(one: One) -> None:
    one.until(lambda: validated(one) == {"spare-1", "spare-2"}, "validated")
    one.late = 23 * 3600.0
    one.until(lambda: len(one.checks.made) == 4, "validated again")


def test_a_spare_that_does_not_pass_is_no_spare_and_people_know(one: One) -> None:
    one.checks.answers["spare-1"] = Checked(False, "7 of 8 GPUs answer", "a-run")
    one.until(lambda: bool(one.told), "told")
    (message,) = one.told
    assert (message.kind, message.node) == ("spare-failed", "spare-1")
    assert "7 of 8 GPUs answer" in message.text
    one.until(lambda: validated(one) == {"spare-2"}, "the other one is")
    one.stream.next = healths(fleet(), ["gpu-01"])
    one.until(lambda: any(each.spare for each in one.store.incidents()), "chosen")
    assert one.store.incidents()[0].spare == "spare-2"


def test_a_failure_goes_from_health_to_the_spare_and_the_history(one: One) -> None:
    one.until(lambda: len(validated(one)) == 2, "validated")
    one.stream.next = healths(fleet(), ["gpu-07"])
    one.until(lambda: bool(one.store.incidents()) and not one.store.incidents()[0].is_open, "replaced")
    (incident,) = one.store.incidents()
    assert (incident.node, incident.spare, incident.step) == ("gpu-07", "spare-2", Step.REPAIR)
    assert incident.note == "no evidence could be kept: none of gpu-07"
    assert [message.kind for message in one.told] == ["replaced"]
    rows = (one.store.path / "history.jsonl").read_text().splitlines()
    assert len(rows) == len(fleet().nodes) + 1
    assert "fallen off the bus" in rows[-1]


@pytest.fixture
def replaced(one: One, monkeypatch: pytest.MonkeyPatch) -> One:
    """spare-2 serves in the place of gpu-07; the scheduler is asked for all nodes in every round."""
    monkeypatch.setattr(service, "ASK_ALL", 0.0)
    one.until(lambda: len(validated(one)) == 2, "validated")
    one.stream.next = healths(fleet(), ["gpu-07"])
    one.until(lambda: bool(one.store.incidents()) and not one.store.incidents()[0].is_open, "replaced")
    return one


def pools(one: One, node: str) -> list[str]:
    with one.scheduler.rows() as rows:
        return list(rows[node]["pools"])


def test_a_spare_that_lost_its_partition_is_put_back(replaced: One) -> None:
    """As after `scontrol reconfigure`: slurm.conf knows nothing of what scontrol changed."""
    replaced.scheduler.set("spare-2", pools=[])
    replaced.until(lambda: pools(replaced, "spare-2") == ["gpu"], "put back")
    assert "spare-2 was in gpu no longer, and was put back: was slurm.conf read again?" in replaced.lines
    assert [message.kind for message in replaced.told] == ["replaced"]


@pytest.mark.parametrize("why", ["by a person", "by the site"])
def test_a_spare_that_was_taken_out_of_its_partition_on_purpose_stays_out(replaced: One, why: str) -> None:
    replaced.scheduler.set("spare-2", pools=[], reason="mine [ann]" if why == "by a person" else "")
    if why == "by the site":
        replaced.scheduler.set("gpu-07", pools=[])
    for _ in range(5):
        replaced.watch.round(0.01)
    assert pools(replaced, "spare-2") == []


def test_a_spare_that_cannot_be_put_back_is_told_once_until_it_is(replaced: One) -> None:
    replaced.scheduler.broken["join"] = {"spare-2": "partition gpu: Access/permission denied"}
    replaced.scheduler.set("spare-2", pools=[])
    for _ in range(5):
        replaced.watch.round(0.01)
    (_, message) = replaced.told
    assert (message.kind, message.node) == ("pool-lost", "spare-2")
    assert "spare-2 is in gpu no longer, where it replaces gpu-07" in message.text
    assert message.id not in replaced.over
    replaced.scheduler.broken = {}
    replaced.until(lambda: message.id in replaced.over, "over")


def test_a_spare_that_failed_or_returned_is_put_back_no_more(replaced: One) -> None:
    (incident,) = replaced.store.incidents()
    again = new("spare-2", replaced.watch.now(), "Xid 79", ())
    assert serving([incident]) == {"spare-2": incident}
    assert serving([incident, again]) == {}
    assert serving([incident, moved(again, Step.CLOSED)]) == {"spare-2": incident}


def test_what_was_told_of_an_incident_is_over_when_its_node_has_returned(replaced: One) -> None:
    (message,) = replaced.told
    replaced.watch.round(0.01)
    assert replaced.over == set()
    (incident,) = replaced.store.incidents()
    replaced.store.write_return(replace(incident, returned=replaced.watch.now()))
    replaced.until(lambda: replaced.over == {message.id}, "over")


def test_what_cannot_be_remembered_is_not_done(one: One) -> None:
    """A full disk under the state: it ends with a line, and nothing was drained."""
    folder = one.store.path / "incidents"
    folder.rmdir()
    folder.write_text("")
    one.stream.next = healths(fleet(), ["gpu-03"])
    with pytest.raises(RunFolderError, match=r"incidents/.* cannot be written"):
        one.until(lambda: False, "ended")
    assert not [line for line in one.scheduler.done() if line.startswith("drain gpu")]


def test_a_rack_that_falls_silent_is_told_once_and_drained_never(
    one: One, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.until(lambda: len(validated(one)) == 2, "validated")
    for number in range(1, 5):
        one.stream.next = [judged(f"gpu-{number:02d}", unreachable("no route to host"))]
        one.watch.round(0.01)
    one.late = 3000.0
    for _ in range(20):
        one.watch.round(0.01)
    assert [message.kind for message in one.told] == ["held.silent"]
    assert one.store.incidents() == []
    monkeypatch.setattr(service, "ASK_ALL", 0.0)
    one.watch.round(0.01)
    assert one.over == set()
    one.stream.next = healths(fleet(), [])
    one.until(lambda: one.over == {one.told[0].id}, "over")


def test_it_tries_again_what_did_not_work_and_says_so_once(one: One) -> None:
    one.until(lambda: len(validated(one)) == 2, "validated")
    one.scheduler.broken["drain"] = {"gpu-03": "slurmctld does not answer"}
    one.stream.next = healths(fleet(), ["gpu-03"])
    one.until(lambda: any(message.kind == "not-drained" for message in one.told), "told")
    del one.scheduler.broken["drain"]
    one.until(lambda: not one.store.incidents()[0].is_open, "done")
    assert one.store.incidents()[0].step is Step.REPAIR
    assert {message.kind for message in one.told} == {"not-drained", "replaced"}
