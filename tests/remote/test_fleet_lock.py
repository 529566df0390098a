"""The fleet lock: the real lock program run locally, with one folder per machine in place of /run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from provision.desired.inventory import matching
from provision.fleet import Fleet, Node
from provision.node import lock
from provision.remote import held_locks
from provision.remote.protocol import NodeError, unreachable
from provision.remote.reach import fleet_lock
from provision.remote.reach.fleet_lock import FleetLock, LockedError
from provision.up import resume
from tests.support.modules import load
from tests.support.processes import until

BURNIN = "20261121T101500.000Z-burnin"
ORDER = {"about": {"who": "carol@ctl-3 (process 9)", "since": "2026-11-21T10:15:00Z"}}
GPUS = Fleet(Path("/srv/fleet.yml"), {}, {}, pattern="rack1")


@dataclass
class Machines:
    """Simulated nodes. `same`: node → the machine it really is; `dead`: nodes that do not answer."""

    home: Path
    same: dict[str, str] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def folder(self, node: str) -> Path:
        return self.home / self.same.get(node, node)

    def run(self, programs: Mapping[str, str]) -> dict[str, bytes | NodeError]:
        answers: dict[str, bytes | NodeError] = {}
        for node, program in programs.items():
            self.asked.append(node)
            if node in self.dead:
                answers[node] = unreachable("no route to host")
                continue
            machine = str(self.folder(node))
            placed = program.replace("main(dict(op=", f"main(dict(folder={machine!r}, root={machine!r}, op=")
            assert placed != program
            done = subprocess.run(
                [sys.executable, "-I", "-S", "-"],
                input=placed.encode("ascii"),
                capture_output=True,
                check=True,
                env={"PATH": f"{machine}/bin"},
            )
            answers[node] = done.stdout
        return answers

    def lock(self, node: str) -> dict[str, object] | None:
        path = self.folder(node) / "private" / "lock"
        found: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
        return found or None

    def age(self, node: str, seconds: float) -> None:
        """Make a node's lock older by `seconds`."""
        held = self.lock(node)
        assert held
        (self.folder(node) / "private" / "lock").write_text(
            json.dumps({**held, "confirmed": float(str(held["confirmed"])) - seconds})
        )

    def burn_in(self, node: str, state: str = "active", order: object = None) -> None:
        """Simulate a systemd unit of a burn-in on the node. `order`: content of its order.json."""
        root = self.folder(node)
        spool = root / "var/lib/gpuprov/burnin" / BURNIN
        for folder in (spool, root / "bin", root / "etc/systemd/system"):
            folder.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)
        (root / "etc/systemd/system/gpuprov-burnin.service").write_text(
            f"[Unit]\nDescription=gpuprov burn-in {BURNIN}\n"
        )
        (spool / "order.json").write_text(json.dumps(order))
        systemctl = root / "bin/systemctl"
        systemctl.write_text(f"#!/bin/sh\necho ActiveState={state}\n")
        systemctl.chmod(0o755)

    def reboot(self, node: str) -> None:
        (self.folder(node) / "private" / "lock").unlink()


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_lock, "RENEW", 0.05)


def controller(machines: Machines, run: str, **options: object) -> FleetLock:
    return FleetLock(run, machines.run, since="10:00", **options)  # type: ignore[arg-type]


def test_the_second_is_refused_with_holder_and_nodes_and_keeps_nothing(machines: Machines) -> None:
    first, second = controller(machines, "run-1"), controller(machines, "run-2")
    first.take(["gpu-02", "gpu-03"])
    with pytest.raises(LockedError) as refused:
        second.take(["gpu-01", "gpu-02", "gpu-03"])
    assert "gpu-[02-03]: gpuprov up by " in refused.value.what
    assert f"(process {os.getpid()}), since 10:00" in refused.value.what
    assert "run-1" in refused.value.fix
    assert "--break-lock" in refused.value.fix
    assert (machines.lock("gpu-01"), second.nodes) == (None, ())
    first.release()
    second.take(["gpu-01", "gpu-02", "gpu-03"])
    assert second.nodes == ("gpu-01", "gpu-02", "gpu-03")


