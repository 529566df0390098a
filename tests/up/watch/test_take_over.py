"""Taking a watch over, from its folder or from the scheduler's data, after a kill at any moment."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from provision import cli
from provision.desired.inventory import load
from provision.errors import ExitCode, GpuprovError, UsageError
from provision.remote.schedulers import PREFIX, Holder, Scheduled, chosen
from provision.remote.schedulers.lease import Lease
from provision.up.watch.decide import View, choose
from provision.up.watch.incidents import Incident, Step, Store, moved, new, place_of
from provision.up.watch.lease import Holding
from provision.up.watch.policy import Policy
from provision.up.watch.roles import Role, roles
from provision.up.watch.take_over import numbered, rebuilt, strays, take_over
from tests.support import seed
from tests.support.watched import FAILED, ended, prepared, started
from tests.support.watching import GOOD, FileScheduler, fleet, seen

NOW = 1_800_000_000.0
I0 = "20270115T060000Z-gpu-02-0a1b2c3d"
I1, I2 = "20270115T070000Z-gpu-03-0a1b2c3d", "20270115T071000Z-spare-1-0a1b2c3d"
WORDS = "gpu3 has fallen off the bus (Xid 79)"


def words(**nodes: tuple[str, str]) -> dict[str, Scheduled]:
    """Return each node's scheduler state: node → its reason, and the replacement noted in its lease."""
    found = {}
    for name in fleet().nodes:
        why, placed = nodes.get(name.replace("-", "_"), ("", ""))
        holder = Holder.US if why.startswith(PREFIX) else Holder.OTHERS if why else Holder.NOBODY
        lease = Lease("f", "h", 1, "ctl-1:/x", placed)
        spare = name.startswith("spare") and holder is Holder.US
        pools = () if spare else ("gpu",)
        found[name] = Scheduled(name, "IDLE", why, holder, not why, pools=pools, lease=lease)
    return found


WAITS = (f"{PREFIX}spare [root@2027-01-15T07:00:00]", "")
DRAINED = f"{PREFIX}{I1} {WORDS} [root@2027-01-15T07:00:00]"


