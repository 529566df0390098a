"""Coordination of several `up` runs on one fleet: state taken over on resume, and locks.

Locks are taken before any change, held during the run, and always released."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.desired.expectations import roles_in_order
from provision.desired.inventory.ansible import ansible_inventory
from provision.errors import GpuprovError, InventoryError, RunFolderError, UsageError
from provision.fleet import Fleet
from provision.node_names import fold
from provision.remote.reach import fleet_lock
from provision.remote.reach.fleet_lock import Answer, FleetLock
from provision.remote.ssh.config import ConfigFiles, NotUnderstoodError
from provision.remote.ssh.connection import route_of
from provision.runs import store
from provision.runs.store import RunFolder
from provision.up import hooks
from provision.up.options import EarlierRuns
from provision.up.result import Result, Status

_LONGEST = 100  # runs in a chain of resumptions
_RUNNING = "running.lock"
BUSY_SECONDS = 900.0  # maximum wait for processes that an earlier run left on a node
BUSY_PAUSE = 5.0


def chain(folder: RunFolder) -> list[RunFolder]:
    """Return the run and those it resumed, the latest first."""
    runs = [folder]
    while len(runs) < _LONGEST:
        named = runs[-1].meta().get("resumes")
        if not isinstance(named, str) or Path(named) in [run.path for run in runs]:
            break
        try:
            runs.append(RunFolder.open(Path(named)))
        except RunFolderError:
            break  # the folder was deleted; observing the nodes recovers its state
    return runs


def earlier(folder: RunFolder) -> EarlierRuns:
    """Return the state that a run resuming `folder` needs. Raises RunFolderError for a damaged folder."""
    runs = chain(folder)
    oldest_first = list(reversed(runs))
    ends = [
        (str(record.get("node")), str(record.get("status")))
        for run in oldest_first
        for record in run.read("outcomes")
    ]
    ended = {node for node, status in dict(ends).items() if status in (Status.DONE, Status.AS_DECLARED)}
    waves = (record for run in runs for record in run.read("waves") if record.get("what") == "begins")
    return EarlierRuns(
        tuple(run.id for run in runs),
        frozenset(ended),
        frozenset(node for node, status in ends if status == Status.DONE),
        hooks.left_drained(record for run in oldest_first for record in run.read("hooks")),
        frozenset(str(node) for record in waves for node in record.get("nodes") or ()) - ended,
        _applied(oldest_first),
    )


def _applied(runs: Sequence[RunFolder]) -> dict[str, set[str]]:
    """Return the roles that --full runs applied completely, by node: a later role began there.

    The last role does not count, since it may have been cut short, nor does a repair before all roles."""
    order = roles_in_order()
    applied: dict[str, set[str]] = {}
    for run in runs:
        seen: dict[str, set[str]] = {}
        for record in run.read("events") if (run.meta().get("arguments") or {}).get("full") else ():
            node, role = str(record.get("node")), record.get("role")
            if role in order:
                begun = seen.setdefault(node, set())
                applied.setdefault(node, set()).update(begun.intersection(order[: order.index(role)]))
                begun.add(role)
    return applied


class StillRunning:
    """Marker of a run folder in use; it lasts as long as the process, however that ends."""

    def __init__(self, folder: RunFolder) -> None:
        self._file = os.open(folder.path / _RUNNING, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        os.truncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        os.close(self._file)


def to_go_on_with(named: str) -> RunFolder:
    """Open the run a user names: a path, a name below the runs folder, or "" for the last run.

    Raises GpuprovError for a run that is no `up`, or is still in progress."""
    if named:
        before = RunFolder.open(Path(named) if Path(named).is_dir() else store.runs_home() / named)
    else:
        before = store.latest("up")
    if before.meta().get("verb") != "up":
        raise UsageError(f"{before.path} is not an up run", "give the folder of a gpuprov up run")
    refuse_running(before)
    return before


def refuse_running(folder: RunFolder) -> None:
    """Raise GpuprovError if the run is still in progress, since resuming would do everything twice."""
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


@dataclass
class Locked:
    """Outcome of locking. `lost`: nodes that could not be locked; `clocks`: node → its clock error."""

    lost: dict[str, Result] = field(default_factory=dict)
    clocks: Mapping[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def locked(
    lock: FleetLock,
    nodes: Sequence[str],
    *,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Locked]:
    """Hold the locks of `nodes`. Raises LockedError if another run holds one of them."""
    with fleet_lock.held(lock, nodes, say=say, pause=pause) as answers:
        made = Locked({answer.node: _unlocked(answer) for answer in answers.values() if answer.error})
        made.clocks = skewed(answers.values())
        for node, why in made.clocks.items():
            say(f"{node}: {why}: certificates and package lists may not be believed there")
        made.lost.update(_still_busy(lock, answers, say, pause))
        yield made


def _unlocked(said: Answer) -> Result:
    status = Status.UNREACHABLE if said.unreachable else Status.UNREADABLE
    return Result(said.node, status, said.error)


def _still_busy(
    lock: FleetLock,
    answers: Mapping[str, Answer],
    say: Callable[[str], None],
    pause: Callable[[float], None],
) -> dict[str, Result]:
    """Wait for processes of an earlier run; return the nodes on which they do not end."""
    busy = {answer.node: answer.busy for answer in answers.values() if answer.busy}
    if busy:
        some = next(iter(busy.values()))
        say(f"{fold(busy)}: an earlier run is still at work there ({', '.join(some[:3])}); waiting for it")
    waited = 0.0
    while busy and waited < BUSY_SECONDS:
        pause(BUSY_PAUSE)
        waited += BUSY_PAUSE
        busy = {answer.node: answer.busy for answer in lock.take(list(busy)).values() if answer.busy}
    for node in busy:
        say(f"{node}: not attempted: it did not end")
    why = f"after {BUSY_SECONDS / 60:.0f} min an earlier run still has running there: "
    return {node: Result(node, Status.NOT_ATTEMPTED, why + ", ".join(names)) for node, names in busy.items()}


_NAMED = 5  # machines listed; one mistake in a template affects hundreds


def refuse_twice_named(fleet: Fleet) -> None:
    """Raise InventoryError with names and places if two nodes have the same address.

    The same address behind another jump host, or at another port, is another machine. Nodes that only Ansible
    can reach are not compared here; the lock on the node detects them (fleet_lock.py)."""
    configs = ConfigFiles()
    by_address: dict[tuple[Any, ...], list[str]] = {}
    for node in fleet.nodes.values():
        try:
            route = route_of(node, configs)
        except NotUnderstoodError:
            continue
        target = route.target
        jumps = tuple((hop.host, hop.port) for hop in route.jumps)
        key = (target.host.lower(), target.port, jumps, target.proxy_command)
        by_address.setdefault(key, []).append(node.name)
    twice = {key: names for key, names in by_address.items() if len(names) > 1}
    if twice:
        lines = [
            f"{' and '.join(_placed(name, fleet.source) for name in names)} are "
            f"{'all' if len(names) > 2 else 'both'} at {key[0]}"
            for key, names in list(twice.items())[:_NAMED]
        ]
        more = f"\n  and {len(twice) - _NAMED} more" if len(twice) > _NAMED else ""
        raise InventoryError(
            "the inventory lists one machine under two names: " + "\n  ".join(lines) + more,
            "take one of them out, or correct its ansible_host",
        )


def _placed(name: str, source: Path) -> str:
    """Return `gpu-01 (fleet.yml:12)` if the name can be found in the inventory's files."""
    position = ansible_inventory.place_of(rf"""\s*["']?{re.escape(name)}["']?\s*(?::|\s|$)""", source)
    return f"{name} ({position})" if position else name


_SKEW = 24 * 3600.0  # seconds; a smaller clock error is not reported


def skewed(answers: Iterable[Answer]) -> dict[str, str]:
    """Return the clock error of each node with a notable one."""
    return {said.node: _clock(said.skew) for said in answers if not said.error and abs(said.skew) > _SKEW}


def _clock(skew: float) -> str:
    """Describe a clock error: `its clock is 400 days ahead of this controller's`."""
    days = abs(skew) / 86400
    return f"its clock is {days:.0f} days {'ahead of' if skew > 0 else 'behind'} this controller's"
