"""The watch at work on a scheduler kept in a file: health results, decisions, spares, messages to people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from provision.remote.protocol import unreachable
from provision.remote.schedulers import PREFIX
from provision.up.watch import heartbeat
from provision.up.watch.aside import set_aside
from provision.up.watch.incidents import Incident, Step, moved, new
from provision.up.watch.policy import Policy
from provision.up.watch.roles import Role, roles, serving
from provision.up.watch.service import Watch
from provision.up.watch.steps import Checked
from provision.validate.status.status import NodeStatus, judged
from tests.support.one_watch import One
from tests.support.watched import healths
from tests.support.watching import FileScheduler, fleet


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[[Policy], One]]:
    """Return a function that starts a watch with a policy."""
    with ExitStack() as stack:

        def begin(policy: Policy) -> One:
            made = One(tmp_path, policy=policy)
            stack.enter_context(made.store.alone())
            stack.callback(made.watch.stop)
            return made

        yield begin


@pytest.fixture
def one(begun: Callable[[Policy], One]) -> One:
    return begun(Policy())


def validated(one: One) -> set[str]:
    return {name for name, row in one.store.validated().items() if row["verdict"] == "pass"}


def test_spares_are_validated_each_once(one: One) -> None:
    one.until(lambda: validated(one) == {"spare-1", "spare-2"}, "validated")
    for _ in range(20):
        one.watch.round(0.01)
    assert sorted(one.checks.made) == ["spare-1", "spare-2"]
    assert one.told == []


def test_a_spare_in_service_without_an_incident_is_told_and_never_drained(one: One) -> None:
    """The spare may replace a node for a watch whose state is lost, so its jobs must keep running."""
    one.pace(ask_all=0.0)
    one.scheduler.set("spare-2", reason="")
    one.until(lambda: validated(one) == {"spare-1"} and bool(one.told), "told")
    (message,) = one.told
    assert (message.kind, message.node) == ("spare-in-service", "spare-2")
    assert "gpuprov watch spare" in message.text
    one.stream.next = healths(fleet(), ["gpu-07"])
    one.until(lambda: any(each.placed for each in one.store.incidents()), "replaced")
    assert one.store.incidents()[0].spare == "spare-1"
    assert not [line for line in one.scheduler.done() if line.startswith("drain spare")]
    set_aside(["spare-2"], fleet(), one.store.incidents(), one.scheduler, one.lines.append)
    assert one.reason("spare-2") == f"{PREFIX}spare"
    one.until(lambda: message.id in one.over and "spare-2" in validated(one), "over")


def test_another_state_folder_leaves_the_replacement_in_service(replaced: One, tmp_path: Path) -> None:
    """Another state folder is used after a disk is lost, under another HOME, or with a renamed inventory."""
    replaced.watch.stop()
    other = One(tmp_path / "other", replaced.scheduler)
    with other.store.alone():
        other.until(lambda: bool(other.told), "told")
        for _ in range(5):
            other.watch.round(0.01)
        other.watch.stop()
    assert [message.kind for message in other.told] == ["following"]
    assert replaced.reason("spare-2") == ""


def test_a_stepped_clock_makes_no_spare_of_a_node_in_service(replaced: One) -> None:
    """gpu-07 returned while the clock was a minute ahead; it replaces spare-2 once the clock is correct."""
    (incident,) = replaced.store.incidents()
    number = replaced.store.next_number()
    back = replace(incident, returned=replaced.watch.now() + 60, returned_number=number)
    replaced.store.write_return(back)
    replaced.scheduler.set("gpu-07", reason=f"{PREFIX}spare")
    replaced.scheduler.set("spare-1", reason="being moved [ann]")
    replaced.stream.next = healths(fleet(), ["spare-2"])

    def second() -> list[Incident]:
        return [each for each in replaced.store.incidents() if each.node == "spare-2" and each.placed]

    replaced.until(lambda: bool(second()), "replaced again")
    assert second()[0].spare == "gpu-07"
    known = roles(fleet(), replaced.store.incidents())
    assert (known["gpu-07"], known["spare-2"]) == (Role.SERVICE, Role.REPAIR)
    assert replaced.reason("gpu-07") == ""


def test_a_validation_in_the_future_proves_nothing(one: One) -> None:
    one.store.write_validated("spare-1", time.time() + 5 * 86400, "pass", "of-a-clock-that-was-ahead")
    one.until(lambda: "spare-1" in one.checks.made, "validated again")


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
def replaced(one: One) -> One:
    """spare-2 replaces gpu-07; the scheduler is queried for all nodes in every round."""
    one.pace(ask_all=0.0)
    one.until(lambda: len(validated(one)) == 2, "validated")
    one.stream.next = healths(fleet(), ["gpu-07"])
    one.until(lambda: bool(one.store.incidents()) and not one.store.incidents()[0].is_open, "replaced")
    return one


def pools(one: One, node: str) -> list[str]:
    with one.scheduler.rows() as rows:
        return list(rows[node]["pools"])


def test_a_spare_that_lost_its_partition_is_put_back(replaced: One) -> None:
    """`scontrol reconfigure` discards partitions that were set with scontrol and are not in slurm.conf."""
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
    number = replaced.store.next_number()
    again = new("spare-2", replaced.watch.now(), "Xid 79", number=number)
    assert serving([incident]) == {"spare-2": incident}
    assert serving([incident, again]) == {}
    assert serving([incident, moved(again, Step.CLOSED)]) == {"spare-2": incident}


def test_what_was_told_of_an_incident_is_over_when_its_node_has_returned(replaced: One) -> None:
    (message,) = replaced.told
    replaced.watch.round(0.01)
    assert replaced.over == set()
    (incident,) = replaced.store.incidents()
    number = replaced.store.next_number()
    back = replace(incident, returned=replaced.watch.now(), returned_number=number)
    replaced.store.write_return(back)
    replaced.until(lambda: replaced.over == {message.id}, "over")


def test_what_cannot_be_remembered_is_not_done(one: One) -> None:
    """An unwritable incident is reported to people; its node is drained once the incident is on disk."""
    folder = one.store.path / "incidents"
    folder.rmdir()
    folder.write_text("")
    one.stream.next = healths(fleet(), ["gpu-03"])
    one.until(lambda: bool(one.told), "told")
    for _ in range(20):
        one.watch.round(0.01)
    (message,) = one.told
    assert (message.kind, message.node) == ("incident-stuck", "gpu-03")
    assert "gpu-03 failed (" in message.text
    assert "is not drained, since " in message.text
    assert "cannot be written" in message.text
    assert not [line for line in one.scheduler.done() if line.startswith("drain gpu")]
    folder.unlink()
    one.until(lambda: any(each.placed for each in one.store.incidents()), "replaced")


def test_a_full_disk_costs_records_before_decisions(one: One) -> None:
    (one.store.path / "history.jsonl").mkdir()
    one.until(lambda: len(validated(one)) == 2, "validated")
    one.stream.next = healths(fleet(), ["gpu-07"])
    one.until(lambda: any(each.placed for each in one.store.incidents()), "replaced")


def test_a_damaged_incident_stops_itself_alone(replaced: One) -> None:
    """spare-2 serves for the unreadable incident, so it must not be drained like a waiting spare."""
    (incident,) = replaced.store.incidents()
    path = replaced.store.path / "incidents" / f"{incident.id}.json"
    whole = path.read_text()
    replaced.told.clear()
    path.unlink()  # as an editor replaces the file
    path.write_text("{")
    replaced.stream.next = healths(fleet(), ["gpu-01"])
    replaced.until(lambda: any(one.placed for one in replaced.store.incidents()), "the other one goes on")
    (stuck,) = [message for message in replaced.told if message.kind == "incident-stuck"]
    assert stuck.node == incident.id
    assert str(path) in stuck.text
    assert replaced.reason("spare-2") == "", "in service as before"
    assert stuck.id not in replaced.over
    path.write_text(whole)
    replaced.until(lambda: stuck.id in replaced.over, "repaired in its place, and over")


@pytest.mark.parametrize(
    "text",
    ["", "[" * 100_000, "[]", '{"format": 1}', '{"format": 1, "id": 5, "step": "choose"}'],
    ids=["empty", "deep", "list", "no id", "number"],
)
def test_any_damage_of_an_incident_is_noticed(one: One, text: str) -> None:
    (one.store.path / "incidents" / "a.json").write_text(text)
    assert one.store.incidents() == []
    assert list(one.store.damaged) == ["a"]
    (one.store.path / "validated.json").write_text(text)
    assert one.store.validated() == {}


def test_an_error_in_one_step_stops_one_incident(begun: Callable[[Policy], One]) -> None:
    one = begun(Policy(share=100))
    one.pace(stuck=0.1)
    one.until(lambda: len(validated(one)) == 2, "validated")
    pools = {"gpu-02": 7}  # a value of the wrong type in the scheduler's answer

    def join(node: str, like: str, wanted: Sequence[str]) -> str:
        return FileScheduler.join(one.scheduler, node, like, pools.get(like, wanted))  # type: ignore[arg-type]

    one.scheduler.join = join  # type: ignore[method-assign,assignment]
    one.stream.next = healths(fleet(), ["gpu-02", "gpu-05"])

    def step(node: str) -> Step:
        return next((each.step for each in one.store.incidents() if each.node == node), Step.DRAIN)

    one.until(lambda: step("gpu-05") is Step.REPAIR, "the other one is replaced")
    one.until(lambda: any(message.kind == "incident-stuck" for message in one.told), "told")
    for _ in range(50):
        one.watch.round(0.01)
    (stuck,) = [message for message in one.told if message.kind == "incident-stuck"]
    assert stuck.node == "gpu-02"
    assert "TypeError" in stuck.text
    pools.clear()
    one.until(lambda: step("gpu-02") is Step.REPAIR, "tried again")


def test_a_scheduler_that_raises_is_one_that_does_not_answer(one: One) -> None:
    def look(nodes: Sequence[str]) -> None:
        raise TypeError(f"'int' object is not subscriptable: {len(nodes)}")

    one.scheduler.look = look  # type: ignore[method-assign,assignment]
    one.stream.next = healths(fleet(), ["gpu-03"])
    one.until(lambda: bool(one.told), "told")
    assert one.told[0].kind == "held.scheduler"


def test_a_scheduler_that_is_gone_is_told_before_a_node_fails(one: One) -> None:
    """A watch that can drain nothing is held; one failed query may be a restart of the scheduler."""
    one.pace(beat=0.0, ask_all=-1.0)
    one.watch.round(0.01)
    one.scheduler.broken["look"] = dict.fromkeys(fleet().nodes, "slurmctld does not answer")
    one.watch.round(0.01)
    assert heartbeat.last(one.store.path)["held"] == []
    one.watch.round(0.01)
    found = heartbeat.last(one.store.path)
    assert found["held"] == ["no-scheduler"]
    assert heartbeat.state(found, found["at"], True) == "held"
    assert [message.kind for message in one.told] == ["no-scheduler"]
    assert (
        "for gpu-[01-08], spare-[1-2], so nothing is done to them: slurmctld does not answer"
        in one.told[0].text
    )
    del one.scheduler.broken["look"]
    one.watch.round(0.01)
    assert heartbeat.last(one.store.path)["held"] == []


def test_a_node_in_repair_may_be_gone_from_the_scheduler(replaced: One) -> None:
    (gone,) = [each.node for each in replaced.store.incidents()]
    replaced.pace(beat=0.0, ask_all=-1.0)
    replaced.scheduler.broken["look"] = {gone: "no such node"}
    for _ in range(3):
        replaced.watch.round(0.01)
    assert heartbeat.last(replaced.store.path)["held"] == []


def test_a_round_that_fails_is_reported_and_the_next_one_goes_on(one: One) -> None:
    one.pace(wait=0.01)
    rounds = []

    def changes(seconds: float) -> Sequence[NodeStatus]:
        rounds.append(seconds)
        if len(rounds) == 5:
            one.watch.stop()
        raise ValueError("a bug of ours")

    one.stream.changes = changes  # type: ignore[method-assign]
    one.watch.run()
    assert len(rounds) == 5
    (message,) = one.told
    assert message.kind == "watch-failed"
    assert "ValueError: a bug of ours (" in message.text
    assert heartbeat.last(one.store.path) == {}, "a watch whose rounds fail has no heartbeat"
    words = [line for lines in one.notes for line in lines]
    assert [word for word in words if not word.startswith("STATUS=the watch fails: ValueError")] == [
        "STOPPING=1"
    ]


def test_systemd_hears_of_rounds_that_succeed_and_of_the_end(replaced: One) -> None:
    replaced.pace(beat=0.0, wait=0.01)
    replaced.watch.round(0.01)
    work = "STATUS=at work: 1 node out of service, 1 of 1 spare ready"
    assert replaced.notes[-1] == ["READY=1", "WATCHDOG=1", work]
    replaced.watch.stop()
    replaced.watch.run()
    assert replaced.notes[-1] == ["STOPPING=1"]


def test_the_heartbeat_and_what_it_says(begun: Callable[[Policy], One], tmp_path: Path) -> None:
    one = begun(Policy(metrics=str(tmp_path / "watch.prom")))
    one.pace(beat=0.0)
    one.scheduler.broken["look"] = {"gpu-03": "no answer"}
    one.watch.round(0.01)
    found = heartbeat.last(one.store.path)
    assert (found["nodes"], found["held"]) == ("all", [])
    assert heartbeat.line(found, found["at"] + 5, True) == "watch: at work"
    assert "it runs, but its last round was 10 min" in heartbeat.line(found, found["at"] + 600, True)
    assert "not running; its last round was 5 s ago" in heartbeat.line(found, found["at"] + 5, False)
    assert "gpuprov_watch_held" not in (tmp_path / "watch.prom").read_text()
    one.stream.next = healths(fleet(), ["gpu-03"])
    one.until(lambda: bool(heartbeat.last(one.store.path)["held"]), "held")
    text = (tmp_path / "watch.prom").read_text()
    assert 'gpuprov_watch_held{kind="held.scheduler"} 1' in text
    assert (tmp_path / "watch.prom").stat().st_mode & 0o044, "the node exporter reads it"


def test_it_counts_what_it_did_and_how_old_results_are(
    begun: Callable[[Policy], One], tmp_path: Path
) -> None:
    one = begun(Policy(metrics=str(tmp_path / "watch.prom")))
    one.pace(beat=0.0)
    one.until(lambda: len(validated(one)) == 2, "validated")
    one.stream.next = healths(fleet(), ["gpu-07"])
    one.until(lambda: bool(one.store.incidents()) and not one.store.incidents()[0].is_open, "replaced")
    old = [
        replace(status, age=500.0) for status in healths(fleet(), []) if status.node in ("gpu-02", "gpu-07")
    ]
    one.stream.next = old
    for _ in range(2):
        one.watch.round(0.01)
    text = (tmp_path / "watch.prom").read_text()
    rows = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert {name: rows[f"gpuprov_watch_{name}"] for name in COUNTED} == COUNTED
    assert [name for name in rows if "incidents" in name and rows[name] != "0"] == [
        'gpuprov_watch_incidents{step="repair"}'
    ]
    assert 500 <= float(rows["gpuprov_watch_oldest_result_seconds"]) < 530
    assert abs(time.time() - float(rows["gpuprov_watch_start_timestamp_seconds"])) < 60


COUNTED = {
    "drains_total": "1",
    "replacements_total": "1",
    "failed_rounds_total": "0",
    "spares": "1",
    "spares_ready": "1",
    "stale_nodes": "1",  # gpu-07 is in repair and may be switched off
}


def test_a_spare_that_cannot_be_checked_is_reported_once(one: One, monkeypatch: pytest.MonkeyPatch) -> None:
    blip = Checked(False, "no answer", "a-run", again=True, elsewhere=True)
    one.checks.answers = dict.fromkeys(("spare-1", "spare-2"), blip)
    one.until(lambda: len(one.checks.made) == 2, "both are tried")
    for _ in range(20):
        one.watch.round(0.01)
    (message,) = one.told
    assert message.kind == "spare-unchecked"
    assert message.text.endswith("could not be checked: no answer")
    assert "fail" not in {row["verdict"] for row in one.store.validated().values()}
    one.checks.answers.clear()
    monkeypatch.setattr(one.watch._renewal, "_after", {})
    one.pace(ask_all=0.0)
    one.until(lambda: len(validated(one)) == 2 and one.over == {message.id}, "validated, and over")


def test_the_last_spare_that_goes_into_service_is_reported_at_once(
    begun: Callable[[Policy], One],
) -> None:
    one = begun(Policy(share=100))
    one.until(lambda: len(validated(one)) == 2, "validated")
    one.stream.next = healths(fleet(), ["gpu-07"])
    one.until(lambda: any(each.placed for each in one.store.incidents()), "replaced")
    for _ in range(5):
        one.watch.round(0.01)
    assert [message.kind for message in one.told] == ["replaced"]
    one.stream.next = healths(fleet(), ["gpu-01", "gpu-07"])
    one.until(lambda: len(one.told) == 3, "told")
    assert [message.kind for message in one.told] == ["replaced", "replaced", "last-spare"]
    assert "no spare is left (spare-[1-2]: in service or in repair)" in one.told[2].text


def test_a_rack_that_flaps_is_told_once_and_its_alert_comes_back(one: One) -> None:
    one.pace(ask_all=0.0)
    dark = [judged(f"gpu-{number:02d}", unreachable("no route to host")) for number in range(1, 5)]
    for flap in range(10):
        one.late = 300.0 * flap
        one.stream.next = list(dark)
        one.until(lambda: "held.silent" in one.watch._held, "dark")
        one.watch.round(0.01)
        assert one.over == set(), "its alert is open"
        one.stream.next = healths(fleet(), [])
        one.until(lambda: bool(one.over), "over")
    assert [message.kind for message in one.told] == ["held.silent"]
    assert one.calls.count(one.told[0].id) == 10, "the same alert is opened again"


def test_nodes_without_a_scheduler_are_watched_and_never_drained(one: One) -> None:
    one.watch = Watch(
        *(fleet(), Policy(), one.store, one.stream, one.scheduler, one.checks, one, one.lines.append),
        unscheduled={"gpu-03", "spare-1"},
    )
    with one.scheduler.rows() as rows:
        del rows["gpu-03"], rows["spare-1"]  # not even a query may name them
    one.stream.next = healths(fleet(), ["gpu-03"])
    one.until(lambda: bool(one.told), "told")
    assert one.told[0].kind == "held.unscheduled"
    assert "gpu-03: left in service: no scheduler that gpuprov can ask" in one.told[0].text
    one.stream.next = healths(fleet(), ["gpu-07", "gpu-03"])
    one.until(lambda: any(each.placed for each in one.store.incidents()), "the others as ever")
    assert [(each.node, each.spare) for each in one.store.incidents()] == [("gpu-07", "spare-2")]


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
    one.pace(ask_all=0.0)
    one.watch.round(0.01)
    assert one.over == set()
    one.stream.next = healths(fleet(), [])
    one.until(lambda: one.over == {one.told[0].id}, "over")


def test_nodes_that_a_person_drains_and_switches_off_at_once_stop_nothing(one: One) -> None:
    """By then, the scheduler's state of all nodes is half a minute old."""
    one.until(lambda: len(validated(one)) == 2, "validated")
    off = [f"gpu-{number:02d}" for number in range(1, 4)]
    for name in off:
        one.scheduler.set(name, reason="in repair [ann]")
    one.stream.next = [judged(name, unreachable("no route to host")) for name in off]
    one.watch.round(0.01)
    one.stream.next = healths(fleet(), ["gpu-07"])[3:]
    one.until(lambda: any(each.placed for each in one.store.incidents()), "replaced")
    assert [message.kind for message in one.told] == ["replaced"]