@pytest.mark.parametrize(
    ("nodes", "steps", "differs"),
    [
        ({"spare_1": WAITS}, {}, {}),
        ({"gpu_03": (DRAINED, ""), "spare_1": WAITS}, {"gpu-03": (Step.CHOOSE, "")}, {"gpu-03": "repair"}),
        (
            {
                "gpu_03": (DRAINED, ""),
                "spare_1": (f"{PREFIX}{I1} takes the place of gpu-03 [root@2027]", ""),
            },
            {"gpu-03": (Step.VERIFY, "spare-1")},
            {"gpu-03": "repair"},
        ),
        (  # killed between the note in the lease and the resume
            {
                "gpu_03": (DRAINED, f"{I1} gpu-03 spare-1"),
                "spare_1": (f"{PREFIX}{I1} takes the place of gpu-03 [root@2027]", f"{I1} gpu-03 spare-1"),
            },
            {"gpu-03": (Step.VERIFY, "spare-1")},
            {"gpu-03": "repair"},
        ),
        (  # it could not be put into service, so another spare is selected
            {
                "gpu_03": (DRAINED, f"{I1} gpu-03 spare-1"),
                "spare_1": (f"{PREFIX}{I1} could not be put into service", f"{I1} gpu-03 spare-1"),
            },
            {"gpu-03": (Step.CHOOSE, "")},
            {"gpu-03": "repair"},
        ),
        (
            {"gpu_03": (DRAINED, f"{I1} gpu-03 spare-1"), "spare_1": ("", f"{I1} gpu-03 spare-1")},
            {"gpu-03": (Step.REPAIR, "spare-1")},
            {"gpu-03": "repair", "spare-1": "service"},
        ),
        (  # the replacement has failed as well, and waits for another
            {
                "gpu_03": (DRAINED, f"{I1} gpu-03 spare-1"),
                "spare_1": (f"{PREFIX}{I2} {WORDS}", f"{I1} gpu-03 spare-1"),
            },
            {"gpu-03": (Step.REPAIR, "spare-1"), "spare-1": (Step.CHOOSE, "")},
            {"gpu-03": "repair", "spare-1": "repair"},
        ),
        (
            {
                "gpu_03": (DRAINED, f"{I1} gpu-03 spare-1"),
                "spare_1": (f"{PREFIX}{I2} {WORDS}", f"{I2} spare-1 spare-2"),
                "spare_2": ("", f"{I2} spare-1 spare-2"),
            },
            {"gpu-03": (Step.REPAIR, "spare-1"), "spare-1": (Step.REPAIR, "spare-2")},
            {"gpu-03": "repair", "spare-1": "repair", "spare-2": "service"},
        ),
        (  # the same, with a clock that went back in between
            {
                "gpu_03": (DRAINED, f"{I1} gpu-03 spare-1"),
                "spare_1": (f"{PREFIX}{I0} {WORDS}", f"{I1} gpu-03 spare-1"),
            },
            {"gpu-03": (Step.REPAIR, "spare-1"), "spare-1": (Step.CHOOSE, "")},
            {"gpu-03": "repair", "spare-1": "repair"},
        ),
        (  # gpu-03, repaired, replaced gpu-02 after the clock went back; gpu-02 is a spare now
            {
                "gpu_02": (WAITS[0], "spare"),
                "gpu_03": ("", f"{I0} gpu-02 gpu-03"),
                "spare_1": ("", f"{I1} gpu-03 spare-1"),
            },
            {"gpu-02": (Step.REPAIR, "gpu-03"), "gpu-03": (Step.REPAIR, "spare-1")},
            {"gpu-02": "spare", "gpu-03": "service", "spare-1": "service"},
        ),
        (  # a spare failed while it waited, and needs no replacement
            {"spare_1": (f"{PREFIX}{I2} {WORDS}", ""), "spare_2": WAITS},
            {"spare-1": (Step.REPAIR, "")},
            {"spare-1": "repair"},
        ),
        (  # the failed node is repaired and a spare; its replacement serves
            {"gpu_03": (WAITS[0], "spare"), "spare_1": ("", f"{I1} gpu-03 spare-1")},
            {"gpu-03": (Step.REPAIR, "spare-1")},
            {"gpu-03": "spare", "spare-1": "service"},
        ),
        (  # the same, but no replacement is recorded
            {"gpu_03": (WAITS[0], "spare"), "spare_1": WAITS, "spare_2": WAITS},
            {"gpu-03": (Step.REPAIR, "")},
            {"gpu-03": "spare"},
        ),
        (  # the replacement is repaired and waits again; the failed node is still in repair
            {"gpu_03": (DRAINED, f"{I1} gpu-03 spare-1"), "spare_1": (WAITS[0], "spare")},
            {"gpu-03": (Step.REPAIR, "spare-1"), "spare-1": (Step.REPAIR, "")},
            {"gpu-03": "repair", "spare-1": "spare"},
        ),
        (  # the same, and the replacement is being checked as one for gpu-02
            {
                "gpu_02": (f"{PREFIX}{I0} {WORDS}", ""),
                "gpu_03": (DRAINED, f"{I1} gpu-03 spare-1"),
                "spare_1": (f"{PREFIX}{I0} takes the place of gpu-02", "spare"),
            },
            {
                "gpu-02": (Step.VERIFY, "spare-1"),
                "gpu-03": (Step.REPAIR, "spare-1"),
                "spare-1": (Step.REPAIR, ""),
            },
            {"gpu-02": "repair", "gpu-03": "repair", "spare-1": "spare"},
        ),
        (  # the lease of spare-1 records no incident, so it may serve for gpu-03
            {"gpu_03": (DRAINED, ""), "spare_1": ("", ""), "spare_2": WAITS},
            {"gpu-03": (Step.REPAIR, "")},
            {"gpu-03": "repair"},
        ),
        (  # drains by others, by `up` and by the node itself are no incidents
            {
                "gpu_01": ("fan [ann@2027]", ""),
                "gpu_02": (f"{PREFIX}up 20270115T070000Z-up-abc", ""),
                "gpu_03": (f"{PREFIX}gpu3: GPU has fallen off the bus", ""),
            },
            {},
            {},
        ),
    ],
)
def test_incidents_are_rebuilt(
    nodes: dict[str, tuple[str, str]],
    steps: dict[str, tuple[Step, str]],
    differs: dict[str, str],
) -> None:
    waiting = {name: WAITS for name in ("spare_1", "spare_2") if name not in nodes}
    known = words(**waiting, **nodes)
    found, _ = rebuilt(fleet(), known, NOW)
    assert {one.node: (one.step, one.spare) for one in found} == steps
    role = roles(fleet(), numbered(found, itertools.count(1).__next__))
    usual = {name: Role.SPARE if name.startswith("spare") else Role.SERVICE for name in role}
    assert role == {**usual, **{name: Role(word) for name, word in differs.items()}}
    # In the next decision no drained node of an incident is a spare, and no node in service is selected.
    view = View(
        NOW,
        fleet(),
        {name: seen(name, **GOOD) for name in role},
        known,
        numbered(found, itertools.count(1).__next__),
        dict.fromkeys(role, NOW),
    )
    for one in view.incidents:
        if one.step is Step.CHOOSE:
            spare, _ = choose(one, view, Policy())
            assert not spare or (role[spare] is Role.SPARE and known[spare].holder is Holder.US)


