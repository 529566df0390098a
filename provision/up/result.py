"""The result of `up`: outcome of each node, exit status, and closing summary as text and JSON."""

from __future__ import annotations

import enum
import json
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.drift.drifts import Drift
from provision.errors import ExitCode
from provision.node_names import fold
from provision.secrets_mask import masked
from provision.terminal import printable
from provision.text import many


class Status(enum.StrEnum):
    """The outcome of one node, worst first."""

    FAILED = "failed"  # a role failed on it
    NOT_HELD = "not as declared"  # roles ran, but expectations still do not hold
    UNHEALTHY = "unhealthy"  # as declared, but the checks after its wave found a fault (--gate)
    DRAINED = "still drained"  # as declared, but its undrain hook failed
    REFUSED = "refused"  # incompatible versions or unknown machine: nothing was touched
    REBOOT_NEEDED = "reboot needed"  # only a reboot is missing, which --no-reboot prevented
    INTERRUPTED = "interrupted"
    NOT_ATTEMPTED = "not attempted"  # too many earlier failures, or it could not be drained
    UNREADABLE = "unreadable"  # it answered, but essential facts could not be read
    UNREACHABLE = "unreachable"
    CHECKED = "checked"  # --check: nothing was changed
    DONE = "done"  # changed and verified
    AS_DECLARED = "as declared"  # nothing to do


UNHEALTHY = {
    *(Status.FAILED, Status.NOT_HELD, Status.UNHEALTHY, Status.DRAINED, Status.REFUSED),
    *(Status.REBOOT_NEEDED, Status.NOT_ATTEMPTED),
}
INCOMPLETE = {Status.UNREADABLE, Status.UNREACHABLE}
_FINE = {Status.DONE, Status.AS_DECLARED, Status.CHECKED}
_ORDER = list(Status)  # worst first
_SHOWN = 6  # drifts spelled out for one cause
_VALUE = 60  # characters of an expected or found value


@dataclass(frozen=True)
class Result:
    """The outcome of one node; `roles` ran, `drifts` remain.

    `message`: one line, plus one for each known cause."""

    node: str
    status: Status
    message: str = ""
    role: str = ""
    task: str = ""
    roles: tuple[str, ...] = ()
    changed: int = 0
    rebooted: bool = False
    drifts: tuple[Drift, ...] = ()

    def record(self) -> dict[str, Any]:
        """Return the record for outcomes.jsonl and `--json`."""
        return {
            **vars(self),
            "status": self.status.value,
            "roles": list(self.roles),
            "drifts": [drift.record() for drift in self.drifts],
        }


@dataclass
class NodeWork:
    """Work done on a node so far in its wave."""

    roles: list[str] = field(default_factory=list)
    changed: int = 0
    rebooted: bool = False


@dataclass
class Ledger:
    """The results of ended nodes, and the work done on each node that was begun."""

    on_result: Callable[[Result], None]
    results: dict[str, Result] = field(default_factory=dict)
    done: dict[str, NodeWork] = field(default_factory=dict)

    def begin(self, node: str) -> NodeWork:
        return self.done.setdefault(node, NodeWork())

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
        done = self.done.get(node, NodeWork())
        self.results[node] = Result(
            node, status, message, role, task, tuple(done.roles), done.changed, done.rebooted, drifts
        )
        self.on_result(self.results[node])

    def end_all(self, nodes: Iterable[str], status: Status, message: str) -> None:
        for node in nodes:
            self.end(node, status, message)


def count_of(drifts: Sequence[Drift], what: str) -> str:
    """Return `1 expectation …` or `3 expectations …`."""
    return f"{many(len(drifts), 'expectation')} {what}"


def exit_code(results: Iterable[Result]) -> ExitCode:
    """Return the exit status of the worst outcome."""
    statuses = {result.status for result in results}
    if Status.INTERRUPTED in statuses:
        return ExitCode.INTERRUPTED
    if statuses & UNHEALTHY:
        return ExitCode.UNHEALTHY
    return ExitCode.INCOMPLETE if statuses & INCOMPLETE else ExitCode.OK


