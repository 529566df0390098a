"""One incident, step by step: drain, choose a spare, verify and place it, store evidence.

Each step is recorded on disk before it is done (incidents.py), and can be repeated. Before each step the
scheduler is queried for anyone else acting on the node (a person, `up`, another machine's watch), who takes
precedence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from provision.remote.schedulers import BreakerError, Breaks, Holder, Pools, Scheduled, Scheduler
from provision.text import one_line
from provision.up.watch.breaker import stopped
from provision.up.watch.decide import View, choose, lost_spares
from provision.up.watch.incidents import SPARE, Incident, Step, Store, by_the_node_itself, moved, new
from provision.up.watch.lease import Holding, placement
from provision.up.watch.policy import Policy

PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before a failed step is retried; the last value repeats
PLACE_TRIES = 4  # then the spare is put back for another choice
CHECK_TRIES = 3  # inconclusive checks of a spare before a different one is chosen
ASIDE = 60.0  # seconds until such a spare may be chosen again
PATIENCE = 600.0  # seconds a failed node waits for such spares before it is reported itself


@dataclass(frozen=True)
class Checked:
    """Outcome of a spare's last check; `again`: inconclusive (spare busy, interrupted, network down).

    `elsewhere`: checking the same spare again at once would only cost time (it did not answer)."""

    passed: bool
    why: str = ""
    run: str = ""
    again: bool = False
    elsewhere: bool = False


@dataclass(frozen=True)
class Message:
    """A message for people. `kind`: see docs/watch.md; `id` stays the same however often it is sent."""

    id: str
    kind: str
    at: float
    text: str
    node: str = ""
    spare: str = ""
    incident: str = ""
    cause: str = ""
    action: str = ""
    device: str = ""
    serial: str = ""
    next: str = ""


class World(Protocol):
    """Interface through which steps act. Called from several threads."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler."""

    @property
    def lease(self) -> Holding:
        """The nodes that may be acted on."""

    def now(self) -> float:
        """Return the seconds since 1970."""

    def view(self) -> View:
        """Return the current view; scheduler states of spares are seconds old."""

    def verify(self, spare: str) -> Checked:
        """Check a spare once more, as `gpuprov validate --stage quick` does."""

    def evidence(self, incident: Incident) -> str:
        """Store evidence for the repair; return why that failed, or ""."""

    def tell(self, message: Message) -> None:
        """Queue a message for delivery; returns once it is on disk."""


