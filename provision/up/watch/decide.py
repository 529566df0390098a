"""Decision on which nodes to take out of service now and which to leave, with reasons (pure).

When in doubt, nothing is done: a fault costs a job, a wrong drain of half a fleet costs all of them. People
are told once about each action held back, for as long as it lasts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from provision.checks.pairs.pairing import RACK
from provision.fleet import Fleet
from provision.node_names import fold, natural
from provision.remote.schedulers import Holder, Scheduled
from provision.text import many, spelled
from provision.up.watch import breaker
from provision.up.watch.incidents import Incident, Step, by_the_node_itself, new
from provision.up.watch.policy import SPARES, Policy, distance, fits
from provision.up.watch.roles import Role, roles
from provision.up.watch.seen import Seen

HOUR = 3600.0


@dataclass(frozen=True)
class View:
    """All data that a decision depends on, at one moment. `at`: seconds since 1970.

    `scheduled`: the scheduler's answers, seconds old at most; a missing node is one with unknown state."""

    at: float
    fleet: Fleet
    seen: Mapping[str, Seen]
    scheduled: Mapping[str, Scheduled]
    incidents: Sequence[Incident]
    validated: Mapping[str, float] = field(default_factory=dict)  # spare → time of its last pass
    unscheduled: Collection[str] = ()  # nodes without a scheduler: watched and reported, never drained
    ages: Mapping[str, float] = field(default_factory=dict)  # incident → seconds since it was opened (Ages)
    silences: Mapping[str, float] = field(default_factory=dict)  # silent node → seconds (Silences)
    breaker: str | None = None  # why the breaker of all drains is open
    counts: float = HOUR  # seconds for which failures count towards it; fewer after a person closed it

    @property
    def roles(self) -> dict[str, Role]:
        return roles(self.fleet, self.incidents)

    def silence(self, node: str) -> float:
        """Seconds for which a node has been silent."""
        return self.silences.get(node, self.at - self.seen[node].since)

    def within_an_hour(self, incident: Incident) -> bool:
        """Return whether it was opened within the last hour."""
        return self.age(incident) < HOUR

    def age(self, incident: Incident) -> float:
        """Return the seconds since it was opened."""
        return self.ages.get(incident.id, self.at - incident.opened)

    @property
    def acts(self) -> bool:
        """Whether any node may be drained; False in a watch that follows."""
        return any(name in self.scheduled for name in self.fleet.nodes)


class Ages:
    """Ages of incidents by a monotonic clock, so that hourly limits survive steps of the wall clock.

    The wall clock counts at first sight, and a time in its future then means just now."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._opened: dict[str, float] = {}

    def of(self, incidents: Sequence[Incident], at: float) -> dict[str, float]:
        """Return the seconds since each incident was opened; `at`: the wall clock's time."""
        now = self._clock()
        self._opened = {
            one.id: self._opened.get(one.id, now - max(0.0, at - one.opened)) for one in incidents
        }
        return {name: now - opened for name, opened in self._opened.items()}


@dataclass(frozen=True)
class Held:
    """A lasting condition for people. `kind`: see docs/watch.md; `held.*`: nodes left in service."""

    kind: str
    nodes: tuple[str, ...]
    why: str

    @property
    def key(self) -> str:
        """Identity for hourly reports: the kind, plus the incident if only that one is stopped."""
        return f"{self.kind}.{self.nodes[0]}" if self.kind == "incident-stuck" else self.kind

    @property
    def text(self) -> str:
        failed = self.kind.startswith("held.") or (self.kind == breaker.KIND and self.nodes)
        return f"{fold(self.nodes, 200)}: left in service: {self.why}" if failed else self.why


@dataclass(frozen=True)
class Decision:
    """Decision of one round; `opened` incidents are stored before any action, `held` ones are not done.

    `common`: why the breaker of all drains must open now, or ""."""

    opened: tuple[Incident, ...] = ()
    held: tuple[Held, ...] = ()
    common: str = ""


