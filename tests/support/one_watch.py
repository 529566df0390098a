"""A watch in this process over a scheduler in a file, with its inputs and messages recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from provision.up.watch.incidents import Incident, Store
from provision.up.watch.policy import Policy
from provision.up.watch.service import Watch
from provision.up.watch.steps import Checked, Message
from provision.up.watch.surroundings import Pace
from provision.validate.status.status import NodeStatus
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
    """A watch with its inputs and its messages."""

    def __init__(
        self, folder: Path, scheduler: FileScheduler | None = None, policy: Policy | None = None
    ) -> None:
        self.store = Store(folder / "watch")
        self.stream, self.checks = Stream(), Checks()
        self.scheduler = scheduler or FileScheduler(folder / "slurm.json")
        if scheduler is None:
            self.scheduler.begin(fleet())
        self.told: list[Message] = []
        self.calls: list[str] = []
        self.over: set[str] = set()
        self.lines: list[str] = []
        self.notes: list[list[str]] = []  # notifications to systemd
        self.late = 0.0  # seconds by which its clock is ahead
        self.watch = Watch(
            fleet(),
            policy or Policy(),
            self.store,
            self.stream,
            self.scheduler,
            self.checks,
            self,
            self.lines.append,
            lambda: time.time() + self.late,
            pace=Pace(least=0.0),
            systemd=lambda lines: self.notes.append(lines.split("\n")),
        )

    def pace(self, **seconds: float) -> None:
        self.watch.pace = replace(self.watch.pace, **seconds)

    def tell(self, message: Message) -> None:
        self.calls.append(message.id)
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
