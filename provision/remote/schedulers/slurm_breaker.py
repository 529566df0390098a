"""The circuit breaker of all drains for a fault in a Slurm cluster: reservations, which slurmctld keeps.

A drain needs a permit in each partition of its node: the reservation `gpuprov-drain.PARTITION.NUMBER`, with
numbers up to the partition's limit. It reserves no node, and slurmctld ends it after an hour. slurmctld makes
one name once, so however many nodes fail at the same moment, never more than the limit are drained within an
hour. Whoever finds all permits taken opens the breaker, the reservation `gpuprov-breaker`: from then on
nothing is drained for a fault until a person deletes it. Reservations outlive a restart of slurmctld; what
`scontrol update` writes to nodes and partitions need not.

`run` runs scontrol with arguments, and returns its exit status and all that it printed. Used by a node's own
health program and by the controller; standard library only.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterable, Sequence

OPEN = "gpuprov-breaker"
PERMIT = "gpuprov-drain"
SHARE, LEAST = 10.0, 3  # percent of a partition, and nodes at least, that may be drained within an hour
MINUTES = 60  # for which a drain counts
TRIES = 50  # permits that others took in the moment in which we wanted them
CLOSE = "close it with `gpuprov watch breaker --close`, or as docs/watch.md says"
# A reservation without nodes: scontrol wants to be given something, and a byte of a burst buffer is nothing.
_NO_NODES = ("StartTime=now", "Users=root", "Flags=ANY_NODES", "BurstBuffer=1")
_TAKEN = "Duplicate reservation name"
_STRANGE = "Unknown parameter Comment"  # up to 22.05
_NONE = "No reservations in the system"
_RESERVATION = re.compile(r"^ReservationName=(\S{1,300}) (.*)$", re.MULTILINE)
_NODES = re.compile(r"\bTotalNodes=(\d{1,9})\b")
_PARTITION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_COMMENT = re.compile(r" Comment=(.*)$")

Run = Callable[[Sequence[str]], "tuple[int, str]"]


class UnknownError(Exception):
    """Why the breaker cannot be read or a permit be taken: one line. Nothing may be drained then."""


def limit(nodes: int, share: float, least: int) -> int:
    """How many of a partition's nodes may be drained for a fault within an hour."""
    return max(least, int(nodes * share / 100))


def opened(run: Run) -> str | None:
    """Why the breaker is open; None while it is closed. Raises UnknownError."""
    return _reservations(run).get(OPEN)


def permit(
    run: Run,
    partitions: Iterable[str],
    share: float = SHARE,
    least: int = LEAST,
    taken_now: list[str] | None = None,
) -> str:
    """Take a permit for one drain in each of these partitions. Why nothing may be drained, or "".
    `taken_now` gets the permits, for `give_back`. Raises UnknownError."""
    mine: list[str] = [] if taken_now is None else taken_now
    try:
        if (why := opened(run)) is not None:
            return held(why)
        sizes = {partition: _size(run, partition) for partition in dict.fromkeys(partitions)}
        for partition in sorted(sizes, key=lambda name: sizes[name]):  # the smallest is full first
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
    """Why nothing may be drained, with what ends that."""
    return f"the breaker of all drains is open ({why}): {CLOSE}"


def open_it(run: Run, why: str) -> None:
    """Let nothing be drained for a fault until a person closes the breaker. Idempotent. Raises
    UnknownError."""
    _created(run, OPEN, "UNLIMITED", f"Comment={why}")


def close(run: Run) -> None:
    """Let nodes be drained again, as many as if none had been in the last hour. Raises UnknownError."""
    # The breaker is the last to go: until then nobody takes a permit.
    for name in sorted(_reservations(run), reverse=True):
        if name == OPEN or name.startswith(f"{PERMIT}."):
            status, text = run(("delete", f"ReservationName={name}"))
            if status and name in _reservations(run):
                raise UnknownError(f"scontrol delete ReservationName={name}: {_last_line(text, status)}")


def _taken(run: Run, partition: str, most: int) -> str:
    """The permit that we have taken; OPEN where the breaker is open, "" where all are taken."""
    every = [f"{PERMIT}.{partition}.{number}" for number in range(1, most + 1)]
    for _ in range(TRIES):
        known = _reservations(run)
        if OPEN in known:
            return OPEN
        free = [name for name in every if name not in known]
        if not free:
            return ""
        name = random.choice(free)  # noqa: S311 - so that not all who fail now want the same one
        if _created(run, name, str(MINUTES)):
            return name
    raise UnknownError(f"{TRIES} permits were taken by others in the same moment")


def give_back(run: Run, mine: Iterable[str]) -> None:
    """Let others have these permits. Never raises."""
    for name in mine:
        with contextlib.suppress(UnknownError):
            run(("delete", f"ReservationName={name}"))  # what is left ends within the hour


def _created(run: Run, name: str, duration: str, *comment: str) -> bool:
    """Whether this reservation is ours; False where there is one of that name."""
    words = ("create", "reservation", f"ReservationName={name}", f"Duration={duration}", *_NO_NODES)
    status, text = run((*words, *comment))
    if comment and _STRANGE in text:
        return _created(run, name, duration)
    if status and _TAKEN not in text:
        raise UnknownError(f"scontrol create ReservationName={name}: {_last_line(text, status)}")
    return not status


def _reservations(run: Run) -> dict[str, str]:
    """Name → comment, of all reservations."""
    status, text = run(("show", "reservation", "-o"))
    known = {name: _comment(rest) for name, rest in _RESERVATION.findall(text)}
    if status or (not known and _NONE not in text):
        raise UnknownError(f"scontrol show reservation: {_last_line(text, status)}")
    return known


def _comment(rest: str) -> str:
    found = _COMMENT.search(rest)
    return found[1].strip()[:300] if found else "no reason is given"


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