def test_cause_and_time_come_from_the_reason() -> None:
    (one,), told = rebuilt(fleet(), words(gpu_03=(DRAINED, ""), spare_1=WAITS, spare_2=WAITS), NOW)
    assert (one.id, one.cause, told) == (I1, WORDS, [])
    assert one.opened == 1_799_996_400.0
    assert one.drained == one.opened


def test_what_is_in_doubt_is_told() -> None:
    _, told = rebuilt(fleet(), words(gpu_03=(DRAINED, ""), spare_2=WAITS), NOW)
    assert told == [
        "spare-1: in service, and not known for which node",
        "gpu-03: a spare may be in its place already, so it gets no other one",
    ]


def test_a_drain_that_nobody_knows_of_is_told() -> None:
    """The earlier watch drained gpu-03 at the very moment of the take-over."""
    known = words(
        gpu_03=(DRAINED, ""), spare_1=(f"{PREFIX}{I2} takes the place of gpu-03", ""), spare_2=WAITS
    )
    view = View(NOW, fleet(), {}, known, [])
    assert [(one.kind, one.nodes) for one in strays(view)] == [("stray", ("gpu-03",))]
    mine = Incident(I1, "gpu-03", NOW, Step.CHOOSE, WORDS)
    assert strays(replace(view, incidents=[mine])) == []


def test_no_name_of_a_file_comes_from_the_scheduler() -> None:
    strange = "20270115T070000Z-/../../etc/x"
    found, _ = rebuilt(
        fleet(),
        words(gpu_03=(f"{PREFIX}{strange} x", ""), spare_1=("", f"{strange} gpu-03 spare-1"), spare_2=WAITS),
        NOW,
    )
    assert found == []


# The `take-over` command.


def lent(scheduler: FileScheduler, at: str, holder: str = "old") -> None:
    names = list(fleet().nodes)
    scheduler.lease(dict.fromkeys(names, Lease("fleet-1", holder, 4, at)), dict.fromkeys(names))


def taken(folder: Path, scheduler: FileScheduler, of: Path | None = None) -> tuple[Store, list[str]]:
    store, said = Store(folder), list[str]()
    with store.alone():
        take_over(fleet(), store, scheduler, of, said.append, sleep=lambda _seconds: None)
    return store, said


@pytest.fixture
def slurm(tmp_path: Path) -> FileScheduler:
    made = FileScheduler(tmp_path / "slurm.json")
    made.begin(fleet())
    return made


def test_all_leases_are_taken_and_counted(tmp_path: Path, slurm: FileScheduler) -> None:
    lent(slurm, "ctl-1:/home/ann")
    store, said = taken(tmp_path / "new", slurm)
    assert said[0] == "gpu-[01-08], spare-[1-2]: taken from ctl-1:/home/ann"
    leases = {word.lease for word in slurm.look(list(fleet().nodes)).values()}
    assert leases == {Lease("fleet-1", store.lease()["holder"], 5, Holding(store, slurm).at)}
    assert (store.lease()["fleet"], store.lease()["taking"]) == ("fleet-1", False)
    with pytest.raises(UsageError, match="no other watch has these nodes"):
        taken(tmp_path / "new", slurm)