def counts(results: Iterable[Result]) -> dict[str, int]:
    """Count the nodes by outcome, worst first, without zeros."""
    ended = [result.status for result in results]
    return {status.value: ended.count(status) for status in _ORDER if status in ended}


def text(
    results: Sequence[Result], next_command: str, run: str, minutes: float, drained: Collection[str] = ()
) -> str:
    """Render the summary as text. `drained`: nodes left out of service."""
    headline = " · ".join(f"{number} {status}" for status, number in counts(results).items())
    lines = [f"{many(len(results), 'node')}: {headline or 'nothing to do'} · {_duration(minutes)}"]
    for cause in _causes(results):
        lines += ["", *cause]
    changed = sum(result.changed for result in results)
    if changed and any(result.status is Status.CHECKED for result in results):
        lines += [
            "",
            f"{changed} tasks would change something; tasks that depend on those changes are not counted",
        ]
    if drained:
        lines += ["", f"still drained, out of service until they match their declared state: {fold(drained)}"]
    lines.append("")
    if next_command:
        lines.append(f"next: {next_command}")
    lines.append(f"run:  {run}")
    return printable("\n".join(lines), limit=20_000)


def next_command(
    results: Iterable[Result], fleet: str, run: str, remove: Sequence[str] = (), *, locked: bool = False
) -> str:
    """Return the next command. `fleet`: arguments for inventory and nodes; `remove`: roles to remove.

    `locked`: silent nodes still hold this run's lock, which a new run would wait for."""
    ended = {result.status for result in results}
    up = " ".join(["gpuprov up", fleet, *(f"--remove {role}" for role in remove)])
    if ended & {Status.FAILED, Status.NOT_HELD, Status.UNHEALTHY, Status.DRAINED}:
        return f"repair the nodes above, then: gpuprov up --resume {shlex.quote(run)}"
    if ended & {Status.INTERRUPTED, Status.NOT_ATTEMPTED}:
        return f"gpuprov up --resume {shlex.quote(run)}"
    if Status.REFUSED in ended:
        do = "follow the advice" if remove else "correct the inventory as described"
        return f"{do} above, then: {up.replace('gpuprov up', 'gpuprov plan', 1)}"
    if Status.REBOOT_NEEDED in ended:
        return f"{up}  (without --no-reboot)"
    if Status.UNREACHABLE in ended or Status.UNREADABLE in ended:
        again = f"gpuprov up --resume {shlex.quote(run)}" if locked else up
        return f"{again}  (once they answer: nodes that are done cost one look)"
    if Status.CHECKED in ended:
        return up
    return f"gpuprov validate {fleet}"


def after_removal(roles: Sequence[str], listing: Sequence[str], fleet: str) -> str:
    """Return the next step after removing roles. `listing`: nodes with them in `gpuprov_roles`."""
    if not listing:
        return f"gpuprov plan {fleet}"
    names = ", ".join(roles)
    return (
        f"take {names} out of gpuprov_roles of {fold(listing)} (every role, where that variable is not set), "
        "or the next gpuprov up installs it again"
    )


def document(
    results: Sequence[Result],
    run: str,
    exit_code: int,
    next_command: str,
    drained: Collection[str],
    diffs: Mapping[tuple[str, str, str], Sequence[str]],
) -> dict[str, Any]:
    """Build the summary as JSON (`--json`)."""
    return {
        "diffs": [
            {"role": role, "task": task, "nodes": list(nodes), "diff": diff}
            for (role, task, diff), nodes in diffs.items()
        ],
        "run": run,
        "exit_code": exit_code,
        "counts": counts(results),
        "next": next_command,
        "drained": sorted(drained),
        "nodes": {result.node: result.record() for result in results},
    }


