"""Events of a killed controller's units reach the journal of their run exactly once, and no unit remains."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from provision import cli
from provision.errors import ExitCode
from provision.fleet import Fleet, Node
from provision.remote.reach import fleet_lock
from provision.remote.workers import register, sealed, units, worker_stream
from provision.remote.workers.control import Control
from provision.runs.store import RunFolder
from provision.up import collect
from tests.support.locks import NodeLocks
from tests.support.receptor import TLS_CLIENT, StandIn, forget
from tests.support.scripted_worker import HOSTS, Script, event, lines, whole

SECRET = "hunter2-secret"
FLEET = Fleet(Path("x"), {name: Node(name, (), {"app_password": SECRET}) for name in HOSTS}, {})
ENDED = lines({"event": "keepalive"}, *whole())


@pytest.fixture
def standing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("GPUPROV_RUNS", str(tmp_path / "runs"))
    forget()
    folder = tmp_path / "m"
    folder.mkdir()
    made = StandIn(folder)
    try:
        yield made
    finally:
        made.end()
        forget()


def killed(
    standing: StandIn, said: bytes = ENDED, *, named: bool = True, what: str = "up.yml", seconds: float = 60
) -> tuple[RunFolder, register.Record]:
    """Create a run whose controller was killed while worker rack-1 was running its playbook."""
    run = RunFolder.create("up", {})
    standing.add("rack-1", said=Script(said))
    book = register.Register(run.path)
    record, key = book.begin("rack-1", standing.socket, what, HOSTS, seconds, alone=True)
    plain = json.dumps({"answer_key": base64.b64encode(key).decode()}).encode() + b"\n"
    begun: list[str] = []

    def noted(unit: str) -> None:
        begun.append(unit)
        if named:
            book.named(record, unit)

    Control(standing.socket).submit(
        "rack-1",
        units.WORK_TYPE,
        sealed.sealed({"versions": worker_stream.digest()}, plain, sealed.worker_public_key()),
        tls_client=TLS_CLIENT,
        label=record.label,
        ttl=10,
        named=noted,
    )
    (unit,) = begun
    assert book._held is not None
    os.close(book._held)  # as the kernel does when the process dies
    assert list(standing.units) == [unit]
    return run, record


def collected(run: RunFolder) -> list[str]:
    said: list[str] = []
    collect.keep(collect.gather([run], said.append), FLEET, frozenset(), (SECRET,))
    return said


def nothing_left(run: RunFolder, standing: StandIn, record: register.Record) -> bool:
    return (
        not standing.units
        and not collect.folder_of(run).exists()
        and not (sealed.folder() / record.label).exists()
    )


@pytest.mark.parametrize("named", [True, False], ids=["its id was noted", "killed before its id was noted"])
def test_what_was_done_meanwhile_is_in_the_journal_of_its_run(standing: StandIn, named: bool) -> None:
    failed = event("runner_on_failed", 20, host="gpu-02", task="T", res={"msg": f"no {SECRET}", "rc": 1})
    said = [*whole()[:-2], failed, {"status": "successful", "gpuprov_events": 7}, {"eof": True}]
    run, record = killed(standing, lines({"event": "keepalive"}, *said), named=named)
    lines_said = collected(run)
    rows = list(run.read("events"))
    assert [(row["node"], row["kind"]) for row in rows] == [
        ("gpu-01", "ok"),
        ("gpu-02", "ok"),
        ("gpu-02", "failed"),
    ]
    assert rows[0]["unit"] == f"{record.label}:4"
    assert SECRET not in json.dumps(rows)
    assert lines_said == [
        "worker rack-1, gpu-[01-02]: collected what the earlier run's up.yml did: 7 events "
        "(it came to its end)"
    ]
    assert nothing_left(run, standing, record)


def test_what_is_in_the_journal_already_is_not_written_again(standing: StandIn) -> None:
    run, record = killed(standing)
    run.append("events", {"node": "gpu-01", "kind": "ok", "unit": f"{record.label}:4"})
    collected(run)
    assert [row["unit"] for row in run.read("events")] == [f"{record.label}:4", f"{record.label}:5"]


def test_a_unit_that_still_runs_is_waited_for(standing: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_LOOK", 0.1)
    run, record = killed(standing)
    (unit,) = standing.units.values()
    whole_answer = (unit.folder / "stdout").read_bytes()
    cut = whole_answer.index(b"\n") + 1  # the end of the first frame
    (unit.folder / "stdout").write_bytes(whole_answer[:cut])
    unit.state = "Running"

    def go_on() -> None:
        time.sleep(1.0)
        with (unit.folder / "stdout").open("ab") as printed:
            printed.write(whole_answer[cut:])

    thread = threading.Thread(target=go_on)
    thread.start()
    said = collected(run)
    thread.join()
    assert "up.yml of the earlier run still goes on there; waiting for it" in said[0]
    assert len(list(run.read("events"))) == 2
    assert nothing_left(run, standing, record)


def test_what_receptor_has_not_brought_yet_is_waited_for(
    standing: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """receptor fetches a unit's state and its output separately; after a cut the output may come later."""
    for name in ("_LOOK", "_POLL"):
        monkeypatch.setattr(units, name, 0.1)
    run, record = killed(standing)
    (unit,) = standing.units.values()
    whole_answer = (unit.folder / "stdout").read_bytes()
    (unit.folder / "stdout").write_bytes(whole_answer[:20])
    unit.size = lambda: len(whole_answer)  # type: ignore[method-assign]

    def bring() -> None:
        time.sleep(1.5)
        (unit.folder / "stdout").write_bytes(whole_answer)

    thread = threading.Thread(target=bring)
    thread.start()
    said = collected(run)
    thread.join()
    assert "(it came to its end)" in said[-1]
    assert len(list(run.read("events"))) == 2
    assert nothing_left(run, standing, record)


