"""What `up` says at the end: how many ended how, causes grouped and worst first, the next command, where the
run is."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from provision.drift import Drift
from provision.node_names import fold
from provision.terminal import printable
from provision.up_result import Result, Status, nodes_of

_ORDER = list(Status)  # worst first, as declared there
_FINE = {Status.DONE, Status.AS_DECLARED, Status.CHECKED}
_SHOWN = 6  # drifts spelled out for one cause
_VALUE = 60  # characters of an expected or found value


def counts(results: Iterable[Result]) -> dict[str, int]:
    """How many nodes ended how, worst first; only what happened."""
    ended = [result.status for result in results]
    return {status.value: ended.count(status) for status in _ORDER if status in ended}


def text(
    results: Sequence[Result], next_command: str, run: str, minutes: float, drained: Collection[str] = ()
) -> str:
    """The closing words of `up`, for a person. `drained`: nodes that are left out of service."""
    headline = " · ".join(f"{number} {status}" for status, number in counts(results).items())
    lines = [f"{nodes_of(len(results))}: {headline or 'nothing to do'} · {_duration(minutes)}"]
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


def next_command(results: Iterable[Result], base: Sequence[str], run: str) -> str:
    """What to type now. `base` is the inventory as arguments, in front of which goes the verb."""
    ended = {result.status for result in results}
    inventory = shlex.join(base)
    if ended & {Status.FAILED, Status.NOT_HELD, Status.UNHEALTHY, Status.DRAINED}:
        return f"repair the nodes above, then: gpuprov up --resume {shlex.quote(run)}"
    if ended & {Status.INTERRUPTED, Status.NOT_ATTEMPTED}:
        return f"gpuprov up --resume {shlex.quote(run)}"
    if Status.REFUSED in ended:
        return "correct the inventory as described above, then: gpuprov plan " + inventory
    if Status.REBOOT_NEEDED in ended:
        return f"gpuprov up {inventory}  (without --no-reboot)"
    if Status.UNREACHABLE in ended or Status.UNREADABLE in ended:
        return f"gpuprov up {inventory}  (once they answer: nodes that are done cost one look)"
    if Status.CHECKED in ended:
        return f"gpuprov up {inventory}"
    return f"gpuprov validate {inventory}"


def document(
    results: Sequence[Result],
    *,
    run: str,
    exit_code: int,
    next_command: str,
    drained: Collection[str] = (),
) -> dict[str, Any]:
    """The same for a program: `--json`."""
    return {
        "run": run,
        "exit_code": exit_code,
        "counts": counts(results),
        "next": next_command,
        "drained": sorted(drained),
        "nodes": {result.node: record(result) for result in results},
    }


def record(result: Result) -> dict[str, Any]:
    """One node's end, as it stands in outcomes.jsonl and in `--json`."""
    return {
        "node": result.node,
        "status": result.status.value,
        "message": result.message,
        "role": result.role,
        "task": result.task,
        "roles": list(result.roles),
        "changed": result.changed,
        "rebooted": result.rebooted,
        "drifts": [drift.record() for drift in result.drifts],
    }


def _causes(results: Sequence[Result]) -> Iterator[list[str]]:
    """Nodes in trouble, those with the same cause together: one block of lines for each."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in sorted(results, key=lambda result: _ORDER.index(result.status)):
        if result.status not in _FINE or result.message:
            groups.setdefault(_cause(result), []).append(result)
    for same in groups.values():
        first = same[0]
        where = " · ".join(part for part in (first.role, first.task) if part)
        head = f"{first.status.value.upper()}: {fold(result.node for result in same)}"
        lines = [f"{head} · {where}" if where else head]
        lines += [f"  {line}" for line in first.message.splitlines()]
        lines += [f"  {drift_line(drift)}" for drift in first.drifts[:_SHOWN]]
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


def drift_line(drift: Drift) -> str:
    """`fact: expected …, found … (why)` in one line."""
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
    """`--check`: a line for each task. `tasks`: role and task → the nodes that it would change."""
    for (role, task), nodes in tasks.items():
        yield printable(f"  would change: {role + ' · ' if role else ''}{task}: {fold(nodes)}")