def test_parts_of_a_fleet_that_do_not_overlap_work_side_by_side(machines: Machines) -> None:
    first, second = controller(machines, "run-1"), controller(machines, "run-2")
    first.take(["gpu-01"])
    second.take(["gpu-02"])
    assert (first.nodes, second.nodes) == (("gpu-01",), ("gpu-02",))


def test_a_released_lock_is_gone_and_nobody_releases_anothers(machines: Machines) -> None:
    first, second = controller(machines, "run-1"), controller(machines, "run-2", force=True)
    first.take(["gpu-01"])
    second.take(["gpu-01"])
    assert first.release() == ()
    assert machines.lock("gpu-01")["run"] == "run-2"  # type: ignore[index]
    second.release()
    assert machines.lock("gpu-01") is None


def test_a_killed_run_is_gone_on_with_by_its_own_resumption_only(machines: Machines) -> None:
    controller(machines, "run-1").take(["gpu-01"])  # and its controller is killed
    with pytest.raises(LockedError):
        controller(machines, "run-2").take(["gpu-01"])
    controller(machines, "run-3", before=["run-0", "run-1"]).take(["gpu-01"])
    assert machines.lock("gpu-01")["run"] == "run-3"  # type: ignore[index]


def test_what_was_not_confirmed_for_long_is_nobodys(machines: Machines) -> None:
    controller(machines, "run-1").take(["gpu-01"])
    machines.age("gpu-01", fleet_lock.LEASE - 60)
    second = controller(machines, "run-2")
    with pytest.raises(LockedError, match="at work") as refused:
        second.take(["gpu-01"])
    assert "in 1 min" in refused.value.fix
    machines.age("gpu-01", 61)
    second.take(["gpu-01"])
    assert second.nodes == ("gpu-01",)


@pytest.mark.parametrize("state", ["active", "activating", "deactivating"])
def test_a_node_that_burns_in_is_refused_with_who_since_when_and_how_it_ends(
    machines: Machines, state: str
) -> None:
    machines.burn_in("gpu-02", state, ORDER)
    lock = controller(machines, "run-1", fleet=GPUS)
    with pytest.raises(LockedError) as refused:
        lock.take(["gpu-01", "gpu-02"])
    assert refused.value.what == (
        "another gpuprov is at work on nodes of yours: gpu-02: the burn-in 20261121T101500.000Z-burnin by "
        "carol@ctl-3 (process 9), since 2026-11-21T10:15:00Z"
    )
    assert refused.value.fix == (
        f"`gpuprov burnin stop {BURNIN} -i /srv/fleet.yml` ends it; --nodes 'rack1:!gpu-02' leaves these "
        "nodes out; --break-lock takes them all the same"
    )
    assert (machines.lock("gpu-01"), machines.lock("gpu-02"), lock.nodes) == (None, None, ())


@pytest.mark.parametrize("state", ["inactive", "failed"])
def test_a_burn_in_that_does_not_run_refuses_nobody(machines: Machines, state: str) -> None:
    machines.burn_in("gpu-01", state, ORDER)
    controller(machines, "run-1").take(["gpu-01"])
    assert machines.lock("gpu-01")


@pytest.mark.parametrize("how", [{"force": True}, {"before": [BURNIN]}])
def test_who_insists_or_whose_burn_in_it_is_may_go_on(machines: Machines, how: dict[str, object]) -> None:
    machines.burn_in("gpu-01", order=ORDER)
    controller(machines, "run-1", **how).take(["gpu-01"])
    assert machines.lock("gpu-01")


@pytest.mark.parametrize("order", [None, [], {"about": 7}, {"about": {"who": None}}])
def test_a_burn_in_that_does_not_say_whose_it_is_is_somebodys(machines: Machines, order: object) -> None:
    machines.burn_in("gpu-01", order=order)
    with pytest.raises(LockedError, match="by somebody, since some time"):
        controller(machines, "run-1").take(["gpu-01"])


def test_a_burn_in_that_cannot_be_asked_about_is_not_none(machines: Machines) -> None:
    machines.burn_in("gpu-01", order=ORDER)
    (machines.folder("gpu-01") / "bin/systemctl").write_text("#!/bin/sh\nexit 1\n")
    assert "it cannot be locked" in controller(machines, "run-1").take(["gpu-01"])["gpu-01"].error
    assert machines.lock("gpu-01") is None