def test_a_fleet_that_nobody_has_is_not_taken_over(tmp_path: Path, slurm: FileScheduler) -> None:
    with pytest.raises(UsageError, match="no other watch has these nodes"):
        taken(tmp_path / "new", slurm)
    # If the leases were lost, the watch that followed them may take over.
    Holding(Store(tmp_path / "new"), slurm).save(follows="ctl-1:/home/ann")
    store, _ = taken(tmp_path / "new", slurm)
    assert store.lease()["follows"] == ""


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"look": {"gpu-02": "timeout"}}, "gpu-02: no answer from the scheduler: timeout"),
        ({"lease": {"gpu-02": "denied"}}, "gpu-02: not taken over: denied"),
    ],
)
def test_without_the_scheduler_nothing_is_begun(
    tmp_path: Path, slurm: FileScheduler, broken: Mapping[str, Mapping[str, str]], why: str
) -> None:
    lent(slurm, "ctl-1:/home/ann")
    slurm.broken = {method: dict(nodes) for method, nodes in broken.items()}
    with pytest.raises(GpuprovError, match=why):
        taken(tmp_path / "new", slurm)
    slurm.broken = {}
    taken(tmp_path / "new", slurm)  # repeated after it was half done


def old_folder(tmp_path: Path, slurm: FileScheduler) -> tuple[Store, Incident]:
    """Create the folder of a dead watch that drained gpu-03, which has no replacement yet."""
    old = Store(tmp_path / "old")
    with old.alone():
        Holding(old, slurm).save(holder="old")
        one = moved(new("gpu-03", NOW, WORDS, number=7, serial="4711"), Step.CHOOSE)
        old.write(one)
        old.write_validated("spare-1", NOW, "pass", "a-run")
    lent(slurm, Holding(old, slurm).at)
    slurm.set("gpu-03", reason=f"{PREFIX}{one.reason}")
    return old, one


@pytest.mark.parametrize("named", [False, True], ids=["its own place on this machine", "--from"])
def test_the_folder_of_the_earlier_watch_is_read(tmp_path: Path, slurm: FileScheduler, named: bool) -> None:
    old, one = old_folder(tmp_path, slurm)
    mine = Store(tmp_path / "new")
    mine.write(new("gpu-01", NOW, "of a year ago, when this watch had the nodes"))
    store, said = taken(tmp_path / "new", slurm, old.path if named else None)
    assert store.incidents() == [one]
    assert store.validated()["spare-1"]["verdict"] == "pass"
    assert f"1 incident copied from {old.path}" in said
    assert len(list(store.path.glob("before/incidents/*.json"))) == 1, "what this folder knew is put away"


def test_what_this_folder_knows_of_nodes_that_it_has_stays(tmp_path: Path, slurm: FileScheduler) -> None:
    """The folder has gpu-01 to gpu-04, and takes the others over from another watch."""
    mine, some = Store(tmp_path / "new"), [f"gpu-0{number}" for number in range(1, 5)]
    own = moved(new("gpu-02", NOW, WORDS, number=1, serial="4711"), Step.REPAIR)
    mine.write(own)
    holding = Holding(mine, slurm)
    holding.keep(slurm.look(some), [own])
    rest = [name for name in fleet().nodes if name not in some]
    slurm.lease(dict.fromkeys(rest, Lease("f", "old", 1, "ctl-1:/x")), dict.fromkeys(rest))
    theirs = new("gpu-06", NOW, WORDS)
    slurm.set("gpu-02", reason=f"{PREFIX}{own.reason}")
    slurm.set("gpu-06", reason=f"{PREFIX}{theirs.reason}")
    store, said = taken(mine.path, slurm)
    assert said[0] == "gpu-[05-08], spare-[1-2]: taken from ctl-1:/x"
    assert {one.id: one.serial for one in store.incidents()} == {own.id: "4711", theirs.id: ""}


def test_a_folder_in_use_or_of_another_fleet_is_refused(tmp_path: Path, slurm: FileScheduler) -> None:
    old, _ = old_folder(tmp_path, slurm)
    with old.alone(), pytest.raises(GpuprovError, match="is at work"):
        taken(tmp_path / "new", slurm)
    with pytest.raises(GpuprovError, match="no folder of a watch"):
        taken(tmp_path / "new", slurm, tmp_path / "none")
    old.write_lease({"holder": "somebody else"})
    with pytest.raises(GpuprovError, match="is not the folder of"):
        taken(tmp_path / "new", slurm, old.path)
    assert {word.lease.holder for word in slurm.look(["gpu-01"]).values() if word.lease} == {"old"}


