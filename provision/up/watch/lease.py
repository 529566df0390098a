"""Which nodes a watch may act on: those whose lease in the scheduler is its own.

A watch takes the leases that nobody has, and keeps them until a person has another watch take them over
(take_over.py): no lease ends by itself, since a watch that is not heard of may still be at work. A watch that
meets another one's leases follows: it shows what it sees, and does nothing. It stays a follower when those
leases are gone, too, for it does not know what was done under them.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from provision.errors import GpuprovError
from provision.fleet import Fleet
from provision.node_names import fold
from provision.remote.schedulers import Leases, Scheduled
from provision.remote.schedulers.lease import Lease
from provision.text import one_line
from provision.up.watch.incidents import Incident, Step, Store, is_locked
from provision.up.watch.roles import Role, changes

SPARE_AGAIN = "spare"  # Lease.placed of a node that was repaired since
AT = 200  # characters of Lease.at
_GIVES_WAY = 10  # looks at whether a watch that took nodes in the same moment gives them back


class LostLeaseError(Exception):
    """Another watch has a node's lease, so this one does nothing to it."""


def placement(incident: Incident) -> str:
    """Lease.placed of a failed node and of the spare that takes its place."""
    return f"{incident.id} {incident.node} {incident.spare}"


def placements(incidents: Sequence[Incident]) -> dict[str, str]:
    """Node → Lease.placed: all that another watch needs to go on, if these incidents are lost."""
    found: dict[str, str] = {}
    for node, role, one in changes(incidents):
        if role is Role.SPARE:
            found[node] = SPARE_AGAIN
        elif one.placed is not None:
            found[node] = placement(one)
    for one in incidents:
        if one.step is Step.PLACE:  # its spare may be in service any moment
            found |= dict.fromkeys((one.node, one.spare), placement(one))
    return found


def refuse_held(words: Mapping[str, Scheduled], store: Store) -> None:
    """Raises GpuprovError where a watch with another folder has one of these nodes."""
    mine = store.lease().get("holder")
    for name, word in words.items():
        if word.lease is not None and word.lease.holder != mine:
            raise GpuprovError(
                f"{name} is watched by {word.lease.at}",
                "run this command there, or `gpuprov watch take-over` here",
            )


def refuse_half_taken(store: Store) -> None:
    """Raises GpuprovError where a take-over into this folder did not come to its end."""
    if store.lease().get("taking") is True:
        raise GpuprovError("a take-over was interrupted", "run `gpuprov watch take-over` again")


