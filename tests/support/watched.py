"""A watch in a separate process over a scheduler in a file, which tests kill.

gpu-03 has failed. Checks take a moment, so that a kill finds them running. The process ends once nothing is
left to do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from provision.fleet import Fleet
from provision.up.watch.incidents import Incident, Store
from provision.up.watch.policy import Policy
from provision.up.watch.service import Watch
from provision.up.watch.steps import Checked, Message
from provision.up.watch.surroundings import Pace
from provision.up.watch.tell import Receiver, Teller
from provision.validate.status.status import NodeStatus, judged
from tests.support.health_results import failed, printed, result
from tests.support.watching import FileScheduler, fleet

FAILED = "gpu-03"


def healths(of: Fleet, failing: Sequence[str]) -> list[NodeStatus]:
    """Return each node's health as its health program writes it."""
    return [judged(name, printed((failed if name in failing else result)(node=name))) for name in of.nodes]


def _say_nothing(_line: str) -> None: ...


class Stream:
    """A stream that yields every node once, and then nothing new."""

    def __init__(self, first: list[NodeStatus]) -> None:
        self._first = first

    def changes(self, seconds: float) -> list[NodeStatus]:
        first, self._first = self._first, []
        if not first:
            time.sleep(min(seconds, 0.02))
        return first


class Checks:
    """Checks that take a moment and are logged."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def verify(self, spare: str) -> Checked:
        time.sleep(0.1)
        return Checked(True, run=f"run-of-{spare}")

    def evidence(self, incident: Incident) -> str:
        time.sleep(0.05)
        with self._log.open("a") as file:
            file.write(f"{incident.id}\n")
        return ""

    def stop(self) -> None:
        pass


def main(folder: Path) -> None:
    of = fleet()
    scheduler = FileScheduler(folder / "slurm.json")
    store = Store(folder / "watch")
    told = folder / "told"

    def send(message: Message) -> None:
        with told.open("a") as file:
            file.write(f"{message.id}\n")

    with store.alone(), Teller(store.path / "outbox", [Receiver("file", send)], _say_nothing) as teller:
        watch = Watch(
            of,
            Policy(),
            store,
            Stream(healths(of, [FAILED])),
            scheduler,
            Checks(folder / "evidence"),
            teller,
            _say_nothing,
            pace=Pace(least=0.0),
        )
        for _ in range(2000):
            watch.round(0.02)
            incidents = store.incidents()
            if (
                incidents
                and not any(one.is_open for one in incidents)
                and not any((store.path / "outbox").glob("[!.]*"))  # a kill may leave a partial file, hidden
            ):
                return
    raise AssertionError("it has not come to an end")


def started(folder: Path) -> int:
    """Start a watch in a separate process and return its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        main(folder)
        code = 0
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def prepared(folder: Path) -> FileScheduler:
    folder.mkdir()
    scheduler = FileScheduler(folder / "slurm.json")
    scheduler.begin(fleet())
    store = Store(folder / "watch")
    with store.alone():
        for spare in ("spare-1", "spare-2"):
            store.write_validated(spare, time.time(), "pass", "before")
    return scheduler
