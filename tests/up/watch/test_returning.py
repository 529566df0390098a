"""The return of a repaired node: every part passes, in order and once, and nobody else holds the node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from provision.errors import ExitCode, GpuprovError, UsageError
from provision.remote.schedulers import PREFIX
from provision.remote.schedulers.lease import Lease
from provision.up.watch.incidents import Incident, Step, Store, moved, new
from provision.up.watch.policy import Policy
from provision.up.watch.returning import (
    PARTS,
    bring_back,
    incident_of,
    refuse_early,
    refuse_unfinished,
)
from provision.up.watch.roles import Role, roles
from tests.support.watching import FileScheduler, PooledScheduler, fleet

NOW = 1_800_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "watch")
    with store.alone():
        store.write(moved(new("gpu-03", NOW, "Xid 79"), Step.REPAIR, spare="spare-1", placed=NOW + 10))
    return store


@pytest.fixture
def scheduler(tmp_path: Path, store: Store) -> FileScheduler:
    one = FileScheduler(tmp_path / "slurm.json")
    one.begin(fleet())
    one.set("gpu-03", reason=f"{PREFIX}{store.incidents()[0].id} Xid 79")
    return one


def back(store: Store, scheduler: FileScheduler, codes: Sequence[int]) -> tuple[ExitCode, list[str]]:
    """Bring the node back with these exit codes of its parts; return the exit code and the parts that ran."""
    (incident,) = store.incidents()
    left, ran = list(codes), []

    def run(part: str) -> int:
        ran.append(part)
        return left.pop(0)

    return bring_back(incident, store, scheduler, run, lambda: NOW + 3600, lambda _line: None), ran


def test_a_node_that_passes_everything_is_a_spare(store: Store, scheduler: FileScheduler) -> None:
    assert back(store, scheduler, [0, 0, 0]) == (ExitCode.OK, list(PARTS))
    assert roles(fleet(), store.incidents())["gpu-03"] is Role.SPARE
    assert roles(fleet(), store.incidents())["spare-1"] is Role.SERVICE
    with scheduler.rows() as rows:
        assert rows["gpu-03"]["reason"] == f"{PREFIX}spare"
    assert "resume gpu-03" not in scheduler.done()


def test_a_node_of_another_watch_is_refused(store: Store, scheduler: FileScheduler) -> None:
    scheduler.lease({"gpu-03": Lease("f", "other", 1, "ctl-9:/x")}, {"gpu-03": None})
    with pytest.raises(GpuprovError, match="gpu-03 is watched by ctl-9:/x"):
        back(store, scheduler, [])
    store.write_lease({"holder": "other"})
    assert back(store, scheduler, [0, 0, 0])[0] is ExitCode.OK


def test_it_is_in_its_pools_again(tmp_path: Path, store: Store) -> None:
    scheduler = PooledScheduler(tmp_path / "kubernetes.json")
    scheduler.begin(fleet())
    scheduler.set("gpu-03", reason=f"{PREFIX}{store.incidents()[0].id} Xid 79", pools=[], left=["pool=train"])
    scheduler.broken = {"pools": {"gpu-03": "forbidden (403)"}}
    with pytest.raises(GpuprovError, match=r"gpu-03 cannot be put back into its pools: forbidden \(403\)"):
        back(store, scheduler, [0, 0, 0])
    assert store.incidents()[0].returned is None
    scheduler.broken = {}
    assert back(store, scheduler, []) == (ExitCode.OK, [])
    with scheduler.rows() as rows:
        assert (rows["gpu-03"]["pools"], rows["gpu-03"]["left"]) == (["pool=train"], [])


def test_after_an_interruption_it_goes_on_with_the_part_that_is_missing(
    store: Store, scheduler: FileScheduler
) -> None:
    assert back(store, scheduler, [0, 130]) == (ExitCode.INTERRUPTED, ["up", "validate"])
    assert roles(fleet(), store.incidents())["gpu-03"] is Role.REPAIR
    assert back(store, scheduler, [1]) == (ExitCode.ERROR, ["validate"])
    assert back(store, scheduler, [0, 0]) == (ExitCode.OK, ["validate", "burnin"])


@pytest.mark.parametrize("code", [ExitCode.UNHEALTHY, ExitCode.DRIFT, ExitCode.INCOMPLETE])
def test_after_a_fault_all_parts_are_made_again_since_it_was_repaired_in_between(
    store: Store, scheduler: FileScheduler, code: ExitCode
) -> None:
    assert back(store, scheduler, [0, 0, code]) == (code, list(PARTS))
    assert roles(fleet(), store.incidents())["gpu-03"] is Role.REPAIR
    assert back(store, scheduler, [0, 0, 0]) == (ExitCode.OK, list(PARTS))


@pytest.mark.parametrize(
    ("reason", "said"),
    [("being moved [ann]", "somebody else drained gpu-03"), ("", "somebody resumed it")],
)
def test_a_node_that_others_hold_or_resumed_is_left(
    store: Store, scheduler: FileScheduler, reason: str, said: str
) -> None:
    scheduler.set("gpu-03", reason=reason)
    with pytest.raises(GpuprovError, match=said):
        back(store, scheduler, [])


def test_a_person_who_takes_it_between_the_parts_has_it(store: Store, scheduler: FileScheduler) -> None:
    (incident,) = store.incidents()

    def run(part: str) -> int:
        if part == "burnin":
            scheduler.set("gpu-03", reason="mine [ann]")
        return 0

    with pytest.raises(GpuprovError, match="somebody else drained gpu-03"):
        bring_back(incident, store, scheduler, run, lambda: NOW, lambda _line: None)
    assert store.incidents()[0].returned is None


def test_only_what_the_watch_took_out_returns(store: Store) -> None:
    assert incident_of("gpu-03", fleet(), store.incidents()).node == "gpu-03"
    with pytest.raises(UsageError, match="did not take gpu-04 out of service"):
        incident_of("gpu-04", fleet(), store.incidents())
    with pytest.raises(UsageError, match="the inventory has no node gpu-99"):
        incident_of("gpu-99", fleet(), store.incidents())


def test_who_failed_again_and_again_waits(store: Store) -> None:
    (incident,) = store.incidents()
    known: list[Incident] = [replace(incident, id="before", opened=NOW - 7200, returned=NOW - 3600), incident]
    refuse_early(incident, known, Policy(), NOW + 2.1 * 3600, forced=False)
    with pytest.raises(UsageError, match="failed 2 times: it may return at 2027-01-15 10:00 UTC"):
        refuse_early(incident, known, Policy(), NOW + 1.9 * 3600, forced=False)
    refuse_early(incident, known, Policy(), NOW, forced=True)


def test_the_watch_may_write_its_file_meanwhile(store: Store, scheduler: FileScheduler) -> None:
    (stale,) = store.incidents()
    assert back(store, scheduler, [0, 0, 0])[0] is ExitCode.OK
    store.write(stale)
    assert store.incidents()[0].returned == NOW + 3600


@pytest.mark.parametrize("step", [step for step in Step if step is not Step.REPAIR])
def test_a_node_that_the_watch_still_works_on_is_refused(store: Store, step: Step) -> None:
    """A node that still waits for a spare would become its own replacement."""
    (incident,) = store.incidents()
    said = "still waits for a spare, so it cannot become one" if step is Step.CHOOSE else "has not finished"
    with pytest.raises(UsageError, match=said):
        refuse_unfinished(replace(incident, step=step))
    refuse_unfinished(incident)
