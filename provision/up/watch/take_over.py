"""Take-over of another watch's leases and incidents, from its folder or else from the scheduler.

A drained node has the incident and its cause in its reason. A replacement is recorded in the leases of the
failed node and its spare (Lease.placed) before the spare is resumed. So a failed node stays in repair, a
replacement stays in service, and no fault gets a second one; doubtful cases are reported to people."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from provision.errors import GpuprovError, UsageError
from provision.fleet import Fleet
from provision.node_names import fold
from provision.remote.schedulers import PREFIX, Holder, Leases, Scheduled
from provision.remote.schedulers.lease import Lease
from provision.text import many
from provision.up.watch.decide import HOUR, Held, View
from provision.up.watch.incidents import SPARE, Incident, Step, Store, is_locked, new
from provision.up.watch.lease import SPARE_AGAIN, Holding
from provision.up.watch.policy import SPARES

_ID = r"\d{8}T\d{6}Z-[A-Za-z0-9._-]{1,120}"  # name of an incident file
# Example: `gpuprov: 20270115T070000Z-gpu-03-0a1b2c3d gpu3 has fallen off the bus (Xid 79)`. If the node was
# DOWN in Slurm, the id follows `(was DOWN) ` or `(was DOWN: Not responding) `.
_FORM = rf"(?:\([^)]{{0,60}}\) )?(?P<id>{_ID}) (?P<cause>.{{0,400}})"
_REASON = re.compile(re.escape(PREFIX) + _FORM)
_ID_WHOLE = re.compile(_ID).fullmatch
_WHO = re.compile(r" \[[^\[\]]{1,100}\]$")  # Slurm's suffix: ` [root@2027-01-15T07:00:00]`
# Marks that steps.py sets on a spare waiting for its last check, or one that did not come into service.
_MARKS = ("takes the place of ", "could not be put into service")
_UNKNOWN = "not known: it was rebuilt from the scheduler"


def rebuilt(fleet: Fleet, words: Mapping[str, Scheduled], at: float) -> tuple[list[Incident], list[str]]:
    """Rebuild incidents in order from reasons and leases; also return messages for people.

    `at`: seconds since 1970."""
    spares = fleet.groups.get(SPARES, ())
    last = {name: word.lease.placed for name, word in words.items() if word.lease}
    reasons = {name: _WHO.sub("", word.reason) for name, word in words.items() if word.holder is Holder.US}
    of_incident = {name: match for name, why in reasons.items() if (match := _REASON.match(why))}
    marked = {name: one["id"] for name, one in of_incident.items() if one["cause"].startswith(_MARKS)}
    chosen = {marked[name]: name for name in marked if of_incident[name]["cause"].startswith(_MARKS[0])}
    placed = _placed(last, marked)
    serving = {spare for _, spare in placed.values()}
    # A spare in service without a recorded placement may stand in for any failed node. Until that is
    # known, a failed node without a known spare gets no other one (below).
    unknown = [
        name
        for name in spares
        if name in words and words[name].holder is Holder.NOBODY and name not in serving
    ]
    told = [f"{fold(unknown, 200)}: in service, and not known for which node"] if unknown else []
    failed: list[Incident] = []
    for name in of_incident.keys() - marked.keys():
        one = _failed(of_incident[name], name, at)
        # A spare that failed while it waited needs no replacement; one that failed in service does.
        was_spare = last.get(name) == SPARE_AGAIN or (name in spares and not _serves(name, last, placed))
        if one.id in placed:
            spare = placed[one.id][1]
            pools = tuple(pool for pool in words[name].pools if spare in words and pool in words[spare].pools)
            one = replace(one, step=Step.REPAIR, spare=spare, pools=pools, placed=one.opened)
        elif was_spare:
            one = replace(one, step=Step.REPAIR, was_spare=True)
        elif one.id in chosen:
            one = replace(one, step=Step.VERIFY, spare=chosen[one.id])
        elif unknown:
            one = replace(one, step=Step.REPAIR)
            told.append(f"{name}: a spare may be in its place already, so it gets no other one")
        failed.append(one)
    known, gone = {one.id for one in failed}, []
    for ident, (node, spare) in placed.items():
        if ident not in known:
            # We hold the node for something else, or its own lease has a later change: it has returned since.
            left = node in reasons or last.get(node, "") not in ("", f"{ident} {node} {spare}")
            one = Incident(ident, node, _opened(ident, at), Step.REPAIR, _UNKNOWN, spare=spare)
            gone.append(replace(one, placed=one.opened, returned=one.opened if left else None))
    waiting = [name for name, why in reasons.items() if why == PREFIX + SPARE or name in marked]
    # These wait as spares, although their last known role is service: they failed and have returned since.
    back = [
        replace(new(name, at - HOUR, _UNKNOWN), step=Step.REPAIR, returned=at)  # no longer a recent failure
        for name in waiting
        if name in serving or (name not in spares and name not in {one.node for one in gone})
    ]
    return [*sorted(gone, key=_when), *sorted(failed, key=_when), *back], told


def strays(view: View) -> list[Held]:
    """Report nodes drained for an unknown incident, such as one interrupted by a take-over."""
    known = {one.id for one in view.incidents}
    found = []
    for name in view.fleet.nodes:
        word = view.scheduled.get(name)
        match = _REASON.match(word.reason) if word and word.holder is Holder.US else None
        if match and match["id"] not in known and not match["cause"].startswith(_MARKS):
            found.append(name)
    why = "drained for an incident that this watch does not know, so no spare takes its place"
    return [Held("stray", tuple(found), f"{fold(found, 200)}: {why}")] if found else []


def _placed(last: Mapping[str, str], marked: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return incident → (node, spare) of completed replacements; such a spare is no longer marked."""
    facts = [
        words for placed in last.values() if len(words := placed.split(" ")) == 3 and _ID_WHOLE(words[0])
    ]
    return {ident: (node, spare) for ident, node, spare in facts if marked.get(spare) != ident}