def test_it_tries_again_what_did_not_work_and_says_so_once(one: One) -> None:
    one.until(lambda: len(validated(one)) == 2, "validated")
    one.scheduler.broken["drain"] = {"gpu-03": "slurmctld does not answer"}
    one.stream.next = healths(fleet(), ["gpu-03"])
    one.until(lambda: any(message.kind == "not-drained" for message in one.told), "told")
    del one.scheduler.broken["drain"]
    one.until(lambda: not one.store.incidents()[0].is_open, "done")
    assert one.store.incidents()[0].step is Step.REPAIR
    assert {message.kind for message in one.told} == {"not-drained", "replaced"}


MANY = [f"gpu-{number:02d}" for number in range(1, 7)]


def test_many_that_fail_at_once_open_the_breaker_and_a_person_closes_it(one: One) -> None:
    one.pace(ask_all=0.0, beat=0.0)
    one.stream.next = healths(fleet(), MANY)
    one.until(lambda: bool(one.told), "told")
    for _ in range(20):
        one.watch.round(0.01)
    (message,) = one.told
    assert message.kind == "breaker-open"
    assert "6 of the 8 nodes of gpu have failed within an hour" in message.text
    assert one.scheduler.breaker() == "6 of the 8 nodes of gpu have failed within an hour"
    assert not [line for line in one.scheduler.done() if line.startswith("drain gpu")]
    assert heartbeat.last(one.store.path)["held"] == ["breaker-open"]
    one.stream.next = healths(fleet(), ["gpu-05"])  # the cause is repaired; gpu-05 has another fault
    one.scheduler.close_breaker()
    one.until(lambda: message.id in one.over and bool(one.reason("gpu-05")), "gpu-05 is drained")


