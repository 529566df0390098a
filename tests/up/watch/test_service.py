"""The watch at work over a scheduler in a file: health in, decisions, spares kept, people told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from provision.errors import RunFolderError
from provision.remote.protocol import unreachable
from provision.remote.schedulers import PREFIX
from provision.up.watch import service
from provision.up.watch.incidents import Incident, Step, Store
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
        self.lines: list[str] = []
        self.late = 0.0  # seconds that its clock is ahead
        self.watch = Watch(
            fleet(),
            Policy(),
            self.store,
            self.stream,
            self.scheduler,
            self.checks,
            self.told.append,
            self.lines.append,
            lambda: time.time() + self.late,
        )

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


def test_what_cannot_be_remembered_is_not_done(one: One) -> None:
    """A full disk under the state: it ends with a line, and nothing was drained."""
    folder = one.store.path / "incidents"
    folder.rmdir()
    folder.write_text("")
    one.stream.next = healths(fleet(), ["gpu-03"])
    with pytest.raises(RunFolderError, match=r"incidents/.* cannot be written"):
        one.until(lambda: False, "ended")
    assert not [line for line in one.scheduler.done() if line.startswith("drain gpu")]


def test_a_rack_that_falls_silent_is_told_once_and_drained_never(one: One) -> None:
    one.until(lambda: len(validated(one)) == 2, "validated")
    for number in range(1, 5):
        one.stream.next = [judged(f"gpu-{number:02d}", unreachable("no route to host"))]
        one.watch.round(0.01)
    one.late = 3000.0
    for _ in range(20):
        one.watch.round(0.01)
    assert [message.kind for message in one.told] == ["held.silent"]
    assert one.store.incidents() == []


def test_it_tries_again_what_did_not_work_and_says_so_once(one: One) -> None:
    one.until(lambda: len(validated(one)) == 2, "validated")
    one.scheduler.broken["drain"] = {"gpu-03": "slurmctld does not answer"}
    one.stream.next = healths(fleet(), ["gpu-03"])
    one.until(lambda: any(message.kind == "not-drained" for message in one.told), "told")
    del one.scheduler.broken["drain"]
    one.until(lambda: not one.store.incidents()[0].is_open, "done")
    assert one.store.incidents()[0].step is Step.REPAIR
    assert {message.kind for message in one.told} == {"not-drained", "replaced"}
