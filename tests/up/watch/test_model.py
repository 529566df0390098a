"""Drawn histories of a small fleet against the real watch: faults, silence, people, a scheduler that goes
away, clocks that are set, a full disk, and kills of the watch at any moment.

The watch is real (decide, incidents, steps, roles, store on a disk); its stream, scheduler, checks, people
and clocks are the model's. What has threads of its own is done at once here, so that a history repeats.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from provision.errors import RunFolderError
from provision.remote.protocol import unreachable
from provision.remote.schedulers import PREFIX, BreakerError, Holder, Scheduled
from provision.remote.schedulers.lease import Lease
from provision.remote.schedulers.slurm_breaker import limit
from provision.up.watch import breaker, renewal, service
from provision.up.watch.incidents import Incident, Step, Store
from provision.up.watch.policy import SPARES, Policy
from provision.up.watch.roles import Role, roles
from provision.up.watch.service import Watch
from provision.up.watch.steps import Checked, Message
from provision.up.watch.surroundings import Pace
from provision.validate.status.status import NodeStatus, judged
from tests.support.health_results import failed, printed, result
from tests.support.seed import times
from tests.support.watching import fleet

FLEET = fleet(12, 2)
NAMES = list(FLEET.nodes)
SPARE = list(FLEET.groups[SPARES])
GPUS = [name for name in NAMES if name not in FLEET.groups[SPARES]]
POLICY = Policy(hourly=3, share=40, rack_hourly=2, breaker_nodes=5, silent_nodes=4, silent_share=30)
HOUR, BEGUN = 3600.0, 1_800_000_000.0
STATUS = {
    (name, kind): judged(name, printed(make(node=name)))
    for name in NAMES
    for kind, make in (("good", result), ("bad", failed))
}
STATUS |= {(name, "silent"): judged(name, unreachable("no answer")) for name in NAMES}
ITSELF = f"{PREFIX}gpu3: GPU has fallen off the bus: power-cycle"
OF_AN_INCIDENT = re.compile(r"\d{8}T\d{6}Z-")


class Killed(BaseException):
    """The watch dies here."""


@dataclass
class World:
    """The fleet as it is, whatever the watch knows of it. Times are seconds since the history began, by a
    clock that nobody sets; `ahead`: what the wall clock is ahead of it."""

    folder: Path
    now: float = 0.0
    ahead: float = 0.0
    health: dict[str, str] = field(default_factory=lambda: dict.fromkeys(NAMES, "good"))
    since: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 0.0))
    resumed: dict[str, float] = field(default_factory=dict)  # node → when a person last did that
    failed: set[str] = field(default_factory=set)  # nodes that have had a verdict of their own
    was_bad: dict[str, float] = field(default_factory=dict)  # node → when it was last seen to be unfit
    reasons: dict[str, str] = field(default_factory=dict)  # why a node is drained
    pools: dict[str, list[str]] = field(default_factory=dict)
    leases: dict[str, Lease | None] = field(default_factory=dict)
    answers: dict[str, Checked] = field(default_factory=dict)  # spare → what its checks find
    failed_a_check: set[str] = field(default_factory=set)
    away: bool = False  # the scheduler
    full: bool = False  # the disk
    open: str | None = None
    permits: list[tuple[float, str]] = field(default_factory=list)
    drains: list[tuple[float, str]] = field(default_factory=list)  # by the watch, for a fault
    left_to_kill: int = -1
    wrong: list[str] = field(default_factory=list)
    clock_set: float = -2 * HOUR  # when that was last done
    began: float = 0.0  # when the watch last did

    def point(self) -> None:
        """A moment at which the watch may die."""
        if self.left_to_kill >= 0:
            self.left_to_kill -= 1
            if self.left_to_kill < 0:
                raise Killed

    def wall(self) -> float:
        return BEGUN + self.now + self.ahead

    def unfit(self, name: str) -> bool:
        """Whether a drain for a fault is right: its own verdict, now or a minute ago, or it is lost."""
        return self.health[name] != "good" or self.now - self.was_bad.get(name, -HOUR) <= 60.0

    # --- the scheduler, as Slurm is

    kind = "slurm"

    def look(self, nodes: Sequence[str]) -> dict[str, Scheduled]:
        self.point()
        return {name: self._word(name) for name in nodes}

    def _word(self, name: str) -> Scheduled:
        if self.away:
            return Scheduled(name, error="no answer from slurmctld")
        reason = self.reasons.get(name, "")
        down = self.health[name] == "silent"
        ours = reason.startswith(PREFIX)
        holder = Holder.US if ours else Holder.OTHERS if reason else Holder.NOBODY
        state = ("DOWN" if down else "IDLE") + ("+DRAIN" if reason else "")
        takes = not reason and not down
        pools = tuple(self.pools[name])
        return Scheduled(name, state, reason, holder, takes, down, pools, lease=self.leases.get(name))

    settle = 0.0

    def lease(self, leases: Mapping[str, Lease | None], before: Mapping[str, Lease | None]) -> dict[str, str]:
        def change(name: str) -> str:
            if self.leases.get(name) != before.get(name):
                return "another watch changed its lease just now"
            self.leases[name] = leases[name]
            return ""

        return self._changed(list(leases), change)

    def _changed(self, nodes: Sequence[str], change: Callable[[str], str]) -> dict[str, str]:
        self.point()
        if self.away:
            return dict.fromkeys(nodes, "no answer from slurmctld")
        problems = {name: why for name in nodes if (why := change(name))}
        self.point()
        return problems

    def drain(self, reasons: Mapping[str, str]) -> dict[str, str]:
        def change(name: str) -> str:
            if not self.reasons.get(name):
                self.reasons[name] = PREFIX + reasons[name]
                self._judge(name, reasons[name])
            return ""

        return self._changed(list(reasons), change)

    def _judge(self, name: str, reason: str) -> None:
        """What holds of each drain by the watch: its cause is this node's own, and no limit is exceeded."""
        if not OF_AN_INCIDENT.match(reason) or "could not be put into service" in reason:
            return
        if not self.unfit(name):
            self.wrong.append(f"{name} was drained without a fault of its own: {reason}")
        lost = self.now - self.since[name]
        alone = self.health[name] == "silent" and name not in self.failed and self.now - self.clock_set > HOUR
        if alone and lost < POLICY.down_minutes * 60:
            self.wrong.append(f"{name} was drained after {lost:.0f} s of silence")
        self.drains.append((self.now, name))
        recent = [other for at, other in self.drains if self.now - at < HOUR]
        if self.now - self.clock_set > HOUR:  # with a restart, that may forget the hour
            if len(recent) > POLICY.hourly:
                self.wrong.append(f"{len(recent)} nodes drained within an hour: {recent}")
            rack = FLEET.nodes[name].variables["gpuprov_rack"]
            mates = [other for other in recent if FLEET.nodes[other].variables["gpuprov_rack"] == rack]
            if len(mates) > POLICY.rack_hourly:
                self.wrong.append(f"{len(mates)} nodes of {rack} drained within an hour: {mates}")
        pool = [other for other in NAMES if "gpu" in self.pools[other]]
        out = [other for other in pool if OF_AN_INCIDENT.search(self.reasons.get(other, "")[:40])]
        if len(out) > POLICY.out_of(len(pool)):
            self.wrong.append(f"{out} are out of service at once")

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        def change(name: str) -> str:
            if self.reasons.get(name, "").startswith(PREFIX):
                if name not in self.waiting():
                    self.wrong.append(f"{name} was resumed, and was no spare")
                del self.reasons[name]
            return ""

        return self._changed(nodes, change)

    def waiting(self) -> list[str]:
        """Nodes that are spares, or about to take a place."""
        known = roles(FLEET, Store(self.folder).incidents())
        return [name for name, role in known.items() if role is Role.SPARE]

    def mark(self, reasons: Mapping[str, str]) -> dict[str, str]:
        def change(name: str) -> str:
            if not self.reasons.get(name, "").startswith(PREFIX):
                return "gpuprov does not hold it"
            self.reasons[name] = PREFIX + reasons[name]
            return ""

        return self._changed(list(reasons), change)

    def join(self, node: str, like: str, pools: Sequence[str]) -> str:  # noqa: ARG002 - as the protocol has it
        def change(name: str) -> str:
            self.pools[name] += [pool for pool in pools if pool not in self.pools[name]]
            return ""

        return self._changed([node], change).get(node, "")

    def breaker(self) -> str | None:
        self.point()
        if self.away:
            raise BreakerError("no answer from slurmctld")
        return self.open

    def permit(self, node: str, share: float, least: int) -> str:
        if (why := self.breaker()) is not None:
            return why
        self.permits = [(at, name) for at, name in self.permits if self.now - at < HOUR]
        if len(self.permits) >= limit(len(GPUS), share, least):
            self.open = "the limit"
            return self.open
        self.permits.append((self.now, node))
        self.point()
        return ""

    def open_breaker(self, why: str) -> None:
        self.breaker()
        self.open = why

    def close_breaker(self) -> None:
        self.open, self.permits = None, []