class Steps:
    """Advances incidents step by step. `say`: writes a log line; `nodes`: the watched nodes as arguments."""

    def __init__(
        self, world: World, store: Store, policy: Policy, say: Callable[[str], None], nodes: str = ""
    ) -> None:
        self._world, self._store, self._policy, self._say = world, store, policy, say
        self._nodes = nodes
        self.aside: dict[str, tuple[float, str]] = {}  # spare → since when, and why it cannot be checked
        self._unsure: dict[str, int] = {}  # spare → its consecutive inconclusive checks
        self._choosing = threading.Lock()  # a spare must not be chosen for two incidents
        self._tries: dict[tuple[str, str], int] = {}
        self._permitted: set[str] = set()  # incidents with a drain already counted
        self._doing = {
            Step.DRAIN: self._drain,
            Step.CHOOSE: self._choose,
            Step.VERIFY: self._verify,
            Step.PLACE: self._place,
            Step.EVIDENCE: self._evidence,
        }

    def advance(self, incident: Incident) -> tuple[Incident, float]:
        """Run and store the next step; also return the seconds to wait, 0.0 if it advanced."""
        after = self._doing[incident.step](incident)
        if after.step is not incident.step:
            self._say(f"{after.id}: {_sentence(after)}")
        elif after.note != incident.note:
            self._say(f"{after.id}: {after.note}")
        if after != incident:
            self._store.write(after)
        if after.step is incident.step and after.is_open:
            key = (after.id, after.step.value)
            self._tries[key] = self._tries.get(key, 0) + 1
            return after, PAUSES[min(self._tries[key], len(PAUSES)) - 1]
        return after, 0.0

    def _word(self, node: str) -> Scheduled:
        """Query the scheduler. Raises LostLeaseError if another watch has the node."""
        word = self._world.scheduler.look([node]).get(node) or Scheduled(node, error="no answer")
        self._world.lease.own({node: word})
        return word

    def _drain(self, incident: Incident) -> Incident:
        name, scheduler = incident.node, self._world.scheduler
        word = self._word(name)
        if incident.was_spare:
            return self._marked(incident)
        if word.holder is Holder.NOBODY and not word.error:
            seen = self._world.view().seen.get(name)
            # An incident from the future has an unknown age, because the clock was set.
            if seen is None and not 0 <= self._world.now() - incident.opened <= _OLD:
                return _again(incident, f"waiting for a health result of {name}: it may have recovered")
            if seen is not None and seen.healthy:
                return self._closed(incident, f"{name} is healthy again, and nothing had been done yet")
            if waits := self._not_permitted(incident):
                return waits
            problem = scheduler.drain({name: incident.reason}).get(name, "")
            word = self._word(name)
            if problem and (word.error or word.holder is Holder.NOBODY):  # else somebody drained it just now
                return self._stuck(incident, f"{name} cannot be drained: {problem}")
        if word.error:
            return self._stuck(incident, f"the scheduler does not answer for {name}: {word.error}")
        if word.holder is Holder.OTHERS:
            return self._closed(incident, f"somebody else took {name} out of service: {word.reason}")
        if word.holder is Holder.US and by_the_node_itself(word.reason):
            if problem := scheduler.mark({name: incident.reason}).get(name, ""):
                return _again(incident, f"{name} cannot be marked: {problem}")
            word = self._word(name)
        if incident.id not in word.reason:
            if word.error or word.holder is Holder.NOBODY:
                return _again(incident, f"{name} is not drained yet")
            return self._closed(incident, f"another run of gpuprov has {name}: {word.reason}")
        return moved(incident, Step.CHOOSE, drained=self._world.now())

    def _marked(self, incident: Incident) -> Incident:
        """Mark a failed spare, which is already drained unless a person put it into service or took it."""
        name, scheduler = incident.node, self._world.scheduler
        problem = scheduler.mark({name: incident.reason}).get(name, "")
        if not problem:
            self._spare_failed(incident)
            return moved(incident, Step.EVIDENCE, drained=self._world.now())
        word, seen = self._word(name), self._world.view().seen.get(name)
        if word.error or word.holder is Holder.US:
            return _again(incident, f"{name} cannot be marked: {problem}")
        if word.holder is Holder.OTHERS:
            return self._closed(incident, f"somebody else took {name}: {word.reason}")
        if seen is not None and seen.healthy:
            return self._closed(incident, f"{name} is healthy again, and nothing had been done yet")
        return self._stuck(incident, f"the spare {name} was put into service, and failed: {incident.cause}")

    def _not_permitted(self, incident: Incident) -> Incident | None:
        """Return the waiting incident if the breaker of all drains is open or unreadable."""
        scheduler, policy = self._world.scheduler, self._policy
        if not isinstance(scheduler, Breaks):
            return None
        try:
            if incident.id in self._permitted:  # a retried drain counts once
                reason = scheduler.breaker()
                why = "" if reason is None else stopped(reason)
            else:
                why = scheduler.permit(incident.node, policy.breaker_share, policy.breaker_nodes)
        except BreakerError as error:
            return self._stuck(
                incident, f"{incident.node} is not drained, since the breaker is unknown: {error}"
            )
        if why:
            return _again(incident, f"{incident.node} is left in service: {why}")
        self._permitted.add(incident.id)
        return None

    def _choose(self, incident: Incident) -> Incident:
        word = self._word(incident.node)
        if word.takes_jobs and word.holder is Holder.NOBODY and not word.error:
            return self._closed(incident, f"somebody resumed {incident.node} while it waited for a spare")
        if theirs := _of_another(incident, word):
            return self._closed(incident, theirs)
        with self._choosing:
            view, aside = self._world.view(), self.aside.copy()
            now = {name: why for name, (at, why) in aside.items() if 0 <= view.at - at < ASIDE}
            spare, why = choose(incident, view, self._policy, now)
            if spare:
                chosen = moved(incident, Step.VERIFY, spare=spare)
                self._store.write(chosen)
                return chosen
        each = "; ".join(f"{name}: {problem}" for name, problem in why.items())
        note = f"no spare for {incident.node}: {each or 'no node of the group gpuprov_spares is a spare now'}"
        note = one_line(note, 600)
        # Uncheckable spares were already reported; a short network failure needs no second message.
        if not aside or view.at - incident.opened > PATIENCE:
            self._tell(incident, "no-spare", note, "add a spare, or repair one and run gpuprov return")
        return _again(incident, note)

    def _verify(self, incident: Incident) -> Incident:
        spare, scheduler = incident.spare, self._world.scheduler
        word = self._word(spare)
        if word.error:
            return _again(incident, f"the scheduler does not answer for {spare}: {word.error}")
        if word.holder is Holder.NOBODY and word.lease and word.lease.placed == placement(incident):
            return moved(incident, Step.PLACE)  # an earlier watch has just put it into service
        if word.holder is not Holder.US or self._has_failed(spare):
            return self._other(incident, f"{spare} is no longer a spare: {word.state} {word.reason}")
        mine = f"{incident.id} takes the place of {incident.node}"
        # Another machine's watch may want the same spare; the last mark wins.
        problem = "" if incident.id in word.reason else scheduler.mark({spare: mine}).get(spare, "")
        if problem:
            return self._other(incident, f"{spare} cannot be marked: {problem}")
        checked = self._world.verify(spare)
        self.checked(spare, checked)
        if checked.again and spare not in self.aside:
            return _again(incident, f"waiting to check {spare}: {checked.why}")
        if checked.again:
            self._say(f"{incident.id}: {spare} {self.aside[spare][1]}")
            return moved(incident, Step.CHOOSE, spare="")
        word = self._word(spare)
        if word.error:
            return _again(incident, f"the scheduler does not answer for {spare}: {word.error}")
        if word.holder is not Holder.US or incident.id not in word.reason:
            return self._other(
                incident, f"somebody else took {spare} in the meantime: {word.state} {word.reason}"
            )
        if not checked.passed:
            self._spare_no_more(spare, checked.why)
            return self._other(incident, f"{spare} failed its last check: {checked.why}")
        self._store.write_validated(spare, self._world.now(), "pass", checked.run)
        return moved(incident, Step.PLACE)

    def _place(self, incident: Incident) -> Incident:
        spare, scheduler = incident.spare, self._world.scheduler
        word = self._word(spare)
        if word.holder is Holder.OTHERS:
            return self._other(incident, f"somebody else took {spare}: {word.reason}")
        if word.holder is Holder.US and incident.id not in word.reason:
            return self._other(incident, f"another run of gpuprov has {spare}: {word.reason}")
        if word.holder is Holder.US and self._has_failed(spare):
            return self._other(incident, f"{spare} has failed")
        seen, failed = self._world.view().seen.get(spare), self._word(incident.node)
        problem = word.error or failed.error
        if theirs := _of_another(incident, failed):
            # Two watches drained the node at the same moment, and the other's reason was set last.
            if word.holder is Holder.US and (undone := scheduler.mark({spare: SPARE}).get(spare, "")):
                return _again(incident, f"{theirs}; {spare} cannot be marked as a spare: {undone}")
            return self._closed(replace(incident, spare=""), theirs)
        if not problem and seen is not None and (seen.fatal or seen.silent):
            problem = seen.cause or seen.trouble
        problem = problem or self._world.lease.note(incident)
        problem = problem or scheduler.join(spare, incident.node, failed.pools)
        if not problem and word.holder is Holder.US:
            problem = scheduler.resume([spare]).get(spare, "")
        if not problem:
            word = self._word(spare)
            if word.takes_jobs:
                return self._placed(replace(incident, pools=failed.pools))
            problem = word.error or f"it takes no jobs: {word.state} {word.reason}"
        if self._tries.get((incident.id, Step.PLACE.value), 0) + 1 < PLACE_TRIES:
            return _again(incident, f"waiting until {spare} takes jobs: {problem}")
        if undone := scheduler.drain({spare: f"{incident.id} could not be put into service"}).get(spare, ""):
            return _again(
                incident, f"{spare} cannot be put into service ({problem}), nor be drained: {undone}"
            )
        self._tries.pop((incident.id, Step.PLACE.value), None)
        self._tell(
            incident,
            "not-placed",
            f"{spare} could not take the place of {incident.node}: {problem}",
            f"scontrol show node {spare}",
        )
        return self._other(incident, f"{spare} could not be put into service: {problem}")

    def _placed(self, incident: Incident) -> Incident:
        at, seconds = self._world.now(), self._world.view().age(incident)
        text = (
            f"{incident.node} failed and was drained ({incident.cause}); {incident.spare} took its place "
            f"after {seconds:.0f} s. Action for {incident.node}: {incident.action}"
        )
        self._tell(incident, "replaced", text, f"gpuprov return {incident.node}{self._nodes}")
        scheduler = self._world.scheduler
        if isinstance(scheduler, Pools) and (problem := scheduler.leave(incident.node)):
            self._say(f"{incident.id}: {incident.node} keeps its pools: {problem}")
        return moved(incident, Step.EVIDENCE, placed=at, placed_number=self._store.next_number())

    def _evidence(self, incident: Incident) -> Incident:
        self._word(incident.node)
        problem = self._world.evidence(incident)
        note = f"no evidence could be kept: {problem}" if problem else ""
        return moved(incident, Step.REPAIR, note)

    def _other(self, incident: Incident, why: str) -> Incident:
        """Choose another spare."""
        self._say(f"{incident.id}: {why}")
        tried = (*incident.tried, incident.spare)
        return moved(incident, Step.CHOOSE, why, spare="", tried=tried)

    def checked(self, spare: str, checked: Checked) -> None:
        """Count an inconclusive check; after a few, set the spare aside and report it."""
        if not checked.again:
            self._unsure.pop(spare, None)
            self.aside.pop(spare, None)
            return
        self._unsure[spare] = self._unsure.get(spare, 0) + 1
        if checked.elsewhere or self._unsure[spare] >= CHECK_TRIES:
            self.aside[spare] = self._world.now(), f"could not be checked: {checked.why}"

    def _spare_no_more(self, spare: str, why: str) -> None:
        """Send an unfit spare to repair like any failed node, within the hourly limit."""
        with self._choosing:
            if self._has_failed(spare):
                return
            view = self._world.view()
            if lost_spares(view) < self._policy.spares_hourly:
                number = self._store.next_number()
                self._store.write(new(spare, view.at, one_line(why, 300), was_spare=True, number=number))

    def _has_failed(self, spare: str) -> bool:
        """Whether a spare has an incident of its own: however well it looks, people repair it first."""
        return any(one.node == spare and one.holds_node for one in self._store.incidents())

    def _spare_failed(self, incident: Incident) -> None:
        text = f"{incident.node} is no longer a spare: {incident.cause}"
        self._tell(incident, "spare-failed", text, f"gpuprov return {incident.node}{self._nodes}")

    def _stuck(self, incident: Incident, note: str) -> Incident:
        """Report a failed node that still gets jobs."""
        self._tell(incident, "not-drained", note, "drain it by hand, or fix the scheduler")
        return _again(incident, note)

    def _closed(self, incident: Incident, why: str) -> Incident:
        return moved(incident, Step.CLOSED, why, closed=self._world.now())

    def _tell(self, incident: Incident, kind: str, text: str, advice: str) -> None:
        self._world.tell(
            Message(
                id=f"{incident.id}.{kind}",
                kind=kind,
                at=self._world.now(),
                text=text,
                node=incident.node,
                spare=incident.spare,
                incident=incident.id,
                cause=incident.cause,
                action=incident.action,
                device=incident.device,
                serial=incident.serial,
                next=advice,
            )
        )


_OLD = 60.0  # seconds after which an unstarted incident needs a new health result


def _of_another(incident: Incident, word: Scheduled) -> str:
    """Return a message if the failed node is now drained for another run of gpuprov, or ""."""
    mine = incident.id in word.reason or by_the_node_itself(word.reason)
    if word.error or word.holder is not Holder.US or mine:
        return ""
    return f"another run of gpuprov has {incident.node}: {word.reason}"


def _again(incident: Incident, note: str) -> Incident:
    return moved(incident, incident.step, note)


def _sentence(incident: Incident) -> str:
    """Describe an incident's latest step, for the log."""
    spare, node = incident.spare, incident.node
    return {
        Step.CHOOSE: f"{node} is out of service; choosing a spare",
        Step.VERIFY: f"checking {spare} once more",
        Step.PLACE: f"{spare} passed; putting it into service",
        Step.EVIDENCE: f"{spare} took the place of {node}" if spare else f"{node} is no longer a spare",
        Step.REPAIR: f"{node} waits for repair: gpuprov return {node}",
        Step.CLOSED: f"closed: {incident.note}",
    }.get(incident.step, incident.step.value)
