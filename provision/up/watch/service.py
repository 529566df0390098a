"""The watch itself: reads health changes, queries the scheduler, decides, and acts.

One thread reads health and decides. A few others advance incidents, so that a spare's check delays nothing
else. State that must survive a kill is stored before each action."""

from __future__ import annotations

import concurrent.futures
import shlex
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from provision.desired import inventory
from provision.errors import RunFolderError
from provision.fleet import Fleet
from provision.node_names import fold
from provision.remote.schedulers import Holder, Leases, Scheduled
from provision.text import many, one_line
from provision.up.watch import heartbeat
from provision.up.watch.alerts import is_over
from provision.up.watch.breaker import Breaker
from provision.up.watch.decide import (
    Ages,
    Held,
    Telling,
    View,
    decide,
    spares_gone,
    spares_in_service,
    suspects,
)
from provision.up.watch.incidents import Incident, Step, Store
from provision.up.watch.lease import Holding, LostLeaseError
from provision.up.watch.policy import Policy
from provision.up.watch.renewal import Renewal
from provision.up.watch.roles import Role, roles, serving
from provision.up.watch.seen import Seen, Silences, seen
from provision.up.watch.steps import Checked, Message, Steps
from provision.up.watch.surroundings import Checks, Pace, People, Stream
from provision.up.watch.take_over import strays
from provision.validate.status.status import NodeStatus

AT_ONCE = 4  # incidents advanced at the same time