class ModelStore(Store):
    """The real one, on a disk that may be full, of a watch that may die before and after each write."""

    def __init__(self, world: World) -> None:
        super().__init__(world.folder)
        self._world = world

    def _replace(self, name: str, document: Mapping[str, Any]) -> None:
        self._world.point()
        if self._world.full:
            raise RunFolderError(f"{name} cannot be written: No space left on device", "make room")
        super()._replace(name, document)
        self._world.point()

    def next_number(self) -> int:
        if self._world.full:
            raise RunFolderError("last-number cannot be written: No space left on device", "make room")
        return super().next_number()

    def remember(self, rows: Sequence[Mapping[str, Any]]) -> None:  # noqa: ARG002 - nothing here reads it
        if self._world.full:
            raise RunFolderError("history.jsonl cannot be written: No space left on device", "make room")


class AtOnce(Executor):
    """An executor whose work is done when it is submitted."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...


class Around:
    """What one life of the watch is given. `late`: nodes whose first result comes with their next change."""

    def __init__(self, world: World, late: Sequence[str]) -> None:
        self._world, self._sent = world, dict.fromkeys(late, "")
        self._late = {name: world.health[name] for name in late}
        self.lasting: dict[str, Message] = {}
        self.told: dict[str, Message] = {}

    def changes(self, seconds: float) -> list[NodeStatus]:  # noqa: ARG002 - as the protocol has it
        health = self._world.health
        found = [name for name in NAMES if health[name] not in (self._sent.get(name), self._late.get(name))]
        self._sent |= {name: health[name] for name in found}
        self._late = {name: was for name, was in self._late.items() if name not in found}
        return [STATUS[name, health[name]] for name in found]

    def arrive(self) -> None:
        """The late ones have answered."""
        self._late = {}

    def verify(self, spare: str) -> Checked:
        self._world.point()
        found = self._world.answers.get(spare, Checked(True, run="run"))
        if not found.passed and not found.again:
            self._world.failed_a_check.add(spare)
        return found

    def evidence(self, incident: Incident) -> str:  # noqa: ARG002 - as the protocol has it
        self._world.point()
        return ""

    def stop(self) -> None: ...

    def tell(self, message: Message) -> None:
        self._world.point()
        self.told[message.id] = message

    def settle(self, over: Callable[[Message], bool]) -> None: ...


def silence(_: str) -> None: ...


class Histories(RuleBasedStateMachine):
    """One history."""

    def __init__(self) -> None:
        super().__init__()
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.world = World(Path(tempfile.mkdtemp(prefix="watch-model-", dir=base)))
        self.patch = pytest.MonkeyPatch()
        clock = SimpleNamespace(monotonic=lambda: self.world.now, sleep=lambda _: None, time=self.world.wall)
        for module in (service, breaker, renewal):
            self.patch.setattr(module, "time", clock)
        for folder in ("incidents", "outbox", "alerts", "returns"):
            (self.world.folder / folder).mkdir()
        for name in NAMES:
            spare = name in FLEET.groups[SPARES]
            self.world.pools[name] = [] if spare else ["gpu"]
            self.world.reasons |= {name: f"{PREFIX}spare"} if spare else {}
        self.world.now, self.then = 1.0, ("", "")

    def teardown(self) -> None:
        try:
            if hasattr(self, "watch"):
                self.ends_right()
        finally:
            self.patch.undo()
            shutil.rmtree(self.world.folder)

    @initialize()
    def begin(self) -> None:
        self.start([])
        self.rounds(4, 5.0)

    def start(self, late: Sequence[str]) -> None:
        """A life of the watch: what it knew is gone but for what it has written."""
        self.around, self.store = Around(self.world, late), ModelStore(self.world)
        self.watch = Watch(
            FLEET,
            POLICY,
            self.store,
            self.around,
            self.world,
            self.around,
            self.around,
            silence,
            self.world.wall,
            steady=lambda: self.world.now,
            pace=Pace(least=0.0, wait=0.0, beat=1e12),
        )
        for one in (self.watch, self.watch._renewal):
            one._pool.shutdown()
            one._pool = AtOnce()

    def rounds(self, count: int, seconds: float) -> None:
        """So many rounds, with so much time before each."""
        for _ in range(count):
            self.world.now += seconds
            for name, how in self.world.health.items():
                if how != "good":
                    self.world.was_bad[name] = self.world.now
                if how == "bad":
                    self.world.failed.add(name)
            try:
                self.watch.round(0.0)
            except Killed:
                self.come_back()
            except RunFolderError as error:  # as Watch.run
                self.watch._failed(error)

    def come_back(self) -> None:
        node, then = self.then
        if then:
            self.world.now += 600.0
            self.world.health[node], self.world.since[node] = "good", self.world.now
        if "back" in then:
            self.world.ahead -= 2 * HOUR
            self.world.clock_set = self.world.now
        self.world.began = self.world.now
        self.start([node] if "late" in then else [])

    # --- what happens

    @rule(node=st.sampled_from(NAMES), how=st.sampled_from(["bad", "bad", "silent", "good"]))
    def changes(self, node: str, how: str) -> None:
        if self.world.health[node] != how:
            self.world.health[node], self.world.since[node] = how, self.world.now
        self.rounds(1, 1.0)

    @rule(rack=st.sampled_from(["r1", "r2", "r3"]), how=st.sampled_from(["bad", "silent", "good"]))
    def a_rack_changes(self, rack: str, how: str) -> None:
        for name, node in FLEET.nodes.items():
            if node.variables["gpuprov_rack"] == rack and self.world.health[name] != how:
                self.world.health[name], self.world.since[name] = how, self.world.now
        self.rounds(1, 1.0)

    @rule(node=st.sampled_from(NAMES), drains=st.booleans())
    def a_person_drains_or_resumes(self, node: str, drains: bool) -> None:
        if drains:
            self.world.reasons[node] = "ann looks into it"
        else:
            self.world.reasons.pop(node, None)
            # What a person has undone counts for no limit, and the watch has its minute again.
            self.world.drains = [one for one in self.world.drains if one[1] != node]
            self.world.resumed[node] = self.world.now
        self.rounds(1, 1.0)

    @rule(node=st.sampled_from(GPUS))
    def its_own_program_drains_it(self, node: str) -> None:
        world = self.world
        may = world.health[node] == "bad" and not world.reasons.get(node) and not world.away
        if may and not world.permit(node, POLICY.breaker_share, POLICY.breaker_nodes):
            world.reasons[node] = ITSELF
        self.rounds(1, 1.0)

    @rule(node=st.sampled_from(SPARE), found=st.sampled_from(["pass", "fail", "again", "again", "elsewhere"]))
    def checks_find(self, node: str, found: str) -> None:
        unsure = found in ("again", "elsewhere")
        self.world.answers[node] = Checked(found == "pass", found, "run", unsure, found == "elsewhere")

    @rule(minutes=st.sampled_from([0.2, 1, 6, 20, 61]))
    def time_passes(self, minutes: float) -> None:
        self.rounds(4, minutes * 15)

    @rule(seconds=st.sampled_from([-2 * HOUR, -61.0, 61.0, 2 * HOUR]))
    def the_clock_is_set(self, seconds: float) -> None:
        self.world.ahead += seconds
        self.world.clock_set = self.world.now
        self.rounds(1, 1.0)

    @rule(away=st.booleans())
    def the_scheduler_goes_or_comes(self, away: bool) -> None:
        self.world.away = away
        self.rounds(1, 6.0)

    @rule(full=st.booleans())
    def the_disk_fills_or_empties(self, full: bool) -> None:
        self.world.full = full
        self.rounds(1, 1.0)

    @rule(
        points=st.integers(0, 40),
        node=st.sampled_from(NAMES),
        then=st.sampled_from(["", "healed", "healed late", "healed late back"]),
    )
    def the_watch_dies_while_a_node_fails(self, points: int, node: str, then: str) -> None:
        """`then`: what has become of it when the watch is back: it is well again; its first result is late;
        the clock went back."""
        if self.world.health[node] == "good":
            self.world.health[node], self.world.since[node] = "bad", self.world.now
        self.world.left_to_kill, self.then = points, (node, then)
        self.rounds(3, 1.0)
        self.world.left_to_kill, self.then = -1, ("", "")
        self.rounds(1, 1.0)
        self.around.arrive()
        self.rounds(1, 1.0)

    @rule(minutes=st.sampled_from([0.0, 0.5, 30]), late=st.sets(st.sampled_from(NAMES), max_size=4))
    def the_watch_is_away_for_a_while(self, minutes: float, late: set[str]) -> None:
        self.world.now += minutes * 60
        self.world.began = self.world.now
        self.start(sorted(late))
        self.rounds(2, 1.0)
        self.around.arrive()
        self.rounds(1, 1.0)

    @rule(node=st.sampled_from(NAMES))
    def a_node_returns(self, node: str) -> None:
        """What `gpuprov return` does at its end: it is healthy, and a spare."""
        with contextlib.suppress(RunFolderError):
            for one in self.store.incidents():
                ours = self.world.reasons.get(node, "").startswith(PREFIX)
                if one.node == node and one.step is Step.REPAIR and one.returned is None and ours:
                    self.world.health[node], self.world.answers[node] = "good", Checked(True, run="run")
                    number = self.store.next_number()
                    self.store.write_return(replace(one, returned=self.world.wall(), returned_number=number))
                    self.world.reasons[node] = f"{PREFIX}spare"
        self.rounds(1, 1.0)

    @precondition(lambda self: self.world.open is not None)
    @rule()
    def a_person_closes_the_breaker(self) -> None:
        self.world.close_breaker()
        self.rounds(1, 31.0)

    # --- what always holds

    @invariant()
    def no_drain_was_wrong(self) -> None:
        assert not self.world.wrong, self.world.wrong

    @invariant()
    def a_spare_counts_as_bad_for_its_own_fault_alone(self) -> None:
        if not hasattr(self, "store"):
            return
        for one in self.store.incidents():
            if one.was_spare:
                assert one.node in self.world.failed_a_check or one.node in self.world.was_bad, one

    @invariant()
    def a_fault_has_one_replacement(self) -> None:
        if not hasattr(self, "store"):
            return
        now = [one for one in self.store.incidents() if one.holds_node and one.step is not Step.CLOSED]
        for node in {one.node for one in now}:
            placed = [one for one in now if one.node == node and one.placed is not None]
            assert len(placed) <= 1, placed
        choosing = [one.spare for one in now if one.holds_spare]
        assert len(choosing) == len(set(choosing)), choosing

    @invariant()
    def a_fault_is_acted_on_or_told_within_a_minute(self) -> None:
        if not hasattr(self, "watch") or self.world.now - self.world.began < 60.0:
            return
        world = self.world
        acted = {one.node for one in self.store.incidents() if one.holds_node}
        lasting = [self.watch._told[key] for key in self.watch._held]
        for node, how in world.health.items():
            serves = not world.reasons.get(node) and not world.away
            for_a_minute = world.now - max(world.since[node], world.resumed.get(node, 0.0)) > 60.0
            if how == "bad" and serves and for_a_minute and node not in acted:
                assert [one for one in lasting if one.kind != "last-spare"], f"{node} is left without a word"

    # --- and at the end

    def ends_right(self) -> None:
        """With nothing in its way, whatever was begun is brought to its end by the next life of the watch."""
        world = self.world
        world.left_to_kill, world.away, world.full = -1, False, False
        world.answers = {}
        world.close_breaker()
        self.start([])
        self.rounds(12, 31.0)
        self.no_drain_was_wrong()
        free = [name for name in world.waiting() if world.health[name] == "good"]
        for one in self.store.incidents():
            if one.step is Step.CHOOSE and free:
                spares = [name for name in free if world.reasons.get(name) == f"{PREFIX}spare"]
                lost = sum(other.was_spare and other.holds_node for other in self.store.incidents())
                assert not spares or lost >= POLICY.spares_hourly or one.tried, (one, spares)
            elif one.step is Step.DRAIN:
                # A spare that a person has put into service is theirs to drain, and they were told.
                theirs = one.was_spare and not world.reasons.get(one.node)
                assert world.open is not None or (theirs and f"{one.id}.not-drained" in self.around.told), one
            elif one.is_open and one.step is not Step.CHOOSE:
                raise AssertionError(f"{one} has not come to an end")
            elif one.placed is not None and one.holds_node:
                self._serves(one)

    def _serves(self, one: Incident) -> None:
        """A replacement is in service, or out of it for its own fault or by a person."""
        reason = self.world.reasons.get(one.spare, "")
        if reason.startswith(PREFIX):
            later = [other for other in self.store.incidents() if other.node == one.spare]
            assert later or reason == ITSELF, (one, reason)


Histories.TestCase.settings = settings(max_examples=times(300, 20_000), stateful_step_count=20)
TestHistories = pytest.mark.timeout(60 if times(0, 1) == 0 else 14_400)(Histories.TestCase)