def _serves(name: str, last: Mapping[str, str], placed: Mapping[str, tuple[str, str]]) -> bool:
    """Return whether a node of the spares' group was replacing another when it failed."""
    ident, _, names = last.get(name, "").partition(" ")
    return ident in placed and names.endswith(f" {name}")


def _failed(match: re.Match[str], name: str, at: float) -> Incident:
    opened = _opened(match["id"], at)
    return Incident(match["id"], name, opened, Step.CHOOSE, match["cause"], drained=opened)


def _when(one: Incident) -> tuple[float, str]:
    return one.opened, one.id


def _opened(ident: str, at: float) -> float:
    """Return the opening time of an incident, from its name."""
    try:
        moment = datetime.datetime.strptime(ident[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    except ValueError:
        return at
    return min(at, moment.timestamp())  # a clock that was ahead must not open it in the future


def take_over(
    fleet: Fleet,
    store: Store,
    scheduler: Leases,
    folder: Path | None,
    say: Callable[[str], None],
    now: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Take over the leases of all nodes of the fleet, and the incidents of their earlier watches.

    `folder`: state folder of the earlier watch. The caller locks the store. Raises GpuprovError."""
    holding = Holding(store, scheduler)
    words = _answers(scheduler, fleet)
    others = {name: word.lease for name, word in words.items() if not holding.is_mine(word)}
    theirs = [lease for lease in others.values() if lease]
    if not holding.taking and not theirs and (not others or not holding.follows):
        raise UsageError("no other watch has these nodes", "start gpuprov watch: it takes what is free")
    # After an interrupted take-over some leases already name this watch, so all nodes count as taken.
    taken = set(words if holding.taking else others)
    source = _source(folder, theirs, store)
    shared = Counter(lease.fleet for lease in theirs if lease.fleet)
    # Saved before any lease changes: until an interrupted take-over is repeated, `gpuprov watch` refuses.
    holding.save(taking=True, follows="", fleet=shared.most_common(1)[0][0] if shared else holding.fleet)
    mine = Lease(holding.fleet, holding.holder, 1, holding.at)
    leases = {
        name: replace(mine, count=lease.count + 1, placed=lease.placed) if lease else mine
        for name, lease in others.items()
    }
    problems = scheduler.lease(leases, others)
    sleep(scheduler.settle)  # of concurrent writers, both then see the last one's lease
    words = _answers(scheduler, fleet)
    if lost := [name for name, word in words.items() if not holding.is_mine(word)]:
        why = problems.get(lost[0]) or "somebody else took it at the same time"
        raise GpuprovError(f"{fold(lost, 200)}: not taken over: {why}", "run this command again")
    for at in dict.fromkeys(lease.at for lease in theirs):
        names = fold((name for name, lease in others.items() if lease and lease.at == at), 200)
        say(f"{names}: taken from {at}")
    found, told = rebuilt(fleet, words, now())
    _set_aside(store, taken)
    if source is not None:
        _copy(source, store, say)
    kept = {one.id for one in store.incidents()}
    incidents = [one for one in found if one.id not in kept and not taken.isdisjoint((one.node, one.spare))]
    if source is not None:  # the folder knows which nodes have returned
        incidents, told = [one for one in incidents if one.returned is None], []
    for one in numbered(incidents, store.next_number):
        if one.returned is not None:
            store.write_return(one)
        store.write(one)
    holding.save(taking=False)
    for line in told:
        say(f"! {line}")
    if source is None:
        say("the incidents are rebuilt from the scheduler; advice and evidence of faults are not known")
        say("spares are validated again; messages that the earlier watch has not sent yet are lost")
    repair = sum(one.holds_node for one in store.incidents())
    say(f"{many(len(words), 'node')} taken over, {repair:,} of them failed; next: gpuprov watch")


def numbered(incidents: Sequence[Incident], number: Callable[[], int]) -> list[Incident]:
    """Rebuilt incidents with the order in which nodes changed their roles.

    Their times are no order, since clocks are set. A node's own lease has its last change: so one that serves
    again has returned before any spare was placed, and one that is drained has failed after that."""
    found: list[Incident] = []
    for one in incidents:  # what is over
        over = one.placed is not None and one.returned is not None
        found.append(replace(one, number=number(), returned_number=number()) if over else one)
    placed = [replace(one, placed_number=number()) if one.placed is not None else one for one in found]
    last = [one if one.number else replace(one, number=number()) for one in placed]
    back = {one.id for one in last if one.returned is not None and not one.returned_number}
    return [replace(one, returned_number=number()) if one.id in back else one for one in last]


def _answers(scheduler: Leases, fleet: Fleet) -> dict[str, Scheduled]:
    words = scheduler.look(list(fleet.nodes))
    if silent := [name for name in fleet.nodes if name not in words or words[name].error]:
        why = words[silent[0]].error if silent[0] in words else "none"
        raise GpuprovError(
            f"{fold(silent, 200)}: no answer from the scheduler: {why}",
            "mend that, or leave them out with --nodes",
        )
    return words


def _source(folder: Path | None, theirs: Sequence[Lease], store: Store) -> Store | None:
    """Return the earlier watch's folder, as named or found on this machine.

    Raises GpuprovError for a folder of another fleet, or one still in use."""
    host = f"{socket.gethostname()}:"
    known = [Path(lease.at.removeprefix(host)) for lease in theirs if lease.at.startswith(host)]
    # Leases are text from the scheduler: a path in one is used only if the folder belongs to this user.
    mine = (path for path in known if _is_readable(path) and path.stat().st_uid == os.geteuid())
    place = folder or next((path for path in mine if path != store.path), None)
    if place is None:
        return None
    if not _is_readable(place):
        raise GpuprovError(f"{place}: no folder of a watch that can be read", "gpuprov watch state prints it")
    source = Store(place)
    if theirs and source.lease().get("holder") not in {lease.holder for lease in theirs}:
        raise GpuprovError(f"{place} is not the folder of {theirs[0].at}", "name that one, or none")
    if is_locked(place / "lock"):
        raise GpuprovError(f"the watch of {place} is at work", "stop it first: its folder changes")
    return source


def _is_readable(place: Path) -> bool:
    return all(os.access(place / name, os.R_OK) for name in ("lease.json", "lock", "incidents"))


def _copy(source: Store, store: Store, say: Callable[[str], None]) -> None:
    """Copy a folder's incidents and validations of spares."""
    incidents = source.incidents()
    for one in incidents:
        store.write(one)
        store.write_return(one)
    for name, row in source.validated().items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            store.write_validated(name, float(row["at"]), str(row["verdict"]), str(row["run"]))
    for why in source.damaged.values():
        say(f"! {why}")
    say(f"{many(len(incidents), 'incident')} copied from {source.path}")


def _set_aside(store: Store, nodes: Collection[str]) -> None:
    """Move away what this folder stored about these nodes when it had them before."""
    for one in store.incidents():
        for name in ("incidents", "returns"):
            path = store.path / name / f"{one.id}.json"
            if (one.node in nodes or one.spare in nodes) and path.exists():
                (store.path / "before" / name).mkdir(parents=True, exist_ok=True, mode=0o700)
                path.replace(store.path / "before" / name / path.name)