def test_a_breaker_that_a_nodes_own_program_has_opened_holds_the_watch(one: One) -> None:
    one.pace(ask_all=0.0)
    one.scheduler.open_breaker("gpu has had 3 of its 8 nodes drained within an hour")
    one.stream.next = healths(fleet(), ["gpu-05"])
    one.until(lambda: bool(one.told), "told")
    assert [message.kind for message in one.told] == ["breaker-open"]
    assert one.reason("gpu-05") == ""
    assert one.store.incidents() == []


def test_an_incident_that_meets_an_open_breaker_waits_and_then_goes_on(one: One) -> None:
    one.pace(ask_all=1000.0)
    one.until(lambda: len(validated(one)) == 2, "validated")
    one.scheduler.open_breaker("since a moment")  # the watch has not observed this yet
    one.stream.next = healths(fleet(), ["gpu-05"])
    one.until(lambda: bool(one.store.incidents()) and bool(one.store.incidents()[0].note), "waits")
    assert "gpu-05 is left in service: open: since a moment" in one.store.incidents()[0].note
    assert one.reason("gpu-05") == ""
    one.scheduler.close_breaker()
    one.until(lambda: bool(one.reason("gpu-05")), "drained")


def test_a_breaker_that_cannot_be_read_drains_nothing_and_people_know(one: One) -> None:
    one.scheduler.broken["breaker"] = {"read": "scontrol show reservation: no answer"}
    one.stream.next = healths(fleet(), ["gpu-05"])
    one.until(lambda: bool(one.told), "told")
    assert (one.told[0].kind, one.reason("gpu-05")) == ("not-drained", "")
    assert "the breaker is unknown: scontrol show reservation: no answer" in one.told[0].text
    del one.scheduler.broken["breaker"]
    one.until(lambda: bool(one.reason("gpu-05")), "drained")