def suspects(view: View, policy: Policy) -> list[str]:
    """Return the nodes to look up in the scheduler now: failed ones, and ones silent for long."""
    busy = {one.node for one in view.incidents if one.holds_node}
    return [
        name
        for name, one in view.seen.items()
        if name not in busy and (one.fatal or (one.silent and view.silence(name) >= policy.down_minutes * 60))
    ]


def decide(view: View, policy: Policy) -> Decision:
    """Return the incidents to open now."""
    candidates = suspects(view, policy)
    opened: list[Incident] = []
    role = view.roles
    stopped, held = _too_silent(view, policy, role)
    recent = {one.node for one in view.incidents if one.holds_node and view.age(one) < view.counts}
    common = ""
    if view.breaker is None and view.acts:
        common = breaker.common_cause(view.seen, view.scheduled, recent, view.at - view.counts, policy)
    open_breaker = common if view.breaker is None else view.breaker
    # The earliest failure goes first; at the same time, a certain fault goes before a silent node.
    for name in sorted(
        candidates, key=lambda name: (view.seen[name].silent, view.seen[name].since, natural(name))
    ):
        if role.get(name) is Role.REPAIR or name not in view.fleet.nodes or name in stopped:
            continue
        outcome = _one(name, view, policy, role, opened, open_breaker)
        if isinstance(outcome, Incident):
            opened.append(outcome)
        elif outcome is not None:
            held.append(outcome)
    if view.breaker is not None and view.acts and not any(one.kind == breaker.KIND for one in held):
        held.append(Held(breaker.KIND, (), breaker.stopped(view.breaker)))
    return Decision(tuple(opened), _together(held), common)


def _too_silent(view: View, policy: Policy, role: Mapping[str, Role]) -> tuple[Collection[str], list[Held]]:
    """Return nodes to leave alone because too many are silent at once, with the reason.

    A node already out of service may be switched off for its repair and does not count. If the rack of each
    silent node is known, only these racks are left alone."""
    nodes = [
        name
        for name in view.seen
        if role.get(name) in (Role.SERVICE, Role.SPARE)
        and not _taken(view.scheduled.get(name), role[name] is Role.SPARE)
    ]
    silent = sorted((name for name in nodes if view.seen[name].silent), key=natural)
    rack = {name: view.fleet.nodes[name].variables.get(RACK) for name in nodes}
    dark = Counter(rack[name] for name in silent)
    if not policy.too_silent(len(silent), len(nodes)):  # not the fleet, but perhaps a rack
        sizes = Counter(rack.values())
        dark = Counter(
            {one: count for one, count in dark.items() if one and policy.too_silent(count, sizes[one])}
        )
        silent, nodes = ([name for name in names if rack[name] in dark] for names in (silent, nodes))
    if not silent:
        return (), []
    others = sum(one.silent and name in role and name not in rack for name, one in view.seen.items())
    where = "" if None in dark else f" of rack {', '.join(sorted(map(str, dark)))}"
    more = f"; not counted: {others:,} silent and out of service already" if others else ""
    why = (
        f"{many(len(silent), 'node')} of {len(nodes):,} silent at once ({fold(silent, 120)}): the fault may "
        f"be this machine or its network, so no node{where} is drained{more}. Drain a node that is switched "
        "off on purpose in its scheduler"
    )
    stopped = view.seen if None in dark else [name for name in rack if rack[name] in dark]
    return stopped, [Held("held.silent", tuple(silent), why)]


def _taken(word: Scheduled | None, was_spare: bool) -> bool:
    """Return whether a person or a run of gpuprov (`up`, a burn-in, another watch) took the node out."""
    if word is None or word.error:
        return False
    ours = word.holder is Holder.US and not was_spare and not by_the_node_itself(word.reason)
    return ours or word.holder is Holder.OTHERS


