"""Leases in the scheduler, which decide on which nodes a watch may act.

A watch takes free leases and keeps them until a person has another watch take over (take_over.py): leases do
not expire, because a silent watch may still be working. A watch that finds another's leases follows: it shows
health and does nothing. It stays a follower even when those leases are gone, since it does not know what was
done under them."""

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

SPARE_AGAIN = "spare"  # Lease.placed of a node that has been repaired since
AT = 200  # maximum length of Lease.at
_GIVES_WAY = 10  # polls while a watch that took nodes at the same moment gives them back


class LostLeaseError(Exception):
    """Another watch has a node's lease, so this one must not act on it."""


def placement(incident: Incident) -> str:
    """Return Lease.placed of a failed node and of its spare."""
    return f"{incident.id} {incident.node} {incident.spare}"


def placements(incidents: Sequence[Incident]) -> dict[str, str]:
    """Return Lease.placed by node: all that another watch needs to continue if these incidents are lost."""
    found: dict[str, str] = {}
    for node, role, one in changes(incidents):
        if role is Role.SPARE:
            found[node] = SPARE_AGAIN
        elif one.placed is not None:
            found[node] = placement(one)
    for one in incidents:
        if one.step is Step.PLACE:  # its spare may go into service at any moment
            found |= dict.fromkeys((one.node, one.spare), placement(one))
    return found


def refuse_held(words: Mapping[str, Scheduled], store: Store) -> None:
    """Raise GpuprovError if a watch with another folder has one of these nodes."""
    mine = store.lease().get("holder")
    for name, word in words.items():
        if word.lease is not None and word.lease.holder != mine:
            raise GpuprovError(
                f"{name} is watched by {word.lease.at}",
                "run this command there, or `gpuprov watch take-over` here",
            )


def refuse_half_taken(store: Store) -> None:
    """Raise GpuprovError if a take-over into this folder was interrupted."""
    if store.lease().get("taking") is True:
        raise GpuprovError("a take-over was interrupted", "run `gpuprov watch take-over` again")


class Holding:
    """The leases of one watch. Thread-safe. `follows`: the watch that has its nodes while it has none.

    `others`: nodes not to act on, with their lease."""

    def __init__(self, store: Store, scheduler: Leases, sleep: Callable[[float], None] = time.sleep) -> None:
        kept = store.lease()
        self.holder = str(kept.get("holder") or secrets.token_hex(8))
        self.fleet = str(kept.get("fleet") or secrets.token_hex(8))
        self.follows = str(kept.get("follows") or "")
        self.taking = kept.get("taking") is True  # a take-over has begun, and has not ended
        self.at = one_line(f"{socket.gethostname()}:{store.path}", AT)
        self.others: dict[str, Lease | None] = {}
        self.trouble: dict[str, str] = {}  # node → why its lease cannot be written
        self.unattended = ""  # message that no watch acts on the nodes which this watch leaves alone
        self._store, self._scheduler, self._sleep = store, scheduler, sleep
        self._told = ""

    def save(self, **changed: str | bool) -> None:
        """Store the identity of this watch. Raises RunFolderError."""
        for name, value in changed.items():
            setattr(self, name, value)
        names = ("holder", "fleet", "follows", "taking")
        self._store.write_lease({name: getattr(self, name) for name in names})

    def is_mine(self, word: Scheduled) -> bool:
        return word.lease is not None and word.lease.holder == self.holder

    def saw(self, words: Mapping[str, Scheduled]) -> None:
        """Update the owners of these nodes' leases; without an answer the last owner is kept."""
        for name, word in words.items():
            if self.is_mine(word):
                self.others.pop(name, None)
            elif not word.error:
                self.others[name] = word.lease

    def acts_on(self, *nodes: str) -> bool:
        return not any(node in self.others for node in nodes)

    def part(self, fleet: Fleet) -> Fleet:
        """Return the fleet without nodes on which this watch must not act."""
        if not (others := self.others.copy()):
            return fleet
        return replace(fleet, nodes={name: node for name, node in fleet.nodes.items() if name not in others})

    def keep(self, words: Mapping[str, Scheduled], incidents: Sequence[Incident]) -> None:
        """Take free leases unless following, and record replacements in this watch's leases.

        `words`: the scheduler's current state of all its nodes. Raises RunFolderError."""
        self.trouble = {}
        known = {name: word for name, word in words.items() if not word.error}
        theirs = [word.lease for word in known.values() if word.lease and not self.is_mine(word)]
        mine = [name for name, word in known.items() if self.is_mine(word)]
        # This watch's own nodes may be among those without an answer at the moment.
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
            # Data of an incident unknown here stays, because its file may be damaged or lost.
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
        """Return a message if the followed watch belongs to this machine but is not running, or ""."""
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
        """Read the written leases back; of two watches that took nodes at once, the lower id keeps them.

        The other one gives its own back, and the winner waits for that: with only some of its nodes it would
        report missing spares, and a watch to follow."""
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
        """Record the replacement in both leases; return why that failed, or "". Raises LostLeaseError."""
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
        """Return who has the nodes that this watch leaves alone, as (id, sentence), if that has changed."""
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
        """Update lease owners. Raises LostLeaseError if this watch must not act on one of the nodes."""
        self.saw(words)
        if not self.acts_on(*words):
            raise LostLeaseError
