"""How `up` ended for one node and for all of them: statuses, worst first, and the exit code they make."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from provision.drift import Drift
from provision.errors import ExitCode


class Status(enum.StrEnum):
    """How it ended for one node, worst first."""

    FAILED = "failed"  # a role failed on it
    NOT_HELD = "not as declared"  # the roles ran, and expectations still do not hold
    UNHEALTHY = "unhealthy"  # as declared, and the checks after its wave found something (--gate)
    DRAINED = "still drained"  # as declared, and its undrain hook failed
    REFUSED = (
        "refused"  # versions that cannot live together, or a machine we do not know: nothing was touched
    )
    REBOOT_NEEDED = "reboot needed"  # --no-reboot was given, and only a reboot is missing
    INTERRUPTED = "interrupted"
    NOT_ATTEMPTED = "not attempted"  # others had failed before its wave, or it could not be drained
    UNREADABLE = "unreadable"  # it answered, but what matters could not be read
    UNREACHABLE = "unreachable"
    CHECKED = "checked"  # --check: nothing was changed
    DONE = "done"  # changed, and verified
    AS_DECLARED = "as declared"  # nothing to do


UNHEALTHY = {
    *(Status.FAILED, Status.NOT_HELD, Status.UNHEALTHY, Status.DRAINED, Status.REFUSED),
    *(Status.REBOOT_NEEDED, Status.NOT_ATTEMPTED),
}
INCOMPLETE = {Status.UNREADABLE, Status.UNREACHABLE}


@dataclass(frozen=True)
class Result:
    """How it ended for one node. `message` is one line, and one for each cause that is known; `drifts` are
    those that remain; `roles` those that ran."""

    node: str
    status: Status
    message: str = ""
    role: str = ""
    task: str = ""
    roles: tuple[str, ...] = ()
    changed: int = 0
    rebooted: bool = False
    drifts: tuple[Drift, ...] = ()


@dataclass
class Progress:
    """What was done to a node so far in its wave."""

    roles: list[str] = field(default_factory=list)
    changed: int = 0
    rebooted: bool = False


@dataclass
class Ledger:
    """How it ended for each node that has ended, and what was done to each that was begun."""

    on_result: Callable[[Result], None]
    results: dict[str, Result] = field(default_factory=dict)
    done: dict[str, Progress] = field(default_factory=dict)

    def begin(self, node: str) -> Progress:
        return self.done.setdefault(node, Progress())

    def end(
        self,
        node: str,
        status: Status,
        message: str,
        *,
        role: str = "",
        task: str = "",
        drifts: tuple[Drift, ...] = (),
    ) -> None:
        done = self.done.get(node, Progress())
        self.results[node] = Result(
            node, status, message, role, task, tuple(done.roles), done.changed, done.rebooted, drifts
        )
        self.on_result(self.results[node])

    def end_all(self, nodes: Iterable[str], status: Status, message: str) -> None:
        for node in nodes:
            self.end(node, status, message)


def nodes_of(number: int) -> str:
    """`1 node` or `3 nodes`."""
    return f"{number} node{'s' if number != 1 else ''}"


def count_of(drifts: Sequence[Drift], what: str) -> str:
    """`1 expectation …` or `3 expectations …`."""
    return f"{len(drifts)} expectation{'s' if len(drifts) != 1 else ''} {what}"


def exit_code(results: Iterable[Result]) -> ExitCode:
    """The worst that happened, as the shell sees it."""
    statuses = {result.status for result in results}
    if Status.INTERRUPTED in statuses:
        return ExitCode.INTERRUPTED
    if statuses & UNHEALTHY:
        return ExitCode.UNHEALTHY
    return ExitCode.INCOMPLETE if statuses & INCOMPLETE else ExitCode.OK