class Watch:
    """One fleet under watch. The caller locks the store (Store.alone). `say`: writes a log line."""

    def __init__(
        self,
        fleet: Fleet,
        policy: Policy,
        store: Store,
        stream: Stream,
        scheduler: Leases,
        checks: Checks,
        people: People,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        unscheduled: Collection[str] = (),
        steady: Callable[[], float] = time.monotonic,
        pace: Pace | None = None,
        systemd: Callable[[str], None] = lambda _lines: None,
    ) -> None:
        self.scheduler, self._unscheduled = scheduler, unscheduled
        self._fleet, self._policy, self._store = fleet, policy, store
        self._stream, self._checks, self._say, self._clock = stream, checks, say, clock
        self._people = people
        self._seen: dict[str, Seen] = {}
        self._words: dict[str, tuple[float, Scheduled]] = {}  # node → time of the query, its answer
        self.lease = Holding(store, scheduler)
        self._nodes = f" {inventory.arguments(fleet)}"  # as command-line arguments
        self._steps = Steps(self, store, policy, say, self._nodes)
        self._pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE, "incident")
        self._running: dict[str, tuple[Incident, concurrent.futures.Future[tuple[Incident, float]]]] = {}
        self._stuck: dict[str, Held] = {}  # incident → the error that stopped it
        self._not_before: dict[str, float] = {}
        self._renewal = Renewal(self, store, policy, say, self._steps.checked)
        self.pace = pace or Pace()
        self._telling, self._steady, self._ages = Telling(), steady, Ages(steady)
        self._silences = Silences(steady)
        self._held: dict[str, str] = {}  # lasting condition (Held.key) → id of its message
        self._told: dict[str, Message] = {}  # messages of lasting and ended conditions
        self._breaker = Breaker(scheduler, say)
        self._full = ""  # why the folder cannot be written
        self._unanswered: dict[str, int] = {}  # node → consecutive unanswered queries
        self._last_beat, self._asked_all, self._stopped, self._unexported = 0.0, 0.0, False, ""
        self._systemd, self._began, self._failures = systemd, time.time(), 0
        # Node → time of its latest result (or the start) and its interval.
        self._results = dict.fromkeys(fleet.nodes, (time.monotonic(), 60.0))
        self._lost: dict[str, tuple[str, str]] = {}  # spare → why it lacks pools, message id

    # The protocol World, on which steps act.

    def now(self) -> float:
        return self._clock()

    def view(self) -> View:
        """Return the current view, with scheduler states of spares that are seconds old."""
        role = roles(self._fleet, self._store.incidents())
        self._ask([name for name, one in role.items() if one is Role.SPARE], self.pace.ask_some)
        return self._known()

    def _known(self) -> View:
        incidents, at = self._store.incidents(), self.now()
        validated = {
            name: float(one["at"])
            for name, one in self._store.validated().items()
            if one.get("verdict") == "pass"
            and isinstance(one.get("at"), int | float)
            and one["at"] <= at  # a validation stamped by a clock that was ahead proves nothing
        }
        words = {name: word for name, (_, word) in self._words.copy().items()}
        ages = self._ages.of(incidents, at)
        mine, seen_now, breaker = self.lease.part(self._fleet), dict(self._seen), self._breaker
        more = (self._unscheduled, ages, self._silences.seconds(), breaker.why, breaker.counts)
        return View(at, mine, seen_now, words, incidents, validated, *more)

    def verify(self, spare: str) -> Checked:
        return self._checks.verify(spare)

    def evidence(self, incident: Incident) -> str:
        return self._checks.evidence(incident)

    def tell(self, message: Message) -> None:
        self._people.tell(message)

    # The loop.

    def run(self) -> None:
        """Watch until `stop`."""
        self._greet()
        try:
            while not self._stopped:
                try:
                    self.round(self.pace.wait)
                except Exception as error:  # the next round may succeed; if none does, the heartbeat stops
                    self._failed(error)
        finally:
            self._systemd("STOPPING=1")
            self._checks.stop()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._renewal.stop()

    def stop(self) -> None:
        """End after this round; work in progress continues at the next start."""
        self._stopped = True
        self._checks.stop()

    def round(self, wait: float) -> None:
        """Process changes, decide, and advance incidents by a step."""
        began = time.monotonic()
        if not self._take(self._stream.changes(wait)):
            # A thousand nodes change every few milliseconds, and only failures are urgent.
            time.sleep(max(0.0, began + self.pace.least - time.monotonic()))
        if all_of_them := time.monotonic() - self._asked_all > self.pace.ask_all or not self._asked_all:
            self._asked_all = time.monotonic()
            self._ask(list(self._fleet.nodes), 0.0)
            away = [one.node for one in self._store.incidents() if one.step is Step.REPAIR and one.holds_node]
            mute = {name for name, (_, word) in self._words.copy().items() if word.error}.difference(away)
            self._unanswered = {name: self._unanswered.get(name, 0) + 1 for name in sorted(mute)}
            self._silences.restart(mute)
            self._breaker.read()
            self._keep_leases()
            self._forget_aside()
            self._keep_pools()
        view = self._known()
        if failed := suspects(view, self._policy):
            self._ask(failed, self.pace.ask_some)
            view = self._known()
        decision = decide(view, self._policy)
        if silent := [name for one in decision.held if one.kind == "held.silent" for name in one.nodes]:
            self._silences.restart(silent)
            # A person may have drained them just before: an answer from before they fell silent is too old.
            ages = [age for name in silent if (age := view.at - view.seen[name].since) >= 0]
            self._ask(silent, min([self.pace.ask_some, *ages]))
            decision = decide(view := self._known(), self._policy)
        if decision.common:
            self._breaker.open(decision.common)
        held = [*decision.held, *spares_gone(view), *self._serving(view), *self._troubles()]
        for incident in decision.opened:
            name = incident.node
            try:
                self._store.write(replace(incident, number=self._store.next_number()))
                self._say(f"{incident.id}: {name} failed: {incident.cause}")
            except RunFolderError as error:  # an action that cannot be recorded is not taken
                why = f"{name} failed ({incident.cause}) and is not drained, since {error.what}"
                held.append(Held("incident-stuck", (name,), why))
        self._tell_held(held)
        if all_of_them:
            known = {one.id: one for one in self._store.incidents()}
            lasting = {*self._held.values(), *(told for _, told in self._lost.values())}
            self._people.settle(lambda message: is_over(message, known, lasting, view.validated))
        self._forward()
        self._renewal.go_on(view)
        self._beat(view)

    def _failed(self, error: Exception) -> None:
        """Report a round that failed with an exception, and continue after a moment."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        why = f"the watch fails: {type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        self._failures += 1
        self._systemd(f"STATUS={one_line(why, 400)}")
        self._tell_held([*self._troubles(), Held("watch-failed", (), one_line(why, 400))])
        time.sleep(self.pace.wait)

    def _troubles(self) -> list[Held]:
        """Return conditions that keep this watch from its work and concern no single node."""
        found = list(self._stuck.values())
        for name, why in self._store.damaged.items():
            found.append(Held("incident-stuck", (name,), f"{why}; this incident is left alone until then"))
        if aside := self._steps.aside.copy():
            why = next(iter(aside.values()))[1]
            found.append(Held("spare-unchecked", tuple(aside), f"{fold(aside, 200)} {why}"))
        if trouble := self.lease.trouble.copy():
            why = f"the lease of {fold(trouble, 200)} cannot be written: {next(iter(trouble.values()))}"
            found.append(Held("no-lease", tuple(trouble), why))
        if mute := [name for name, times in self._unanswered.items() if times > 1]:  # once may be a restart
            why = f"the scheduler does not answer for {fold(mute, 200)}, so nothing is done to them: "
            found.append(Held("no-scheduler", tuple(mute), f"{why}{self._words[mute[0]][1].error}"))
        if self.lease.unattended:
            found.append(Held("nobody-acts", tuple(self.lease.others.copy()), self.lease.unattended))
        if self._full:
            why = f"{self._full}: no failed node can be drained until there is room, and no history is kept"
            found.append(Held("disk-full", (), why))
        return found

    def _beat(self, view: View) -> None:
        """Show that the watch is working; systemd kills one that does not (unit.py)."""
        if time.monotonic() - self._last_beat < self.pace.beat and self._last_beat:
            return
        self._last_beat = time.monotonic()
        kinds = {self._told[key].kind for key in self._held} | ({"pool-lost"} if self._lost else set())
        results = {name: (time.monotonic() - at, every) for name, (at, every) in self._results.items()}
        counts = heartbeat.counted(view, self._policy, results, self._began, self._failures)
        try:
            row = heartbeat.beat(self._store.path, self._fleet.pattern, kinds, counts)
            self._full = ""
        except OSError as error:
            self._full = f"{self._store.path} cannot be written ({error.strerror})"
            row = {"at": time.time(), "held": sorted({*kinds, "disk-full"}), "counts": counts}
        self._systemd(f"READY=1\nWATCHDOG=1\nSTATUS={heartbeat.status(row, self.lease.follows)}")
        before, self._unexported = self._unexported, ""
        if self._policy.metrics:  # another disk may have room
            self._unexported = heartbeat.export(self._policy.metrics, row)
        if self._unexported not in ("", before):
            self._say(self._unexported)

    def _take(self, changed: Sequence[NodeStatus]) -> bool:
        """Process health changes; return whether a node failed."""
        rows = []
        for status in changed:
            at, before = self.now(), self._seen.get(status.node)
            found = seen(status, at, before)
            if not found.same_as(before):
                rows.append(found.row(at))
                if found.fatal and not self.lease.acts_on(status.node):
                    self._say(f"{status.node} failed ({found.cause}), and is left to the watch that has it")
            self._seen[status.node] = found
            self._silences.saw(found)
            if status.age is not None and status.document is not None:
                self._results[status.node] = time.monotonic() - status.age, status.document.interval
        try:
            if rows:
                self._store.remember(rows)
        except RunFolderError as error:  # decisions do not need the history
            self._full = error.what
        return any(self._seen[status.node].fatal for status in changed)

    def _ask(self, nodes: Sequence[str], age: float) -> None:
        """Query the scheduler for these nodes unless its last answer is younger than `age` seconds."""
        now = time.monotonic()
        old = [name for name in nodes if name not in self._words or now - self._words[name][0] >= age]
        old = [name for name in old if name not in self._unscheduled]
        if not old:
            return
        try:
            found = self.scheduler.look(old)
        except Exception as error:  # an unexpected answer counts as none
            found = dict.fromkeys(old, Scheduled("", error=f"{type(error).__name__}: {error}"))
        for name in old:
            self._words[name] = (time.monotonic(), found.get(name, Scheduled(name, error="no answer")))
        self.lease.saw(found)

    def _keep_leases(self) -> None:
        """Keep the leases of all nodes with a scheduler; report once which watch this one follows."""
        words = {name: word for name, (_, word) in self._words.copy().items()}  # all were queried just now
        try:
            self.lease.keep(words, self._store.incidents())
        except RunFolderError as error:  # a watch that cannot store its identity takes nothing
            self._full = error.what
        for ident, text in self.lease.news():
            stamp, advice = f"{self.lease.holder}.{ident}", f"gpuprov watch take-over{self._nodes}"
            self.tell(Message(stamp, "following", self.now(), text, next=advice))

    def _forward(self) -> None:
        """Start the next step of each open incident."""
        changed: list[str] = []
        for name, (incident, future) in list(self._running.items()):
            if future.done():
                del self._running[name]
                self._stuck.pop(name, None)
                try:
                    incident, pause = future.result()
                except Exception as error:  # it stops this incident alone
                    pause, why = self.pace.stuck, one_line(f"{type(error).__name__}: {error}", 300)
                    text = f"{name} ({incident.node}) is stopped by an error, and tried every minute: {why}"
                    self._stuck[name] = Held("incident-stuck", (incident.node,), text)
                self._not_before[name] = time.monotonic() + pause
                changed += (incident.node, incident.spare)
        # At once, because a node in unknown state counts for no pool, and the next one may fail now.
        self._ask([name for name in changed if name in self._fleet.nodes], 0.0)
        self._stuck = {
            one.id: self._stuck[one.id] for one in self._store.incidents() if one.id in self._stuck
        }
        for incident in self._store.incidents():
            due = self._not_before.get(incident.id, 0.0) <= time.monotonic() and not self._stopped
            mine = self.lease.acts_on(incident.node, incident.spare)
            if incident.is_open and due and mine and incident.id not in self._running:
                self._running[incident.id] = incident, self._pool.submit(self._on, incident)

    def _on(self, incident: Incident) -> tuple[Incident, float]:
        """Advance an incident as far as possible without waiting."""
        pause = 0.0
        try:
            while incident.is_open and not pause and not self._stopped:
                incident, pause = self._steps.advance(incident)
        except LostLeaseError:
            self._say(f"{incident.id}: left as it is, since this watch has lost a lease")
            pause = self.pace.ask_some
        return incident, pause

    # Spares.

    def _forget_aside(self) -> None:
        """Drop nodes that are no longer spares from those set aside."""
        role = roles(self._fleet, self._store.incidents())
        for name in self._steps.aside.keys() - {name for name, one in role.items() if one is Role.SPARE}:
            self._steps.aside.pop(name, None)

    def _serving(self, view: View) -> list[Held]:
        """Report unexplained spares in service and drains, unless an unreadable incident may explain them."""
        return [] if self._store.damaged else [*spares_in_service(view), *strays(view)]

    def _keep_pools(self) -> None:
        """Put spares in service back into pools they lost when slurm.conf was read again.

        A pool that the failed node has left too was removed by the site."""
        nobody = (0.0, Scheduled("", error="not asked"))
        in_service = serving(self._store.incidents())
        self._lost = {spare: told for spare, told in self._lost.items() if spare in in_service}
        for spare, incident in in_service.items():
            word, failed = (self._words.get(name, nobody)[1] for name in (spare, incident.node))
            lost = [pool for pool in incident.pools if pool in failed.pools and pool not in word.pools]
            if word.error or word.holder is Holder.OTHERS or not lost or not self.lease.acts_on(spare):
                self._lost.pop(spare, None)
                continue
            pools = ", ".join(lost)
            why = self.scheduler.join(spare, incident.node, lost)
            if not why:
                self._lost.pop(spare, None)
                self._say(f"{spare} was in {pools} no longer, and was put back: was slurm.conf read again?")
            elif self._lost.get(spare, ("",))[0] != why:
                at = self.now()
                self._lost[spare] = why, f"{at:.0f}.{spare}.pool-lost"
                text = f"{spare} is in {pools} no longer, where it replaces {incident.node}: {why}"
                advice = f"put it back, or drain {spare}"
                self.tell(Message(self._lost[spare][1], "pool-lost", at, text, spare, next=advice))

    # People.

    def _tell_held(self, held: Sequence[Held]) -> None:
        at, before, news = self.now(), self._held, self._telling.news(held, self._steady())
        for one in news:
            node = next(iter(one.nodes), "")
            status = f"gpuprov status --nodes {shlex.quote(node)}"
            advice = status if one.kind.startswith("held.") else f"gpuprov watch state{self._nodes}"
            stamp = f"{at:.0f}.{one.key}"
            self._told[one.key] = Message(stamp, one.kind, at, one.text, node, next=advice)
            self.tell(self._told[one.key])
        self._held = {one.key: self._told[one.key].id for one in held}
        for key in self._held.keys() - before.keys() - {one.key for one in news}:
            self.tell(self._told[key])  # it is back within the hour, so its alert opens again

    def _greet(self) -> None:
        incidents = self._store.incidents()
        role = roles(self._fleet, incidents)
        counts = {one: sum(each is one for each in role.values()) for one in Role}
        self._say(
            f"watching {many(len(self._fleet.nodes), 'node')}: {counts[Role.SERVICE]:,} in service, "
            f"{many(counts[Role.SPARE], 'spare')}, {counts[Role.REPAIR]:,} in repair"
        )
        for one in incidents:
            if one.is_open:
                self._say(f"{one.id}: continues with {one.step}")