def test_kills_at_random_moments_and_another_machine_takes_over(tmp_path: Path) -> None:
    """Exactly one drain, one replacement and one waiting spare remain, at whatever moment the kill came."""
    drawn = random.Random(seed.SEED)  # noqa: S311 - random moments, not secrets
    scheduler = prepared(tmp_path / "whole")
    began = time.monotonic()
    assert ended(started(tmp_path / "whole")) == 0
    whole = time.monotonic() - began
    open_ones = 0
    for trial in range(16):
        folder = tmp_path / str(trial)
        scheduler = prepared(folder)
        pid = started(folder)
        time.sleep(drawn.uniform(0, whole))
        os.kill(pid, signal.SIGKILL)
        ended(pid)
        open_ones += any(one.is_open for one in Store(folder / "watch").incidents())
        (folder / "watch").rename(folder / "lost")
        moved_on(folder, scheduler)
        with scheduler.rows() as rows:
            reasons = {name: row["reason"] for name, row in rows.items() if row["reason"]}
        done = scheduler.done()
        assert done.count(f"drain {FAILED}") == 1, f"trial {trial}: {done}"
        assert sum(line.startswith("resume spare") for line in done) == 1, f"trial {trial}: {done}"
        assert [name for name in reasons if name != FAILED] == ["spare-2"], f"trial {trial}: {reasons}"
        assert not [line for line in done if line.startswith("drain") and line != f"drain {FAILED}"]
    assert open_ones >= 4, "some were killed on the way"


def moved_on(folder: Path, scheduler: FileScheduler) -> None:
    """Take over in another folder if there are leases, and run its watch until the node is replaced."""
    store = Store(folder / "watch")
    if any(scheduler.leases().values()):
        taken(folder / "watch", scheduler)
    with store.alone():
        for spare in ("spare-1", "spare-2"):
            store.write_validated(spare, time.time(), "pass", "again")
    pid = started(folder)
    end = time.monotonic() + 30
    while time.monotonic() < end and not replaced(store):
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    ended(pid)
    assert replaced(store), store.incidents()


def replaced(store: Store) -> Any:
    return [one for one in store.incidents() if one.node == FAILED and one.placed and not one.is_open]


def test_the_command_and_what_state_prints(
    tmp_path: Path, slurm: FileScheduler, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user's watch has the nodes; cpu-01 has no scheduler, so no watch can drain it."""
    hosts: dict[str, Any] = {name: {} for name in fleet().nodes}
    hosts["cpu-01"] = {"gpuprov_scheduler": "none"}
    groups: dict[str, Any] = {"gpuprov_spares": {"hosts": {"spare-1": {}, "spare-2": {}}}}
    document = {"hosts": hosts, "vars": {"gpuprov_scheduler": "slurm"}, "children": groups}
    inventory = tmp_path / "fleet.yml"
    inventory.write_text(yaml.safe_dump({"all": document}))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setitem(chosen.MAKERS, chosen.SLURM, lambda _fleet, _names: slurm)
    lent(slurm, "ctl-1:/home/ann")
    store = Store(place_of(load(inventory)))
    follower = Holding(store, slurm)
    follower.keep(slurm.look(list(fleet().nodes)), [])
    assert cli.main(["watch", "state", str(inventory)]) == ExitCode.INCOMPLETE, "no watch runs here"
    shown = capsys.readouterr().out
    assert "! it follows ctl-1:/home/ann, and does nothing\n    next: gpuprov watch take-over" in shown
    assert cli.main(["watch", "spare", str(inventory), "--nodes", "spare-1"]) != ExitCode.OK
    assert "spare-1 is watched by ctl-1:/home/ann" in capsys.readouterr().err
    assert cli.main(["watch", "take-over", str(inventory)]) == ExitCode.OK
    assert "taken from ctl-1:/home/ann" in "".join(capsys.readouterr())
    assert {word.lease.holder for word in slurm.look(list(fleet().nodes)).values() if word.lease} == {
        follower.holder
    }
    assert cli.main(["watch", "state", str(inventory)]) == ExitCode.INCOMPLETE
    assert "it follows" not in capsys.readouterr().out
