"""What a resumed `up` knows of the run it goes on with, and of those that one had gone on with."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from provision import hooks
from provision.errors import GpuprovError, RunFolderError
from provision.store import RunFolder

_LONGEST = 100  # runs in a chain of resumptions
_RUNNING = "running.lock"


@dataclass(frozen=True)
class Before:
    """What earlier runs left. `runs` are their ids, whose locks are taken over; `ended` the nodes that were
    finished, `changed` those that were brought there; `drained` those that are still out of service."""

    runs: tuple[str, ...] = ()
    ended: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()
    drained: frozenset[str] = frozenset()


def run_id(folder: RunFolder) -> str:
    """The name a run has on nodes and for hooks: two controllers may begin in the same millisecond."""
    return f"{folder.path.name}@{folder.meta().get('controller', '')}"


def chain(folder: RunFolder) -> list[RunFolder]:
    """The run, and those it went on with, the newest first."""
    found = [folder]
    while len(found) < _LONGEST:
        named = found[-1].meta().get("resumes")
        if not isinstance(named, str) or Path(named) in [run.path for run in found]:
            break
        try:
            found.append(RunFolder.open(Path(named)))
        except RunFolderError:
            break  # it was cleared away: what it knew is found out by looking
    return found


def before(folder: RunFolder) -> Before:
    """What a run that goes on with `folder` has to know. Raises RunFolderError for a damaged one."""
    runs = chain(folder)
    oldest_first = list(reversed(runs))
    ended: dict[str, str] = {}
    for run in oldest_first:
        for record in run.read("outcomes"):
            ended[str(record.get("node"))] = str(record.get("status"))
    return Before(
        tuple(run_id(run) for run in runs),
        frozenset(node for node, status in ended.items() if status in ("done", "as declared")),
        frozenset(_changed(oldest_first)),
        hooks.left_drained(record for run in oldest_first for record in run.read("hooks")),
    )


def _changed(runs: list[RunFolder]) -> Iterator[str]:
    for run in runs:
        for record in run.read("outcomes"):
            if record.get("status") == "done":
                yield str(record.get("node"))


class StillRunning:
    """Marks a run folder as in use while its process lives, however that ends."""

    def __init__(self, folder: RunFolder) -> None:
        self._file = os.open(folder.path / _RUNNING, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        os.truncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        os.close(self._file)


def refuse_running(folder: RunFolder) -> None:
    """Raise GpuprovError when the run is not over: to go on with it would do everything twice."""
    try:
        file = os.open(folder.path / _RUNNING, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.read(file, 32).decode("ascii", "replace").strip()
        raise GpuprovError(
            f"the run {folder.path.name} is still going on (process {pid})", "wait for it, or interrupt it"
        ) from None
    finally:
        os.close(file)