def test_two_holders_are_told_apart(machines: Machines) -> None:
    machines.burn_in("gpu-01", order=ORDER)
    controller(machines, "run-1", verb="validate").take(["gpu-02", "gpu-03"])
    with pytest.raises(LockedError) as refused:
        controller(machines, "run-2").take(["gpu-01", "gpu-02", "gpu-03", "gpu-04"])
    assert "; gpu-[02-03]: gpuprov validate by " in refused.value.what
    assert (
        "press Ctrl-C where it runs; locks of a killed run end by themselves in 30 min" in refused.value.fix
    )
    assert "--nodes 'all:!gpu-01:!gpu-02:!gpu-03' leaves" in refused.value.fix


def test_a_pattern_with_commas_stays_one(machines: Machines) -> None:
    controller(machines, "run-1").take(["gpu-02"])
    listed = Fleet(Path("/srv/fleet.yml"), {}, {}, pattern="gpu-01,gpu-02")
    with pytest.raises(LockedError) as refused:
        controller(machines, "run-2", fleet=listed).take(["gpu-01", "gpu-02"])
    assert "--nodes 'gpu-01,gpu-02,!gpu-02' leaves" in refused.value.fix
    assert matching("gpu-01,gpu-02,!gpu-02", ["gpu-01", "gpu-02"], {}) == ["gpu-01"]


