"""Circuit breaker of all drains for a fault in a Slurm cluster, stored as reservations in slurmctld.

A drain needs a permit in each partition of its node: the reservation `gpuprov-drain.PARTITION.NUMBER`, with
numbers up to the partition's limit. It reserves no node, and slurmctld ends it after an hour. Names of
reservations are unique, so even if many nodes fail at the same moment, no more than the limit are drained
within an hour. A caller that finds all permits taken opens the breaker, the reservation `gpuprov-breaker`:
from then on nothing is drained for a fault until a person deletes it. Reservations outlive a restart of
slurmctld, which is not guaranteed for what `scontrol update` writes to nodes and partitions.

`run` runs scontrol with arguments, and returns its exit status and output. Used by each node's health program
and by the controller; standard library only.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterable, Sequence

OPEN = "gpuprov-breaker"
PERMIT = "gpuprov-drain"
SHARE, LEAST = 10.0, 3  # hourly limit: percentage of a partition, minimum number of nodes
MINUTES = 60  # during which a drain counts
TRIES = 50  # tries to take a permit while others take the chosen ones
CLOSE = "close it with `gpuprov watch breaker --close`, or as docs/watch.md says"
# A reservation without nodes: scontrol requires some resource, and a byte of burst buffer costs nothing.
_NO_NODES = ("StartTime=now", "Users=root", "Flags=ANY_NODES", "BurstBuffer=1")
_TAKEN = "Duplicate reservation name"
_STRANGE = "Unknown parameter Comment"  # Slurm up to 22.05
_NONE = "No reservations in the system"
_RESERVATION = re.compile(r"^ReservationName=(\S{1,300}) (.*)$", re.MULTILINE)
_NODES = re.compile(r"\bTotalNodes=(\d{1,9})\b")
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_COMMENT = re.compile(r" Comment=(.*)$")

Run = Callable[[Sequence[str]], "tuple[int, str]"]


class UnknownError(Exception):
    """The breaker cannot be read, or no permit taken, so no node may be drained. The text is one line."""


def limit(nodes: int, share: float, least: int) -> int:
    """Return how many of a partition's nodes may be drained for a fault within an hour."""
    return max(least, int(nodes * share / 100))


def opened(run: Run) -> str | None:
    """Return why the breaker is open; None while it is closed. Raises UnknownError."""
    return _reservations(run).get(OPEN)


def permit(
    run: Run,
    partitions: Iterable[str],
    share: float = SHARE,
    least: int = LEAST,
    taken_now: list[str] | None = None,
) -> str:
    """Take a permit for one drain in each of these partitions; return why draining is forbidden, or "".

    `taken_now` receives the permits, for `give_back`. Raises UnknownError."""
    mine: list[str] = [] if taken_now is None else taken_now
    try:
        if (why := opened(run)) is not None:
            return held(why)
        sizes = {partition: _size(run, partition) for partition in dict.fromkeys(partitions)}
        for partition in sorted(sizes, key=lambda name: sizes[name]):  # the smallest runs out first
            most = limit(sizes[partition], share, least)
            taken = _taken(run, partition, most)
            if not taken:
                why = f"{partition} has had {most} of its {sizes[partition]} nodes drained within an hour"
                open_it(run, why)
            if taken in ("", OPEN):
                break
            mine.append(taken)
        else:
            return ""
        give_back(run, mine)
        return held(opened(run) or "for a moment")
    except UnknownError:
        give_back(run, mine)
        raise


def held(why: str) -> str:
    """Return the reason why draining is forbidden, with advice."""
    return f"the breaker of all drains is open ({why}): {CLOSE}"


def open_it(run: Run, why: str) -> None:
    """Forbid draining for a fault until a person closes the breaker. Idempotent. Raises UnknownError."""
    _created(run, OPEN, "UNLIMITED", f"Comment={why}")


def close(run: Run) -> None:
    """Allow drains again and restart their count. Raises UnknownError."""
    # The breaker is deleted last, so that no permit is taken before.
    for name in sorted(_reservations(run), reverse=True):
        if name == OPEN or name.startswith(f"{PERMIT}."):
            status, text = run(("delete", f"ReservationName={name}"))
            if status and name in _reservations(run):
                raise UnknownError(f"scontrol delete ReservationName={name}: {_last_line(text, status)}")


def _taken(run: Run, partition: str, most: int) -> str:
    """Take a permit and return it; OPEN if the breaker is open, "" if no permit is left."""
    permits = [f"{PERMIT}.{partition}.{number}" for number in range(1, most + 1)]
    for _ in range(TRIES):
        reservations = _reservations(run)
        if OPEN in reservations:
            return OPEN
        free = [name for name in permits if name not in reservations]
        if not free:
            return ""
        name = random.choice(free)  # noqa: S311 - spreads nodes that fail at the same moment
        if _created(run, name, str(MINUTES)):
            return name
    raise UnknownError(f"{TRIES} permits were taken by others in the same moment")


def give_back(run: Run, mine: Iterable[str]) -> None:
    """Release these permits. Never raises."""
    for name in mine:
        with contextlib.suppress(UnknownError):
            run(("delete", f"ReservationName={name}"))  # a remaining permit ends within the hour


def _created(run: Run, name: str, duration: str, *comment: str) -> bool:
    """Create a reservation; return False if its name exists."""
    words = ("create", "reservation", f"ReservationName={name}", f"Duration={duration}", *_NO_NODES)
    status, text = run((*words, *comment))
    if comment and _STRANGE in text:
        return _created(run, name, duration)
    if status and _TAKEN not in text:
        raise UnknownError(f"scontrol create ReservationName={name}: {_last_line(text, status)}")
    return not status


def _reservations(run: Run) -> dict[str, str]:
    """Return name → comment of all reservations."""
    status, text = run(("show", "reservation", "-o"))
    comments = {name: _comment(rest) for name, rest in _RESERVATION.findall(text)}
    if status or (not comments and _NONE not in text):
        raise UnknownError(f"scontrol show reservation: {_last_line(text, status)}")
    return comments


def _comment(rest: str) -> str:
    match = _COMMENT.search(rest)
    return match[1].strip()[:300] if match else "no reason is given"


def _size(run: Run, partition: str) -> int:
    if not _PARTITION.fullmatch(partition):
        raise UnknownError(f"the name of partition {partition!r:.120} cannot be used")
    status, text = run(("show", "partition", partition))
    nodes = _NODES.search(text)
    if status or nodes is None:
        raise UnknownError(f"scontrol show partition {partition}: {_last_line(text, status)}")
    return int(nodes[1])


def _last_line(text: str, status: int) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else f"it ended with {status} and printed nothing"