def _one(
    name: str,
    view: View,
    policy: Policy,
    role: Mapping[str, Role],
    opened: Sequence[Incident],
    open_breaker: str,
) -> Incident | Held | None:
    seen, word = view.seen[name], view.scheduled.get(name)
    was_spare = role[name] is Role.SPARE
    if name in view.unscheduled:
        why = f"no scheduler that gpuprov can ask, so it is not drained: {seen.cause}"
        return Held("held.unscheduled", (name,), why) if seen.fatal else None
    if word is None:
        return None  # queried, but not answered yet
    if word.error:
        return Held("held.scheduler", (name,), f"no answer from the scheduler: {word.error}")
    if _taken(word, was_spare):
        return None
    cause, action = seen.cause, seen.action
    if not seen.fatal:
        if word.takes_jobs or not word.down:
            return None  # silent only for this watch
        silent = spelled(int(view.silence(name)))
        cause = f"down: no answer for {silent}, and the scheduler has it as {word.state}"
        action = "investigate"
    # A node drained by its own program was already counted, and is only taken over.
    if not was_spare and open_breaker and word.holder is Holder.NOBODY:
        return Held(breaker.KIND, (name,), breaker.stopped(open_breaker))
    if not was_spare and (limit := _limit(name, word, view, policy, opened)):
        return limit
    more = {"action": action, "device": seen.device, "serial": seen.serial, "was_spare": was_spare}
    return new(name, view.at, cause, **more)


def _limit(name: str, word: Scheduled, view: View, policy: Policy, opened: Sequence[Incident]) -> Held | None:
    recent = [
        one
        for one in view.incidents
        if view.within_an_hour(one) and not one.was_spare and one.step is not Step.CLOSED
    ]
    count = len(recent) + sum(not one.was_spare for one in opened)
    if count >= policy.hourly:
        taken = f"{many(count, 'node')} taken out of service within an hour"
        why = f"{taken}, which is the limit (gpuprov_watch.hourly)"
        return Held("held.hourly", (name,), why)
    if (rack := view.fleet.nodes[name].variables.get(RACK)) is not None:
        mates = {other.name for other in view.fleet.nodes.values() if other.variables.get(RACK) == rack}
        count = sum(one.node in mates and not one.was_spare for one in (*recent, *opened))
        if count >= policy.rack_hourly:
            taken = f"{many(count, 'node')} of rack {rack} taken out of service within an hour"
            return Held("held.rack", (name,), f"{taken}, which is the limit (gpuprov_watch.rack_hourly)")
    out = {one.node for one in (*view.incidents, *opened) if one.holds_node and not one.was_spare}
    for pool in word.pools:
        members = [other for other, its in view.scheduled.items() if pool in its.pools and not its.error]
        unknown = [other for other in out if (its := view.scheduled.get(other)) is None or its.error]
        members += unknown  # they may belong to it
        mine = [other for other in members if other in out]
        if len(mine) >= policy.out_of(len(members)):
            why = (
                f"{len(mine)} of the {len(members)} nodes of {pool} are already out of service for a fault, "
                "which is the limit (gpuprov_watch.share)"
            )
            return Held("held.share", (name,), why)
    return None