@pytest.mark.usefixtures("hurried")
def test_who_loses_a_lock_while_measuring_is_told(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(Path("/srv/fleet.yml"), {"gpu-01": Node("gpu-01", (), {})}, {})
    monkeypatch.setattr(fleet_lock, "run_programs", lambda _nodes, programs, **_: machines.run(programs))
    heard: list[str] = []
    lost: list[str] = []
    renew = FleetLock.renew

    def renewed(lock: FleetLock) -> None:
        renew(lock)
        lost.append(lock.lost)

    monkeypatch.setattr(FleetLock, "renew", renewed)
    with fleet_lock.alone("validate", "run-1", fleet, timeout=60, connections=1, say=heard.append):
        controller(machines, "run-2", force=True).take(["gpu-01"])
        until(lambda: any(lost))
    assert heard[-1].startswith("the lock of gpu-01 was taken for gpuprov up by ")
    assert heard[-1].endswith(": what was measured after that may not count")


def test_a_lock_from_another_boot_is_nobodys(machines: Machines) -> None:
    controller(machines, "run-1").take(["gpu-01"])
    machines.age("gpu-01", -1e9)  # from before a reboot: the clock starts at boot
    controller(machines, "run-2").take(["gpu-01"])


def test_renewal_confirms_takes_again_after_a_reboot_and_notices_a_thief(machines: Machines) -> None:
    lock = controller(machines, "run-1")
    lock.take(["gpu-01", "gpu-02", "gpu-03"])
    machines.age("gpu-01", 1000)
    machines.reboot("gpu-02")
    lock.renew()
    assert time.monotonic() - float(str(machines.lock("gpu-01")["confirmed"])) < 60  # type: ignore[index]
    assert machines.lock("gpu-02")["run"] == "run-1"  # type: ignore[index]
    assert lock.lost == ""
    controller(machines, "run-2", force=True).take(["gpu-03"])
    lock.renew()
    assert "the lock of gpu-03 was taken for gpuprov up by " in lock.lost
    assert lock.nodes == ("gpu-01", "gpu-02")
    lock.release()
    assert machines.lock("gpu-03")["run"] == "run-2"  # type: ignore[index]


def test_a_node_that_is_silent_for_a_while_keeps_its_lock(machines: Machines) -> None:
    lock = controller(machines, "run-1")
    lock.take(["gpu-01"])
    machines.dead.add("gpu-01")
    lock.renew()
    assert (lock.lost, lock.nodes) == ("", ("gpu-01",))
    assert lock.release() == ("gpu-01",)


@pytest.mark.usefixtures("hurried")
def test_locks_are_confirmed_in_the_background_until_they_are_released(machines: Machines) -> None:
    lock = controller(machines, "run-1")
    lock.take(["gpu-01"])
    machines.age("gpu-01", 1000)
    lock.keep()
    until(lambda: len(machines.asked) > 1)
    lock.release()
    assert len(machines.asked) > 2
    assert machines.lock("gpu-01") is None
    assert not [thread for thread in threading.enumerate() if thread.name == "fleet-lock"]


@pytest.mark.usefixtures("hurried")
def test_a_confirmation_that_fails_is_made_up_for_by_the_next(machines: Machines) -> None:
    calls = 0

    def flaky(programs: Mapping[str, str]) -> dict[str, bytes | NodeError]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("no more file descriptors")
        return machines.run(programs)

    lock = FleetLock("run-1", flaky)
    lock.take(["gpu-01"])
    lock.keep()
    until(lambda: calls > 3)
    lock.release()
    assert machines.lock("gpu-01") is None


# --- locks confirmed by a worker


def lend(lock: FleetLock, *nodes: str) -> dict[str, object]:
    """Return what a worker receives for the locks of these nodes."""
    with held_locks.lent(lock.lend):
        (lent,) = held_locks.of(nodes)
    assert held_locks.of(nodes) == []
    return dict(json.loads(json.dumps(lent)))


@contextlib.contextmanager
def working(machines: Machines, lent: Mapping[str, object]) -> Iterator[dict[str, str]]:
    """Run as a worker with the lent locks until each is confirmed twice.
    Yields a dict that collects lost locks: node → message with the new holder."""
    lost: dict[str, str] = {}
    machines.asked.clear()
    with FleetLock.borrowed(lent, machines.run, lost.__setitem__):
        yield lost
        until(lambda: len(machines.asked) > 2 * len(list(map(str, lent["nodes"]))))  # type: ignore[call-overload]


@pytest.mark.usefixtures("hurried")
def test_the_locks_of_a_killed_controller_are_its_runs_while_a_worker_works(machines: Machines) -> None:
    first = controller(machines, "run-1", who="alice@controller-1 (process 4711)")
    first.take(["gpu-01", "gpu-02"])
    lent = lend(first, "gpu-01", "gpu-03")
    assert lent["nodes"] == ["gpu-01"]
    for node in ("gpu-01", "gpu-02"):
        machines.age(node, fleet_lock.LEASE - 60)
    with working(machines, lent) as lost:
        pass
    assert lost == {}
    assert set(machines.asked) == {"gpu-01"}
    for node in ("gpu-01", "gpu-02"):
        machines.age(node, 61)
    second = controller(machines, "run-2")
    second.take(["gpu-02"])  # no work ran on this node
    with pytest.raises(LockedError, match=r"gpu-01: gpuprov up by alice@controller-1 \(process 4711\), s"):
        second.take(["gpu-01"])
    machines.age("gpu-01", fleet_lock.LEASE)
    second.take(["gpu-01"])  # the lease lasts as long after the end of the work as after a controller's death


@pytest.mark.usefixtures("hurried")
def test_a_worker_confirms_no_longer_than_it_works_and_leaves_the_lock_to_its_run(machines: Machines) -> None:
    first = controller(machines, "run-1")
    first.take(["gpu-01"])
    with working(machines, lend(first, "gpu-01")):
        pass
    assert machines.lock("gpu-01")["run"] == "run-1"  # type: ignore[index]
    assert not [thread for thread in threading.enumerate() if thread.name == "fleet-lock"]
    asked = len(machines.asked)
    controller(machines, "run-2", before=["run-1"]).take(["gpu-01"])  # up --resume
    first.release()
    assert machines.lock("gpu-01")["run"] == "run-2"  # type: ignore[index]
    assert len(machines.asked) == asked + 2


@pytest.mark.usefixtures("hurried")
def test_a_worker_takes_the_lock_again_after_a_reboot(machines: Machines) -> None:
    first = controller(machines, "run-1")
    first.take(["gpu-01"])
    with working(machines, lend(first, "gpu-01")) as lost:
        machines.reboot("gpu-01")
    assert (lost, machines.lock("gpu-01")["run"]) == ({}, "run-1")  # type: ignore[index]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("how", [{"force": True}, {"before": ["run-1"]}], ids=["--break-lock", "--resume"])
def test_a_worker_steals_no_lock_back_and_says_who_has_it(machines: Machines, how: dict[str, object]) -> None:
    first = controller(machines, "run-1")
    first.take(["gpu-01", "gpu-02"])
    lent = lend(first, "gpu-01", "gpu-02")
    with working(machines, lent) as lost:
        controller(machines, "run-2", who="bob@ctl-2 (process 7)", **how).take(["gpu-01"])
        until(lambda: bool(lost))
        machines.asked.clear()
    assert lost == {
        "gpu-01": "the lock of gpu-01 was taken for gpuprov up by bob@ctl-2 (process 7), since 10:00"
    }
    assert set(machines.asked[1:]) == {"gpu-02"}  # no longer contacted after losing the lock
    assert machines.lock("gpu-01")["run"] == "run-2"  # type: ignore[index]
    assert machines.lock("gpu-02")["run"] == "run-1"  # type: ignore[index]


@pytest.mark.usefixtures("hurried")
def test_a_silent_node_is_no_lost_lock(machines: Machines) -> None:
    first = controller(machines, "run-1")
    first.take(["gpu-01"])
    machines.dead.add("gpu-01")
    with working(machines, lend(first, "gpu-01")) as lost:
        pass
    assert lost == {}


def test_the_first_confirmation_by_a_worker_leaves_time_for_one_that_fails(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the worst case the controller's own last confirmation was RENEW ago."""
    first: list[float] = []
    lock = controller(machines, "run-1")
    lock.take(["gpu-01"])
    lent = lend(lock, "gpu-01")
    monkeypatch.setattr(FleetLock, "keep", lambda _lock, seconds: first.append(seconds))
    with FleetLock.borrowed(lent, machines.run, lambda *_: None):
        pass
    assert fleet_lock.RENEW + first[0] + fleet_lock.RENEW < fleet_lock.LEASE


def test_locks_are_lent_for_as_long_as_they_are_held(machines: Machines) -> None:
    lock = controller(machines, "run-1")
    with fleet_lock.held(lock, ["gpu-01"], say=lambda _: None):
        (lent,) = held_locks.of(["gpu-01", "gpu-02"])
        assert (lent["run"], lent["nodes"]) == ("run-1", ["gpu-01"])
        assert held_locks.of(["gpu-02"]) == []
    assert held_locks.of(["gpu-01"]) == []


def test_a_node_that_cannot_be_asked_is_named_and_the_others_are_locked(machines: Machines) -> None:
    machines.dead.add("gpu-02")
    (machines.home / "gpu-03").mkdir()
    (machines.home / "gpu-03").chmod(0o777)
    lock = controller(machines, "run-1")
    said = lock.take(["gpu-01", "gpu-02", "gpu-03"])
    assert lock.nodes == ("gpu-01",)
    assert said["gpu-02"].unreachable
    assert "no route to host" in said["gpu-02"].error
    assert "not a folder that root alone may change" in said["gpu-03"].error


@pytest.mark.parametrize("recovers", [True, False], ids=["it answers the release", "it never answers"])
@pytest.mark.parametrize("kind", ["too large", "hung", "cut"])
def test_a_lock_whose_answer_was_lost_is_given_back_or_named(
    machines: Machines, kind: str, recovers: bool
) -> None:
    """The login prints without end: the lock program runs, but its answer drowns in the output."""
    drowned = ["gpu-01"]

    def run(programs: Mapping[str, str]) -> dict[str, bytes | NodeError]:
        answers = machines.run(programs)
        return answers | {node: NodeError(kind, "it prints", "look") for node in drowned if node in answers}

    messages: list[str] = []
    with fleet_lock.held(FleetLock("run-1", run), ["gpu-01", "gpu-02"], say=messages.append) as answers:
        assert answers["gpu-01"].error
        assert machines.lock("gpu-01")  # it was locked nonetheless
        machines.age("gpu-01", 0.0)
        if recovers:
            drowned.clear()
    assert machines.lock("gpu-01") is None
    assert machines.lock("gpu-02") is None
    assert [line.partition(":")[0] for line in messages] == ([] if recovers else ["gpu-01"])


def test_a_dead_node_is_not_asked_for_a_lock_it_cannot_have(machines: Machines) -> None:
    machines.dead.add("gpu-01")
    lock = controller(machines, "run-1")
    lock.take(["gpu-01"])
    lock.release()
    assert machines.asked == ["gpu-01"]


@pytest.mark.parametrize("run", ["-x", "--force", "a b", ""])
def test_a_run_name_that_is_an_option_or_more_than_a_name_reaches_no_advice(run: str) -> None:
    holder = {"run": run, "node": "gpu-01", "who": "w", "since": "10:00", "verb": "burnin"}
    body = json.dumps({**SAID, "state": "held", "holder": holder}).encode()
    answer = b"@gpuprov-facts 1 %d\n%s\n@gpuprov-end" % (len(body), body)
    lock = FleetLock("run-1", lambda programs: dict.fromkeys(programs, answer))
    assert "cannot be locked" in lock.take(["gpu-01"])["gpu-01"].error


@pytest.mark.parametrize(
    "run", ["20261121T101500.000Z-up@ctl-3.example", "2026-11-28T14:12:40.235Z root@ctl-3 (process 6552)"]
)
def test_the_name_of_a_run_with_its_controller_is_one(machines: Machines, run: str) -> None:
    controller(machines, run).take(["gpu-01"])
    with pytest.raises(LockedError, match="gpu-01: gpuprov up by "):
        controller(machines, "run-2").take(["gpu-01"])


def marked_in(environment: Path) -> bool:
    return b"GPUPROV_RUN=run-0" in environment.read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="starts processes of another user")
def test_what_another_user_marks_as_ours_is_none_of_ours(machines: Machines) -> None:
    """Neither that user's process counts, nor a setuid program that the user started."""
    setuid = Path(tempfile.mkdtemp(dir="/var/tmp")) / "setuid"
    shutil.copy("/bin/sleep", setuid)
    setuid.parent.chmod(0o755)
    setuid.chmod(0o4755)
    marked = {"GPUPROV_RUN": "run-0", "PATH": "/usr/bin:/bin"}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, setuid.parent)
        started = [
            stack.enter_context(subprocess.Popen(words, env=marked, user=65534, group=65534, cwd="/"))
            for words in (["sleep", "60"], [str(setuid), "60"])
        ]
        for each in started:
            stack.callback(each.kill)
            environment = Path(f"/proc/{each.pid}/environ")
            until(partial(marked_in, environment))
        busy = controller(machines, "run-1").take(["gpu-01"])["gpu-01"].busy
    assert not [entry for entry in busy if entry.split()[0] in {str(each.pid) for each in started}]