class Holding:
    """The leases of one watch. `follows`: who has those of its nodes, while it has none itself; `others`:
    nodes on which it must not act, with their lease. Threads may share it."""

    def __init__(self, store: Store, scheduler: Leases, sleep: Callable[[float], None] = time.sleep) -> None:
        kept = store.lease()
        self.holder = str(kept.get("holder") or secrets.token_hex(8))
        self.fleet = str(kept.get("fleet") or secrets.token_hex(8))
        self.follows = str(kept.get("follows") or "")
        self.taking = kept.get("taking") is True  # a take-over has begun, and has not ended
        self.at = one_line(f"{socket.gethostname()}:{store.path}", AT)
        self.others: dict[str, Lease | None] = {}
        self.trouble: dict[str, str] = {}  # node → why its lease cannot be written
        self.unattended = ""  # that certainly nobody acts on the nodes that this watch leaves alone
        self._store, self._scheduler, self._sleep = store, scheduler, sleep
        self._told = ""

    def save(self, **changed: str | bool) -> None:
        """Keep who this is. Raises RunFolderError."""
        for name, value in changed.items():
            setattr(self, name, value)
        names = ("holder", "fleet", "follows", "taking")
        self._store.write_lease({name: getattr(self, name) for name in names})

    def is_mine(self, word: Scheduled) -> bool:
        return word.lease is not None and word.lease.holder == self.holder

    def saw(self, words: Mapping[str, Scheduled]) -> None:
        """Take in whose leases these are. Without an answer they are whose they were."""
        for name, word in words.items():
            if self.is_mine(word):
                self.others.pop(name, None)
            elif not word.error:
                self.others[name] = word.lease

    def acts_on(self, *nodes: str) -> bool:
        return not any(node in self.others for node in nodes)

    def part(self, fleet: Fleet) -> Fleet:
        """The fleet without the nodes on which this watch must not act."""
        if not (others := self.others.copy()):
            return fleet
        return replace(fleet, nodes={name: node for name, node in fleet.nodes.items() if name not in others})

    def keep(self, words: Mapping[str, Scheduled], incidents: Sequence[Incident]) -> None:
        """Take the leases that nobody has, if this watch follows none, and write into its own what happened.
        `words`: what the scheduler says of all its nodes now. Raises RunFolderError."""
        self.trouble = {}
        known = {name: word for name, word in words.items() if not word.error}
        theirs = [word.lease for word in known.values() if word.lease and not self.is_mine(word)]
        mine = [name for name, word in known.items() if self.is_mine(word)]
        # Its own may be those of which the scheduler says nothing for a moment.
        follows = "" if mine else theirs[0].at if theirs else self.follows
        if follows != self.follows:
            self.save(follows=follows)
        free = [] if follows else [name for name, word in known.items() if word.lease is None]
        placed = placements(incidents)
        leases = {name: Lease(self.fleet, self.holder, 1, self.at, placed.get(name, "")) for name in free}
        ids = {one.id for one in incidents}
        for name in mine:
            if (now := known[name].lease) is None:
                continue
            # What an incident that is not here has left stays: its file may be damaged or lost.
            old = "" if now.placed.partition(" ")[0] in ids else now.placed
            new = replace(now, placed=placed.get(name, old), at=self.at)
            if new != now:
                leases[name] = new
        if leases:
            self.save()
            problems = self._scheduler.lease(leases, {name: known[name].lease for name in leases})
            if free:
                self._sleep(self._scheduler.settle)
                self._settle({name: leases[name] for name in free})
            self.trouble = {
                name: why
                for name, why in problems.items()
                if name in self.others and self.others[name] is None
            }
        self.unattended = self._unattended()

    def _unattended(self) -> str:
        """That the watch whose leases keep this one from its work is not at work, as far as this machine
        tells: of another one nothing is known."""
        if not (self.follows and self.others):
            return ""
        ats = {lease.at for lease in self.others.values() if lease}
        here = f"{socket.gethostname()}:"
        if all(at.startswith(here) and self._is_idle(Path(at.removeprefix(here))) for at in ats):
            return f"{self.follows} is not at work, and this watch follows it: nobody acts on its nodes"
        return ""

    def _is_idle(self, place: Path) -> bool:
        if place == self._store.path:
            return True  # this watch has that folder, which has lost its lease.json
        with contextlib.suppress(OSError):
            return not is_locked(place / "lock")
        return False

    def _settle(self, taken: Mapping[str, Lease]) -> None:
        """Read back what was written. Of two watches that took nodes of one fleet in the same moment, and got
        some each, the one with the higher id gives its own back, and the other one waits for that: with a
        part of its nodes it would report spares as gone, and a watch to follow."""
        words = self._scheduler.look(list(taken))
        kept = {name: word.lease for name, word in words.items() if self.is_mine(word)}
        rivals = self._rivals(words)
        if kept and rivals and self.holder > min(rivals):
            self._scheduler.lease(dict.fromkeys(kept), kept)
            words |= self._scheduler.look(list(kept))
        else:
            for _ in range(_GIVES_WAY if kept and rivals else 0):
                self._sleep(max(self._scheduler.settle, 0.2))
                words = self._scheduler.look(list(taken))
                if free := [name for name, word in words.items() if word.lease is None and not word.error]:
                    self._scheduler.lease({name: taken[name] for name in free}, dict.fromkeys(free))
                elif not self._rivals(words):
                    break
        self.saw(words)

    def _rivals(self, words: Mapping[str, Scheduled]) -> list[str]:
        return [word.lease.holder for word in words.values() if word.lease and not self.is_mine(word)]

    def note(self, incident: Incident) -> str:
        """Write into both leases that the spare is about to take the node's place; why that failed, or "".
        Raises LostLeaseError."""
        words = self._scheduler.look([incident.node, incident.spare])
        self.own(words)
        before = {name: word.lease for name, word in words.items() if word.lease}
        if any(word.error for word in words.values()):
            return next(word.error for word in words.values() if word.error)
        problems = self._scheduler.lease(
            {name: replace(lease, placed=placement(incident)) for name, lease in before.items()}, before
        )
        return "; ".join(problems.values())

    def news(self) -> list[tuple[str, str]]:
        """Who has the nodes that this watch leaves alone, as an id that changes with it and a sentence; empty
        where that is nobody, or was returned before."""
        others = self.others.copy()
        names, lease = fold(others, 200), next((one for one in others.values() if one), None)
        ident, text = "", ""
        if lease is not None:
            ident = f"{lease.holder or 'unknown'}.{lease.count}"
            text = f"{names}: watched by {lease.at}. This watch follows, and does nothing to them"
        elif others and self.follows:
            ident, gone = "nobody", f"{self.follows}, which this watch followed, has their lease no longer"
            text = f"{names}: {gone}, and nobody else does, so nothing is done to them"
        before, self._told = self._told, ident
        return [(ident, text)] if ident not in ("", before) else []

    def own(self, words: Mapping[str, Scheduled]) -> None:
        """Take in whose leases these are. Raises LostLeaseError where this watch must not act on one."""
        self.saw(words)
        if not self.acts_on(*words):
            raise LostLeaseError
