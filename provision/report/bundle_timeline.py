"""Timeline of one node: this run, and the stored history of earlier validate and up runs.

Only folders beside the run's own are read, line by line, and of those only the lines that name the node. What
is damaged or foreign in them is passed over: it costs a line of history, never the bundle.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.checks.health import NodeHealth
from provision.checks.judge import Verdict, worst
from provision.errors import GpuprovError
from provision.runs import fingerprint, node_history
from provision.runs.store import RunFolder

RUNS = 20  # earlier runs of each verb that are told
_FINDINGS = 6  # of one earlier run


@dataclass(frozen=True)
class Moment:
    """One event. `at`: ISO 8601 UTC, as precise as known; `run`: the run's name; `what`: one line."""

    at: str
    run: str
    what: str


def timeline(folder: RunFolder, node: NodeHealth) -> list[Moment]:
    """What is known of the node up to the end of this run, oldest first. Never raises for what is stored."""
    found: list[Moment] = []
    for path in _earlier(folder, "up"):
        found += _up(path, node.node)
    told, before = set(), None
    for path in [*_earlier(folder, "validate"), folder.path]:
        for row in _rows(path, "fingerprints", node.node):
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                now = fingerprint.from_record(row)
                if before is not None:
                    found += [
                        Moment(_started(path), path.name, f"changed since the run before: {change}")
                        for change in fingerprint.changes("", before, now)
                        if not change.unknown
                    ]
                before = now
        if path != folder.path and (moments := _validated(path, node.node)):
            told.add(path.name)
            found += moments
    found += _remembered(folder, node, told)
    found += _this_run(folder, node)
    return sorted(found, key=lambda moment: moment.at)


def _earlier(folder: RunFolder, verb: str) -> list[Path]:
    """The newest runs of a verb that began before this one; a folder's name begins with its time."""
    with contextlib.suppress(OSError):
        stamp = folder.path.name.partition("Z-")[0]
        paths = sorted(folder.path.absolute().parent.glob(f"*Z-{verb}"))
        return [path for path in paths if path.name.partition("Z-")[0] < stamp][-RUNS:]
    return []


def _rows(path: Path, name: str, node: str) -> Iterator[dict[str, Any]]:
    """The records of `<name>.jsonl` on this node."""
    named = json.dumps(node)
    file = path / f"{name}.jsonl"
    with contextlib.suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if named in line:
                with contextlib.suppress(ValueError, RecursionError):
                    row = json.loads(line)
                    if isinstance(row, dict) and row.get("node") == node:
                        yield row


def _started(path: Path) -> str:
    with contextlib.suppress(GpuprovError):
        return str(RunFolder(path).meta().get("started") or "")
    return ""


def _validated(path: Path, node: str) -> list[Moment]:
    """What an earlier validate found."""
    rows = list(_rows(path, "findings", node))
    words = [str(row.get("verdict")) for row in rows]
    known = [Verdict(word) for word in words if word in set(Verdict)]
    if not known:
        return []
    at = _started(path)
    found = [Moment(at, path.name, f"validate: {worst(known).value}")]
    bad = [row for row in rows if row.get("verdict") in ("fail", "error", "warn")]
    for row in sorted(bad, key=lambda row: row["verdict"] == "warn")[:_FINDINGS]:
        words = [str(row.get(key) or "") for key in ("verdict", "check", "device", "message", "action")]
        found.append(Moment(at, path.name, "  {} {} {}: {} (action: {})".format(*words)))
    if len(bad) > _FINDINGS:
        found.append(Moment(at, path.name, f"  … and {len(bad) - _FINDINGS} more findings"))
    return found


def _remembered(folder: RunFolder, node: NodeHealth, told: set[str]) -> Iterator[Moment]:
    """Runs of which only the memory of repeat offenders is left."""
    for past in node_history.recalled(folder).get(node.node, ()):
        if past.run not in told:
            bad = ", ".join(sorted(past.bad)) or "nothing bad"
            yield Moment(_moment_of(past.run), past.run, f"validate: {bad} (its folder no longer exists)")


def _moment_of(run: str) -> str:
    """20260504T100000.000Z-validate → 2026-05-04T10:00:00.000Z; nothing when the name is another."""
    stamp = run.partition("Z-")[0]
    if len(stamp) < 15 or stamp[8] != "T":
        return ""
    day, time = stamp[:8], stamp[9:]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}T{time[:2]}:{time[2:4]}:{time[4:]}Z"


def _up(path: Path, node: str) -> Iterator[Moment]:
    """What an earlier `up` did to it."""
    for row in itertools.islice(_rows(path, "reboots", node), 10):
        yield Moment(str(row.get("time") or ""), path.name, "up: rebooted")
    for row in itertools.islice(_rows(path, "outcomes", node), 10):
        yield Moment(str(row.get("time") or ""), path.name, f"up: {row.get('status')}")


def _this_run(folder: RunFolder, node: NodeHealth) -> Iterator[Moment]:
    meta: dict[str, Any] = {}
    with contextlib.suppress(GpuprovError):
        meta = folder.meta()
    name = folder.path.name
    yield Moment(str(meta.get("started") or ""), name, "validate began (this run)")
    verdicts = {check.check: check for check in node.checks}
    for row in _rows(folder.path, "fingerprints", node.node):
        check = verdicts.get(str(row.get("check") or ""))
        if check is not None:
            said = f"{check.check}: {check.verdict.value} after {check.seconds:.0f} s"
            yield Moment(str(row.get("at") or ""), name, said)
    ended = str(meta.get("measured_until") or meta.get("finished") or meta.get("started") or "")
    yield Moment(ended, name, f"judged: {node.verdict.value}")