def test_one_machine_under_two_names_is_found(machines: Machines) -> None:
    machines.same = {"gpu-09": "gpu-01"}
    with pytest.raises(LockedError, match="gpu-09 and gpu-01 are one machine under two names"):
        controller(machines, "run-1").take(["gpu-01", "gpu-09"])
    assert machines.lock("gpu-01") is None


def test_what_an_earlier_run_still_has_running_is_named(machines: Machines) -> None:
    environment = {**os.environ, "GPUPROV_RUN": "run-0"}
    with subprocess.Popen(["sleep", "60"], env=environment) as left:
        try:
            busy = controller(machines, "run-1").take(["gpu-01"])["gpu-01"].busy
        finally:
            left.kill()
    assert f"{left.pid} sleep" in busy
    assert not [
        entry for entry in controller(machines, "run-1").take(["gpu-01"])["gpu-01"].busy if "sleep" in entry
    ]


def test_no_pattern_is_proposed_where_it_would_name_nobody(machines: Machines) -> None:
    controller(machines, "run-1").take(["gpu-01", "gpu-02"])
    with pytest.raises(LockedError) as refused:
        controller(machines, "run-2").take(["gpu-01", "gpu-02"])
    assert "--nodes" not in refused.value.fix
    with pytest.raises(LockedError) as refused:
        controller(machines, "run-2").take(["gpu-01", "gpu-02", "gpu-03"])
    assert "--nodes 'all:!gpu-01:!gpu-02' leaves these nodes out" in refused.value.fix