def test_what_never_comes_is_not_waited_for_for_ever(
    standing: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provision.remote.workers.assignment.RETURN", 0.5)
    for name in ("_LOOK", "_POLL"):
        monkeypatch.setattr(units, name, 0.1)
    run, _ = killed(standing)
    (unit,) = standing.units.values()
    unit.size = lambda: 1 << 20  # type: ignore[method-assign]
    (unit.folder / "stdout").write_bytes((unit.folder / "stdout").read_bytes()[:20])
    assert "exit status 0" in collected(run)[-1]


def test_what_cannot_be_read_any_more_is_ended_and_said(standing: StandIn) -> None:
    run, record = killed(standing)
    sealed.forget(record.label)  # the key was only in memory
    (said,) = collected(run)
    assert "this machine was started anew; its work is ended" in said
    assert nothing_left(run, standing, record)
    assert list(run.read("events")) == []


def test_a_worker_that_stays_cut_off_keeps_what_it_has(
    standing: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SILENCE", "PATIENCE"):
        monkeypatch.setattr("provision.remote.workers.assignment." + name, 0.3)
    for name in ("_POLL", "_LOOK"):
        monkeypatch.setattr(units, name, 0.1)
    run, record = killed(standing)
    (unit,) = standing.units.values()
    said = (unit.folder / "stdout").read_bytes()
    (unit.folder / "stdout").write_bytes(b"")
    unit.state = "Running"
    standing.cut("rack-1")
    assert "it was not heard from for" in collected(run)[-1]
    standing.routes.add("rack-1")
    unit.frozen, unit.state = False, "Succeeded"
    (unit.folder / "stdout").write_bytes(said)
    assert "it came to its end" in collected(run)[-1]
    assert len(list(run.read("events"))) == 2
    assert nothing_left(run, standing, record)


def test_what_is_of_no_use_is_ended_without_being_read(standing: StandIn) -> None:
    run, record = killed(standing, what="look")
    assert collected(run) == []
    assert nothing_left(run, standing, record)


def test_a_receptor_that_is_away_costs_the_record_nothing(standing: StandIn) -> None:
    run, record = killed(standing)
    standing.stop()
    (said,) = collected(run)
    assert "what it did cannot be collected: the Receptor of this machine cannot be reached" in said
    assert [known for known, _ in register.records(collect.folder_of(run))] != []
    standing.start()
    collected(run)
    assert nothing_left(run, standing, record)


def test_what_nobody_resumed_is_removed_once_its_time_is_up(standing: StandIn) -> None:
    run, record = killed(standing, seconds=-1)
    collect.remove_overdue([run])
    assert standing.units != {}
    collect.remove_overdue([])
    assert nothing_left(run, standing, record)


def test_the_locks_of_a_killed_run_end_where_its_units_had_finished(
    standing: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks would otherwise keep other runs out for half an hour."""
    run, _ = killed(standing)
    locks = NodeLocks(
        {name: {"run": run.id, "node": name, "who": "x", "since": "y", "verb": "up"} for name in HOSTS}
    )
    monkeypatch.setattr(fleet_lock, "RETRY", 0.0)

    def lock(before: tuple[str, ...]) -> fleet_lock.FleetLock:
        return fleet_lock.FleetLock("another", lambda texts: locks.programs(None, texts), before=before)

    found = collect.gather([run], lambda _: None)
    collect.unlock(found, FLEET, {"gpu-02"}, lock(()))
    assert sorted(locks.holders) == ["gpu-01", "gpu-02"]  # a lock of another run is left alone
    collect.unlock(found, FLEET, {"gpu-02"}, lock((run.id,)))
    assert sorted(locks.holders) == ["gpu-02"]  # gpu-02's lock is taken over together with its wave
    collect.keep(found, FLEET, frozenset(), ())


# --- gpuprov runs units, and cancel


def test_units_are_listed_and_ended_by_their_run(
    standing: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    run, record = killed(standing)
    assert cli.main(["runs", "units", "--json"]) == ExitCode.OK
    (row,) = json.loads(capsys.readouterr().out)["units"]
    known: dict[str, Any] = {"unit": record.label, "run": run.path.name, "worker": "rack-1", "what": "up.yml"}
    assert {name: row[name] for name in known} == known
    assert (row["state"], row["controller"], row["nodes"]) == ("succeeded", "gone", list(HOSTS))
    assert cli.main(["runs", "units"]) == ExitCode.OK
    assert "rack-1: up.yml on gpu-[01-02]: succeeded, its controller is gone" in capsys.readouterr().out
    assert cli.main(["runs", "cancel", run.path.name]) == ExitCode.OK
    assert "worker rack-1: ended and removed" in capsys.readouterr().out
    assert nothing_left(run, standing, record)
    assert cli.main(["runs", "units"]) == ExitCode.OK
    assert capsys.readouterr().out == "no run has work at a worker\n"


def test_units_of_a_controller_at_work_are_not_taken_from_it(
    standing: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    run = RunFolder.create("up", {})
    book = register.Register(run.path)
    record, _ = book.begin("rack-1", standing.socket, "up.yml", HOSTS, 60, alone=True)
    assert cli.main(["runs", "cancel", record.label]) == ExitCode.USAGE
    assert "is at work" in capsys.readouterr().err
    assert cli.main(["runs", "cancel", "all"]) == ExitCode.OK
    assert [known.label for known, alive in register.records(collect.folder_of(run)) if alive] == [
        record.label
    ]
    assert cli.main(["runs", "cancel", "nonsense"]) == ExitCode.USAGE
    book.gone(record)


def test_a_unit_that_cannot_be_removed_now_is_said_and_kept(
    standing: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    run, record = killed(standing)
    standing.stop()
    assert cli.main(["runs", "cancel", "all"]) == ExitCode.INCOMPLETE
    assert "not removed: the Receptor of this machine cannot be reached" in capsys.readouterr().out
    standing.start()
    assert cli.main(["runs", "cancel", record.label]) == ExitCode.OK
    assert nothing_left(run, standing, record)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"label": "a-1"}', '{"label": 1}', "\x00"])
def test_a_record_that_is_none_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "a-1.json").write_text(text)
    assert list(register.records(tmp_path)) == []
