"""Two watches of one fleet, on two machines that share only the scheduler, observe one fault at once."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from provision import atomic_file
from provision.remote.schedulers import PREFIX, Holder
from provision.remote.schedulers.lease import Lease, put, read
from provision.up.watch.incidents import Incident, Step, Store
from provision.up.watch.policy import Policy
from provision.up.watch.service import Watch
from provision.up.watch.steps import Checked, Message
from provision.up.watch.surroundings import Pace
from provision.validate.status.status import NodeStatus
from tests.support import seed
from tests.support.watched import healths
from tests.support.watching import FileScheduler, fleet


class RacingScheduler(FileScheduler):
    """A scheduler that, like Slurm, has no conditional update: another watch may write between a query and
    the update that follows it. The last write wins, and each watch reads back what it wrote."""

    settle = 0.4

    def __init__(self, path: Path, pause: Callable[[], float]) -> None:
        super().__init__(path)
        self._pause = pause

    def _written(self, reasons: Mapping[str, str], holder: Holder) -> dict[str, str]:
        found = self.look(list(reasons))
        todo = {name: why for name, why in reasons.items() if found[name].holder is holder}
        for name, why in todo.items():
            time.sleep(self._pause())
            self.set(name, reason=f"{PREFIX}{why}")
            with self.rows():
                self._done.append(f"write {name}")
        now = self.look(list(todo))
        return {name: now[name].reason for name, why in todo.items() if now[name].reason != f"{PREFIX}{why}"}

    def lease(self, leases: Mapping[str, Lease | None], before: Mapping[str, Lease | None]) -> dict[str, str]:
        """Write the leases one node at a time, as long host lists are written in portions."""
        seen = self.leases()
        for name in sorted(leases):
            time.sleep(self._pause() / 4)
            if read(seen.get(name, "")) == before[name]:
                with self.rows():
                    texts = {**self.leases(), name: put("", leases[name])}
                    atomic_file.write(self.path.with_suffix(".leases"), json.dumps(texts))
        return {}

    def drain(self, reasons: Mapping[str, str]) -> dict[str, str]:
        return self._written(reasons, Holder.NOBODY)

    def mark(self, reasons: Mapping[str, str]) -> dict[str, str]:
        return self._written(reasons, Holder.US)


class Other:
    """The inputs of a watch: at first one failed node, and checks that pass after a moment."""

    def __init__(self) -> None:
        self.told: list[Message] = []
        self._next: list[NodeStatus] = healths(fleet(), ["gpu-07"])

    def changes(self, seconds: float) -> Sequence[NodeStatus]:
        found, self._next = self._next, []
        if not found:
            time.sleep(min(seconds, 0.01))
        return found

    def verify(self, spare: str) -> Checked:
        time.sleep(0.1)  # a quick stage takes far longer than an update in Slurm
        return Checked(True, run=f"run-of-{spare}")

    def evidence(self, incident: Incident) -> str:
        return f"none of {incident.node}"

    def stop(self) -> None: ...

    def tell(self, message: Message) -> None:
        self.told.append(message)

    def settle(self, _over: object) -> None: ...


@pytest.mark.parametrize("apart", [0.0, 0.01, 0.05, 0.3])
@pytest.mark.parametrize("slow", [True, False], ids=["the second writes late", "at random"])
def test_one_node_is_drained_and_one_spare_takes_its_place(tmp_path: Path, apart: float, slow: bool) -> None:
    drawn = random.Random(seed.SEED)  # noqa: S311 - random moments, not secrets
    scheduler = FileScheduler(tmp_path / "slurm.json")
    scheduler.begin(fleet())

    def pause(number: int) -> float:
        return 0.08 * number if slow else drawn.uniform(0.0, 0.02)

    stores = [Store(tmp_path / name) for name in ("one", "two")]
    others = [Other(), Other()]
    ended = threading.Event()

    def watch(number: int) -> None:
        time.sleep(number * apart)
        own, one = RacingScheduler(scheduler.path, lambda: pause(number)), others[number]
        pace = Pace(0.0, ask_all=0.0)
        made = Watch(fleet(), Policy(), stores[number], one, own, one, one, _quiet, pace=pace)
        while not ended.is_set():
            made.round(0.01)
        made.stop()

    with ExitStack() as stack:
        for store in stores:
            stack.enter_context(store.alone())
            for spare in ("spare-1", "spare-2"):
                store.write_validated(spare, time.time(), "pass", "before")
        threads = [threading.Thread(target=watch, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + 30
            while not (settled := _settled(stores)) and time.monotonic() < end:
                time.sleep(0.05)
            assert settled
            time.sleep(0.3)  # nothing more must happen in this time
        finally:
            ended.set()
            for thread in threads:
                thread.join()
    incidents = [one for store in stores for one in store.incidents()]
    (right,) = [one for one in incidents if one.step is Step.REPAIR]
    with scheduler.rows() as rows:
        reasons = {name: row["reason"] for name, row in rows.items() if row["reason"]}
    spares = {"spare-1", "spare-2"} - {right.spare}
    assert set(reasons) == {"gpu-07", *spares}, "one spare serves, and the other one waits"
    assert right.id in reasons["gpu-07"]
    told = [message for one in others for message in one.told]
    assert sorted((message.kind, message.spare) for message in told) == [
        ("following", ""),
        ("replaced", right.spare),
    ]
    holders = {lease.holder for text in scheduler.leases().values() if (lease := read(text))}
    assert holders == {Store(tmp_path / name).lease()["holder"] for name in ("one", "two")} - _followers(
        stores
    )


def _followers(stores: Sequence[Store]) -> set[str]:
    return {str(store.lease()["holder"]) for store in stores if store.lease().get("follows")}


def _settled(stores: Sequence[Store]) -> bool:
    """Return True once no incident is open and one of them has its spare in place."""
    incidents = [one for store in stores for one in store.incidents()]
    return any(one.placed for one in incidents) and not any(one.is_open for one in incidents)


def _quiet(_line: str) -> None: ...