def test_locks_taken_at_the_second_try_are_confirmed_as_any(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_lock, "RENEW", 0.2)
    other = controller(machines, "run-1")
    other.take(["gpu-01"])
    lock = controller(machines, "run-2")

    def release(_seconds: float) -> None:
        other.release()

    with fleet_lock.held(lock, ["gpu-01"], say=lambda _: None, pause=release):
        before = (machines.lock("gpu-01") or {})["confirmed"]
        until(lambda: (machines.lock("gpu-01") or {})["confirmed"] != before, 20)


def test_some_are_given_back_and_no_later_confirmation_takes_them_again(machines: Machines) -> None:
    lock = controller(machines, "run-1")
    lock.take(["gpu-01", "gpu-02"])
    lock.release(["gpu-01"])
    lock.renew()
    assert lock.nodes == ("gpu-02",)
    assert (machines.lock("gpu-01") is None, machines.lock("gpu-02") is None) == (True, False)
    assert lock.release() == ()


@pytest.mark.parametrize("stubborn", [True, False])
def test_what_outlives_the_run_is_named_when_the_lock_is_given_back(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, stubborn: bool
) -> None:
    told = fleet_lock._program
    monkeypatch.setattr(fleet_lock, "_program", lambda request: told({**request, "ending": 1.5}))
    said: list[str] = []
    lock = controller(machines, "run-1")
    with (
        subprocess.Popen(
            ["sleep", "60" if stubborn else "0.5"], env={**os.environ, "GPUPROV_RUN": "validate"}
        ) as left,
        fleet_lock.held(lock, ["gpu-01"], say=said.append),
    ):
        pass_on = threading.Timer(4, left.kill)
        pass_on.start()
    assert machines.lock("gpu-01") is None
    named = [line for line in said if f"{left.pid} sleep" in line]
    assert bool(named) is stubborn
    assert not named or named[0].startswith("gpu-01: programs of this run still run there: ")