def _together(held: Sequence[Held]) -> tuple[Held, ...]:
    """Merge equal reasons, with all their nodes."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in held:
        found.setdefault((one.kind, one.why), []).extend(one.nodes)
    return tuple(Held(kind, tuple(nodes), why) for (kind, why), nodes in found.items())


def ready(spare: str, view: View, policy: Policy) -> str:
    """Return why a spare cannot go into service now, or ""."""
    seen, word = view.seen.get(spare), view.scheduled.get(spare)
    if seen is None:
        return "no health result yet"
    if not seen.healthy:
        return seen.cause or seen.trouble or f"its verdict is {seen.verdict}"
    if spare in view.unscheduled:
        return "it has no scheduler that gpuprov can ask"
    if word is None or word.error:
        return f"no answer from the scheduler: {word.error if word else 'not asked yet'}"
    if word.holder is Holder.OTHERS:
        return f"somebody else drained it: {word.reason}"
    if word.holder is Holder.NOBODY:
        return "it is in service (gpuprov watch spare sets an idle one aside)"
    if word.jobs:
        return f"job {word.jobs[0].id} still runs on it"
    at = view.validated.get(spare)
    if at is None:
        return "it has not been validated yet"
    if view.at - at > policy.validated_hours * HOUR:
        return f"it was validated {spelled(int(view.at - at))} ago"
    return ""


def lost_spares(view: View) -> int:
    """Count the spares that went to repair within the last hour and are still there."""
    return sum(one.was_spare and one.holds_node and view.within_an_hour(one) for one in view.incidents)


def spares_in_service(view: View) -> list[Held]:
    """Report spares that take jobs without an incident that explains it.

    They may have replaced failed nodes for a watch with lost state, or elsewhere, so they are left alone."""
    taken = {one.spare for one in view.incidents if one.holds_spare}
    found = [
        name
        for name, role in view.roles.items()
        if role is Role.SPARE
        and name not in taken
        and (word := view.scheduled.get(name))
        and not word.error
        and word.holder is Holder.NOBODY
    ]
    if not found:
        return []
    why = (
        f"{fold(found, 200)}: in the group gpuprov_spares and in service, for no incident known here, "
        "so left alone. Set an idle one aside (gpuprov watch spare); take one that serves out of the group"
    )
    return [Held("spare-in-service", tuple(found), why)]


def spares_gone(view: View) -> list[Held]:
    """Report that the inventory has spares but none is a spare now."""
    spares = [name for name in view.fleet.groups.get(SPARES, ()) if name in view.fleet.nodes]
    if not spares or Role.SPARE in view.roles.values():
        return []
    why = f"no spare is left ({fold(spares, 200)}: in service or in repair), so the next failed node waits"
    return [Held("last-spare", (), why)]


def choose(
    incident: Incident, view: View, policy: Policy, aside: Mapping[str, str] | None = None
) -> tuple[str, dict[str, str]]:
    """Return the best spare for an incident, or "", and why each other one is unsuitable.

    `aside`: spares that could not be checked a moment ago, with the reason."""
    role, node = view.roles, view.fleet.nodes.get(incident.node)
    if node is None:
        return "", {}
    if (lost := lost_spares(view)) >= policy.spares_hourly:
        limit = (
            f"{many(lost, 'spare')} went to repair within an hour, which is the limit "
            "(gpuprov_watch.spares_hourly): the fault may be this machine's or the check's"
        )
        left = [name for name, one in role.items() if one is Role.SPARE]
        return "", {fold(left): limit} if left else {}
    taken = {one.spare for one in view.incidents if one.holds_spare and one.id != incident.id}
    why: dict[str, str] = {}
    for name, one in view.fleet.nodes.items():
        if role[name] is not Role.SPARE:
            continue
        if name in taken:
            why[name] = "it is replacing another node"
        elif name in incident.tried:
            why[name] = "its last check failed"
        elif aside and name in aside:
            why[name] = aside[name]
        elif not fits(one, node, policy):
            why[name] = "its SKU, stack or a variable of gpuprov_watch.same differs"
        else:
            why[name] = ready(name, view, policy)
    fit = [name for name, problem in why.items() if not problem]
    best = min(
        fit,
        key=lambda name: (
            distance(view.fleet.nodes[name], node, policy),
            -view.validated[name],
            natural(name),
        ),
        default="",
    )
    return best, {name: problem for name, problem in why.items() if problem}


class Telling:
    """Filter that reports each kind of condition at most once an hour, an open breaker only once.

    It reports a kind again once the held nodes have doubled, since a rack falls silent node by node."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}

    def news(self, held: Sequence[Held], at: float) -> list[Held]:
        """Return the conditions to report now."""
        stays = {breaker.KIND} & {one.key for one in held}
        self._told = {key: told for key, told in self._told.items() if key in stays or at - told[0] < HOUR}
        found = []
        for one in held:
            _, count = self._told.get(one.key, (0.0, 0))
            grown = one.kind.startswith("held.") and len(one.nodes) >= 2 * count
            if not count or grown:
                self._told[one.key] = at, max(1, len(one.nodes))
                found.append(one)
        return found