def _causes(results: Sequence[Result]) -> Iterator[list[str]]:
    """Yield a block of lines for each cause, with all nodes that have it."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in sorted(results, key=lambda result: _ORDER.index(result.status)):
        if result.status not in _FINE or result.message:
            groups.setdefault(_cause(result), []).append(result)
    for same in groups.values():
        first = same[0]
        where = " · ".join(part for part in (first.role, first.task) if part)
        head = f"{first.status.value.upper()}: {fold(result.node for result in same)}"
        lines = [f"{head} · {where}" if where else head]
        message = first.message if len(same) == 1 else _cause(first)[3]  # without the first node's name
        lines += [f"  {line}" for line in message.splitlines()]
        lines += [f"  {_drift_line(drift)}" for drift in first.drifts[:_SHOWN]]
        if len(first.drifts) > _SHOWN:
            lines.append(f"  … and {len(first.drifts) - _SHOWN} more in drifts.jsonl")
        yield lines


def _cause(result: Result) -> tuple[Any, ...]:
    differences = tuple(
        (
            drift.expectation.fact,
            drift.problem,
            json.dumps([drift.expectation.value, drift.found], default=str),
        )
        for drift in result.drifts
    )
    message = result.message.replace(result.node, "the node")
    return (result.status, result.role, result.task, message, differences)


def _drift_line(drift: Drift) -> str:
    """Render a drift as `fact: expected …, found … (why)` in one line."""
    expectation = drift.expectation
    if drift.unknown:
        return f"{expectation.fact}: could not be read: {drift.problem}"
    return (
        f"{expectation.fact}: expected {_expected(expectation.operator, expectation.value)}, "
        f"found {_short(drift.found)} ({expectation.why})"
    )


def _expected(operator: str, value: Any) -> str:
    if operator == "template":
        return "the rendered template"
    return _short(value) if operator == "equals" else f"{operator.replace('_', ' ')} {_short(value)}"


def _short(value: Any) -> str:
    shown = (
        "nothing" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)
    )
    shown = " ".join(shown.split())
    return shown if len(shown) <= _VALUE else shown[: _VALUE - 1] + "…"


def _duration(minutes: float) -> str:
    return f"{minutes:.0f} min" if minutes >= 1 else f"{minutes * 60:.0f} s"


def would_change(tasks: Mapping[tuple[str, str], Sequence[str]]) -> Iterator[str]:
    """Yield a line for each task of a `--check`. `tasks`: role and task → the nodes that it would change."""
    for (role, task), nodes in tasks.items():
        yield printable(f"  would change: {role + ' · ' if role else ''}{task}: {fold(nodes)}")


def differences(diffs: Mapping[tuple[str, str, str], Sequence[str]]) -> Iterator[str]:
    """Yield each task's diff for `--diff`. `diffs`: role, task and difference → the nodes."""
    for (role, task, diff), nodes in diffs.items():
        head = f"{role + ' · ' if role else ''}{task}: {fold(nodes)}"
        yield printable(f"{head}\n{diff.rstrip()}\n", limit=100_000)


@dataclass(frozen=True)
class UpResult:
    """The outcome of one `up`.

    `command`: next command; `drained`: nodes left out of service; `removed`: roles to remove. `changes`: role
    and task → nodes that a check would change; `diffs`: role, task and difference → nodes, with --diff."""

    folder: Path
    results: tuple[Result, ...] = field(repr=False)
    code: ExitCode
    command: str
    drained: tuple[str, ...]
    minutes: float
    removed: tuple[str, ...]
    check_mode: bool
    changes: Mapping[tuple[str, str], Sequence[str]] = field(repr=False)
    diffs: Mapping[tuple[str, str, str], Sequence[str]] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    def document(self) -> dict[str, Any]:
        """Return the document of `gpuprov up --json`, with secrets masked."""
        made = document(self.results, str(self.folder), self.code, self.command, self.drained, self.diffs)
        shown: dict[str, Any] = masked(made, self.secrets)
        return shown

    def text(self) -> str:
        """Return the summary for people, with secrets masked."""
        run = str(self.folder)
        summary = masked(text(self.results, self.command, run, self.minutes, self.drained), self.secrets)
        fine = all(result.status is Status.AS_DECLARED for result in self.results)
        if self.results and not self.drained and fine:
            what = f"without anything of {', '.join(self.removed)}" if self.removed else "already as declared"
            summary = f"{many(len(self.results), 'node')} {what}\nnext: {self.command}\nrun:  {run}"
        would = would_change(self.changes) if self.check_mode else ()
        return "\n".join([*masked(list(differences(self.diffs)), self.secrets), *would, summary])