def test_a_release_that_is_interrupted_names_the_nodes_that_stay_locked(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second Ctrl-C arrives while nodes are being unlocked."""
    lock = controller(machines, "run-1")
    printed: list[str] = []

    def interrupted(_what: str, _nodes: object) -> None:
        raise KeyboardInterrupt

    def run() -> None:
        with fleet_lock.held(lock, ["gpu-01", "gpu-02"], say=printed.append):
            monkeypatch.setattr(lock, "_ask", interrupted)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert [line.partition(":")[0] for line in printed] == ["gpu-[01-02]"]
    assert "could not be released; it ends by itself within 30 min" in printed[0]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"state": "taken"}',
        b'{"problem": "", "state": "yours", "holder": null, "busy": [], "age": 0, "time": 0}',
        b'{"problem": "", "state": "held", "holder": "me", "busy": [], "age": 0, "time": 0}',
        b'{"problem": "", "state": "held", "holder": {}, "busy": [], "age": 0, "time": 0}',
        b'{"problem": "", "state": "taken", "holder": null, "busy": 7, "age": 0, "time": 0}',
        b'{"problem": "", "state": "taken", "holder": null, "busy": [], "age": 0, "time": 1%s}'
        % (b"0" * 400),
        b"[" * 100_000,
    ],
)
def test_a_node_that_answers_nonsense_is_not_locked(body: bytes) -> None:
    answer = b"@gpuprov-facts 1 %d\n%s\n@gpuprov-end\n" % (len(body), body)
    lock = FleetLock("run-1", lambda programs: dict.fromkeys(programs, answer))
    assert "cannot be locked" in lock.take(["gpu-01"])["gpu-01"].error
    assert lock.nodes == ()


def test_a_damaged_lock_is_no_lock(machines: Machines) -> None:
    for number, text in enumerate(['{"run": 1}', "torn", "", '{"run": "a", "confirmed": "x"}']):
        folder = machines.folder(f"n{number}") / "private"
        folder.mkdir(parents=True, mode=0o700)
        (folder / "lock").write_text(text)
    lock = controller(machines, "run-1")
    lock.take([f"n{number}" for number in range(4)])
    assert len(lock.nodes) == 4


def test_a_lock_is_never_read_or_written_through_a_link(machines: Machines, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    private = machines.folder("gpu-01") / "private"
    private.mkdir(parents=True, mode=0o700)
    (private / "lock.new").symlink_to(target)
    assert "cannot be locked" in controller(machines, "run-1").take(["gpu-01"])["gpu-01"].error
    assert target.read_text() == "mine"


def test_two_that_ask_at_once_never_both_get_it(machines: Machines) -> None:
    for round_ in range(6):
        node = f"gpu-{round_}"
        got: list[str] = []

        def take(run: str, node: str = node, got: list[str] = got) -> None:
            lock = controller(machines, run)
            try:
                lock.take([node])
                got.append(run)
            except LockedError:
                pass

        threads = [threading.Thread(target=take, args=(f"run-{number}",)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(got) == 1


def test_a_clock_that_is_far_off_is_worth_a_word() -> None:
    said = [
        fleet_lock.Answer("a", skew=400 * 86400.0),
        fleet_lock.Answer("b", skew=-90000),
        fleet_lock.Answer("c", skew=60),
    ]
    assert resume.skewed(said) == {
        "a": "its clock is 400 days ahead of this controller's",
        "b": "its clock is 1 days behind this controller's",
    }


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_others_read_the_folder_of_results_and_cannot_open_a_lock(machines: Machines, umask: int) -> None:
    """Anyone who can open the lock file can lock it and keep every controller out. This program often
    creates the folder, which also holds the health result for exporters and users without root."""
    before = os.umask(umask)
    try:
        assert not controller(machines, "run-1").take(["gpu-01"])["gpu-01"].error
    finally:
        os.umask(before)
    folder = machines.folder("gpu-01")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert [one.name for one in folder.iterdir()] == ["private"]
    assert stat.S_IMODE((folder / "private").stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in (folder / "private").iterdir()} == {0o600}


def test_the_module_that_runs_checks_looks_for_the_lock_where_it_is(machines: Machines) -> None:
    controller(machines, "run-1").take(["gpu-01"])
    (written,) = machines.folder("gpu-01").rglob("lock")
    place = Path(lock.LOCK_FOLDER, written.relative_to(machines.folder("gpu-01")))
    assert str(place) == load("gpuprov_run").LOCK


def test_folders_that_an_earlier_version_left_open_are_closed(machines: Machines) -> None:
    private = machines.folder("gpu-01") / "private"
    private.mkdir(parents=True)
    private.chmod(0o755)
    private.parent.chmod(0o700)
    assert not controller(machines, "run-1").take(["gpu-01"])["gpu-01"].error
    assert [stat.S_IMODE(one.stat().st_mode) for one in (private.parent, private)] == [0o755, 0o700]


SAID: dict[str, Any] = {
    "state": "taken",
    "holder": None,
    "age": None,
    "busy": [],
    "time": 1.8e9,
    "problem": "",
}


@pytest.mark.parametrize("field", ["age", "time"])
@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 60_000, "9" * 400, '"nan"', "true", "-1", "1e30"]
)
def test_a_time_that_is_none_makes_one_node_unreadable(field: str, value: str) -> None:
    good, bad = (json.dumps({**SAID, field: put}) for put in (1.8e9 if field == "time" else 5.0, "HERE"))
    bodies = {"gpu-01": good, "gpu-02": bad.replace('"HERE"', value)}

    def run(programs: Mapping[str, str]) -> dict[str, bytes | NodeError]:
        return {
            node: b"@gpuprov-facts 1 %d\n%s\n@gpuprov-end" % (len(bodies[node]), bodies[node].encode())
            for node in programs
        }

    answers = FleetLock("run-1", run).take(["gpu-01", "gpu-02"])
    assert answers["gpu-01"].error == ""
    assert answers["gpu-02"].error.startswith("it cannot be locked: its answer is not of the form expected (")
    assert len(answers["gpu-02"].error) < 200
    resume.skewed(answers.values())


def test_to_be_terminated_is_to_be_interrupted_though_locks_are_broken() -> None:
    """`validate --break-lock` used to die of SIGTERM without a report."""
    fleet = Fleet(Path("nodes.yml"), {"gpu-01": Node("gpu-01", (), {})}, {})
    before = signal.getsignal(signal.SIGTERM)
    with fleet_lock.alone("validate", "r", fleet, timeout=1, connections=1, say=print, broken=True):
        assert callable(signal.getsignal(signal.SIGTERM)), "it would end this process"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