def test_a_drain_that_is_tried_again_counts_once(one: One) -> None:
    one.scheduler.broken["drain"] = {"gpu-05": "refused"}
    one.stream.next = healths(fleet(), ["gpu-05"])
    one.until(lambda: one.scheduler.path.with_suffix(".permits").exists(), "counted")
    for _ in range(150):
        one.watch.round(0.01)
    assert one.scheduler.path.with_suffix(".permits").read_text() == "gpu-05\n"


def test_a_drain_that_was_counted_waits_for_a_breaker_that_opened_since(one: One) -> None:
    one.scheduler.broken["drain"] = {"gpu-05": "refused"}
    one.stream.next = healths(fleet(), ["gpu-05"])
    one.until(lambda: one.scheduler.path.with_suffix(".permits").exists(), "counted")
    one.scheduler.open_breaker("since a moment")
    del one.scheduler.broken["drain"]
    one.until(
        lambda: "since a moment" in one.store.incidents()[0].note or bool(one.reason("gpu-05")), "tried"
    )
    assert one.reason("gpu-05") == ""
    one.scheduler.close_breaker()
    one.until(lambda: bool(one.reason("gpu-05")), "drained")


def test_what_failed_before_a_person_closed_the_breaker_does_not_open_it_again(one: One) -> None:
    """Permits still limit drains; if old failures counted, the breaker could not be closed for an hour."""
    one.pace(ask_all=0.0)
    one.stream.next = healths(fleet(), MANY)
    one.until(lambda: bool(one.told), "told")
    one.watch.round(0.01)
    one.scheduler.close_breaker()
    one.until(lambda: bool(one.store.incidents()), "goes on")
    assert one.scheduler.breaker() is None


def test_a_node_drained_a_moment_ago_counts_for_its_partition(one: One) -> None:
    """The node's state must not be lost between two queries of all nodes."""
    one.pace(ask_all=1000.0)
    one.stream.next = healths(fleet(), ["gpu-01"])
    one.until(lambda: bool(one.reason("gpu-01")), "drained")
    for _ in range(5):
        one.watch.round(0.01)
    one.stream.next = healths(fleet(), ["gpu-01", "gpu-05"])
    one.until(lambda: "held.share" in [message.kind for message in one.told], "held")
    assert one.reason("gpu-05") == ""
