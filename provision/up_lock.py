"""The locks of one `up`: taken before anything is changed, kept while it works, always given back."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from provision import fleet_lock
from provision.fleet_lock import Answer, FleetLock, LockedError
from provision.node_names import fold
from provision.up_result import Result, Status

BUSY_SECONDS = 900.0  # how long what an earlier run left running on a node is waited for
BUSY_PAUSE = 5.0
RETRY = 3.0  # about so many seconds after a refusal it is tried once more


@dataclass
class Locked:
    """What came of it. `lost`: nodes that could not be locked, which nothing is done to; `clocks`: node → how
    far its clock is off."""

    lock: FleetLock
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
    """Hold the locks of `nodes`. Raises LockedError when another `up` has one of them."""
    try:
        answers = _taken(lock, nodes, pause)
        made = Locked(lock, {said.node: _unlocked(said) for said in answers.values() if said.error})
        made.clocks = fleet_lock.skewed(answers.values())
        for node, why in made.clocks.items():
            say(f"{node}: {why}: certificates and package lists may not be believed there")
        made.lost.update(_still_busy(lock, answers, say, pause))
        lock.keep()
        yield made
    finally:
        left = lock.release()
        if left:
            minutes = round(fleet_lock.LEASE / 60)
            say(f"{fold(left)}: the lock could not be released; it ends by itself within {minutes} min")


def _taken(lock: FleetLock, nodes: Sequence[str], pause: Callable[[float], None]) -> dict[str, Answer]:
    """Take the locks, at the second attempt if need be: who is refused holds some for a moment, and two who
    begin at the same time refuse each other."""
    try:
        return lock.take(nodes)
    except LockedError:
        pause(RETRY * random.uniform(0.5, 1.5))  # noqa: S311 - not for secrets
    return lock.take(nodes)


def _unlocked(said: Answer) -> Result:
    status = Status.UNREACHABLE if said.unreachable else Status.UNREADABLE
    return Result(said.node, status, said.error)


def _still_busy(
    lock: FleetLock,
    answers: Mapping[str, Answer],
    say: Callable[[str], None],
    pause: Callable[[float], None],
) -> dict[str, Result]:
    """Wait for what an earlier run left running. The nodes on which it does not end."""
    busy = {said.node: said.busy for said in answers.values() if said.busy}
    if busy:
        some = next(iter(busy.values()))
        say(f"{fold(busy)}: an earlier run is still at work there ({', '.join(some[:3])}); waiting for it")
    waited = 0.0
    while busy and waited < BUSY_SECONDS:
        pause(BUSY_PAUSE)
        waited += BUSY_PAUSE
        busy = {said.node: said.busy for said in lock.take(list(busy)).values() if said.busy}
    for node in busy:
        say(f"{node}: not attempted: it did not end")
    why = f"after {BUSY_SECONDS / 60:.0f} min an earlier run still has running there: "
    return {node: Result(node, Status.NOT_ATTEMPTED, why + ", ".join(names)) for node, names in busy.items()}
