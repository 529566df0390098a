"""Drawn histories of a small fleet against the real watch on two controllers: faults, silence, people, a
scheduler that goes away, clocks that are set, full disks, networks that are cut, kills of a watch at any
moment, and take-overs, also in the middle of a step.

The watch is real (decide, incidents, steps, roles, leases, take-over, store on a disk); its stream,
scheduler, checks, people and clocks are the model's. What has threads of its own is done at once here, so
that a history repeats.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from provision.errors import GpuprovError, RunFolderError
from provision.remote.schedulers import PREFIX
from provision.up.watch import breaker, lease, renewal, service, take_over
from provision.up.watch.incidents import Incident, Step, Store
from provision.up.watch.steps import Checked
from tests.support.baton import Baton
from tests.support.watch_model import (
    FLEET,
    GPUS,
    HOUR,
    ITSELF,
    LEFT,
    MARK,
    NAMES,
    OF_AN_INCIDENT,
    POLICY,
    SPARE,
    Controller,
    Killed,
    World,
)


class Histories(RuleBasedStateMachine):
    """One history."""

    def __init__(self) -> None:
        super().__init__()
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.folder = Path(tempfile.mkdtemp(prefix="watch-model-", dir=base))
        self.world = World()
        self.both = [Controller(self.world, host, self.folder / host) for host in ("ctl-1", "ctl-2")]
        self.at = self.both[0]  # the one whose program runs at this moment
        self.then = ("", "")
        self.patch = pytest.MonkeyPatch()
        clock = SimpleNamespace(
            monotonic=lambda: self.world.now, sleep=lambda _: None, time=lambda: self.at.wall()
        )
        for module in (service, breaker, renewal):
            self.patch.setattr(module, "time", clock)
        for module in (lease, take_over):
            self.patch.setattr(module, "socket", SimpleNamespace(gethostname=lambda: self.at.host))

    def teardown(self) -> None:
        try:
            if hasattr(self.both[1], "watch"):
                self.ends_right()
        finally:
            self.patch.undo()
            shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        for one in self.both:
            self.start(one)
            self.rounds(2, 5.0)
        self.rounds(2, 5.0)

    # --- the programs

    def start(self, one: Controller, late: list[str] | None = None) -> None:
        """Start the watch of a controller; a person finishes a take-over that was interrupted there."""
        self.at = one
        if Store(one.folder).lease().get("taking"):
            with contextlib.suppress(GpuprovError):
                self.takes_over(one)
        one.off = Store(one.folder).lease().get("taking") is True  # then it refuses to start
        if not one.off:
            one.start(late or [])

    def rounds(self, count: int, seconds: float) -> None:
        """So many rounds of each watch that runs, with so much time before."""
        for _ in range(count):
            self.world.now += seconds
            self.world.look_around()
            for one in self.both:
                self.round(one)

    def round(self, one: Controller) -> None:
        if one.off or not hasattr(one, "watch"):
            return
        self.at = one
        try:
            one.watch.round(0.0)
        except Killed:
            self.come_back(one)
        except RunFolderError as error:  # as Watch.run
            one.watch._failed(error)

    def come_back(self, one: Controller) -> None:
        node, then = self.then
        if then == "stays away":
            one.off = True
            return
        if then:
            self.world.now += 600.0
            self.world.change(node, "good")
            self.world.since[node] = self.world.now
        if "back" in then:
            self.set_clock(one, -2 * HOUR)
        self.start(one, [node] if "late" in then else [])

    def set_clock(self, one: Controller, seconds: float) -> None:
        one.ahead += seconds
        self.world.forgot = self.world.now

    def takes_over(self, one: Controller, settled: Callable[[], None] = lambda: None) -> None:
        """`gpuprov watch take-over` on this controller; `settled` happens while it waits for the steps of the
        earlier watch."""
        before, self.at = self.at, one

        def sleep(_seconds: float) -> None:
            settled()
            self.at = one

        try:
            # The hour is not known for what has returned since.
            self.world.forgot = self.world.now
            take_over.take_over(FLEET, one.store, one, None, lambda _: None, one.wall, sleep)
        finally:
            self.at = before

    def tries_to_take_over(self, one: Controller, settled: Callable[[], None] = lambda: None) -> None:
        one.off = True
        # It has them already; the scheduler is away; its disk is full; the command is killed.
        with contextlib.suppress(GpuprovError, Killed):
            self.takes_over(one, settled)

    def fails(self, node: str) -> None:
        if self.world.health[node] == "good":
            self.world.change(node, "bad")

    # --- what happens

    @rule(node=st.sampled_from(NAMES), how=st.sampled_from(["bad", "bad", "silent", "good"]))
    def changes(self, node: str, how: str) -> None:
        self.world.change(node, how)
        self.rounds(1, 1.0)

    @rule(rack=st.sampled_from(["r1", "r2", "r3"]), how=st.sampled_from(["bad", "silent", "good"]))
    def a_rack_changes(self, rack: str, how: str) -> None:
        for name, node in FLEET.nodes.items():
            if node.variables["gpuprov_rack"] == rack:
                self.world.change(name, how)
        self.rounds(1, 1.0)

    @rule(node=st.sampled_from(NAMES), drains=st.booleans())
    def a_person_drains_or_resumes(self, node: str, drains: bool) -> None:
        if drains:
            self.world.reasons[node] = "ann looks into it"
        else:
            self.world.reasons.pop(node, None)
            self.world.undo(node)
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

    @rule(which=st.integers(0, 1), seconds=st.sampled_from([-48 * HOUR, -2 * HOUR, -61.0, 61.0, 2 * HOUR]))
    def a_clock_is_set(self, which: int, seconds: float) -> None:
        self.set_clock(self.both[which], seconds)
        self.rounds(1, 1.0)

    @rule(away=st.booleans())
    def the_scheduler_goes_or_comes(self, away: bool) -> None:
        self.world.away = away
        self.rounds(1, 6.0)

    @rule(which=st.integers(0, 1), full=st.booleans())
    def a_disk_fills_or_empties(self, which: int, full: bool) -> None:
        self.both[which].full = full
        self.rounds(1, 1.0)

    @rule(which=st.integers(0, 1), cut=st.booleans())
    def a_network_is_cut_or_mended(self, which: int, cut: bool) -> None:
        one = self.both[which]
        if one.cut and not cut:
            one.connected = self.world.now
        one.cut = cut
        self.rounds(2, 31.0)

    @rule(
        which=st.integers(0, 1),
        points=st.integers(0, 40),
        node=st.sampled_from(NAMES),
        then=st.sampled_from(["", "healed", "healed late", "healed late back", "stays away"]),
    )
    def a_watch_dies_while_a_node_fails(self, which: int, points: int, node: str, then: str) -> None:
        """`then`: what has become of the node when the watch is back: it is well again; its first result is
        late; the clock went back."""
        one = self.both[which]
        self.fails(node)
        one.left_to_kill, self.then = points, (node, then)
        self.rounds(3, 1.0)
        one.left_to_kill, self.then = -1, ("", "")
        self.rounds(1, 1.0)
        for each in self.both:
            each.arrive()
        self.rounds(1, 1.0)

    @rule(
        which=st.integers(0, 1),
        minutes=st.sampled_from([0.0, 0.5, 30]),
        late=st.sets(st.sampled_from(NAMES), max_size=4),
    )
    def a_watch_is_away_for_a_while(self, which: int, minutes: float, late: set[str]) -> None:
        one, one.off = self.both[which], True
        self.rounds(1, minutes * 60)
        self.start(one, sorted(late))
        self.rounds(2, 1.0)
        one.arrive()
        self.rounds(1, 1.0)

    @rule(
        which=st.integers(0, 1),
        points=st.integers(0, 40),
        node=st.sampled_from(NAMES),
        dies=st.integers(-20, 40),
    )
    def the_other_takes_over_while_a_node_fails(self, which: int, points: int, node: str, dies: int) -> None:
        """A person has a watch take over at any moment of a round of the other one, whose step ends while the
        command waits for that. `dies`: moments until the command is killed."""
        one, other, thread = self.both[which], self.both[1 - which], Baton()
        self.fails(node)
        self.world.now += 1.0
        self.world.look_around()
        one.left_to_kill = max(-1, dies)

        def begins() -> None:
            self.world.changing_hands = True
            before = self.at
            thread.run(lambda: self.tries_to_take_over(one, thread.back))
            self.at = before

        other.interrupt = points, begins
        self.round(other)
        other.interrupt = None
        thread.end()
        self.world.changing_hands = False
        one.left_to_kill = -1
        self.start(one)
        self.rounds(3, 1.0)

    @rule(which=st.integers(0, 1))
    def a_watch_takes_over(self, which: int) -> None:
        self.tries_to_take_over(self.both[which])
        self.start(self.both[which])
        self.rounds(2, 1.0)

    @rule(node=st.sampled_from(NAMES))
    def a_node_returns(self, node: str) -> None:
        """What `gpuprov return` does at its end: it is healthy, and a spare."""
        for one in self.both:
            for incident in one.store.incidents() if one.has(node) and not one.full else ():
                ours = self.world.reasons.get(node, "").startswith(PREFIX)
                away = incident.step is Step.REPAIR and incident.returned is None
                if incident.node == node and away and ours:
                    self.world.change(node, "good")
                    self.world.answers[node] = Checked(True, run="run")
                    number = Store(one.folder).next_number()
                    back = replace(incident, returned=one.wall(), returned_number=number)
                    Store(one.folder).write_return(back)
                    self.world.reasons[node] = f"{PREFIX}spare"
                    self.world.replaced.pop(node, None)
        self.rounds(1, 1.0)

    @precondition(lambda self: self.world.open is not None)
    @rule()
    def a_person_closes_the_breaker(self) -> None:
        self.world.close_breaker()
        self.rounds(1, 31.0)

    # --- what always holds

    @invariant()
    def nothing_wrong_was_done(self) -> None:
        """Judged where it is done: World.drain, World.judge_replacement, Controller.resume and _may."""
        assert not self.world.wrong, self.world.wrong

    @invariant()
    def a_spare_counts_as_bad_for_its_own_fault_alone(self) -> None:
        for controller in self.both:
            for one in controller.store.incidents():
                if one.was_spare:
                    assert one.node in self.world.failed_a_check or one.node in self.world.was_bad, one

    @invariant()
    def a_fault_has_one_replacement(self) -> None:
        for controller in self.both:
            now = [one for one in controller.store.incidents() if one.holds_node]
            for node in {one.node for one in now}:
                placed = [one for one in now if one.node == node and one.placed is not None]
                assert len(placed) <= 1, placed
            choosing = [one.spare for one in now if one.holds_spare]
            assert len(choosing) == len(set(choosing)), choosing

    @invariant()
    def a_fault_is_acted_on_or_told_within_a_minute(self) -> None:
        world = self.world
        for one in (each for each in self.both if not each.off):
            if not hasattr(one, "watch") or world.now - one.began < 60.0:
                continue
            acted = {incident.node for incident in one.store.incidents() if incident.holds_node}
            lasting = [one.watch._told[key] for key in one.watch._held]
            for node, how in world.health.items():
                serves = not world.reasons.get(node) and not world.away and not one.cut and one.has(node)
                since = max(world.since[node], world.resumed.get(node, 0.0), one.connected)
                if how == "bad" and serves and world.now - since > 60.0 and node not in acted:
                    assert [told for told in lasting if told.kind != "last-spare"], f"{node}: without a word"

    # --- and at the end

    def ends_right(self) -> None:
        """With nothing in its way, whatever was begun is brought to its end by the next life of the watch."""
        world, self.world.away, self.world.answers = self.world, False, {}
        world.close_breaker()
        for one in self.both:
            one.left_to_kill, one.full, one.cut = -1, False, False
            self.start(one)
        self.rounds(12, 31.0)
        self.nothing_wrong_was_done()
        holders = {held.holder for held in world.leases.values() if held}
        assert len(holders) == 1, world.leases
        assert None not in world.leases.values(), world.leases
        (acting,) = (one for one in self.both if one.holder in holders)
        self._ended_right(acting)

    def _ended_right(self, acting: Controller) -> None:
        world, incidents = self.world, acting.store.incidents()
        for name in NAMES:  # what an earlier watch drained is not forgotten
            reason = world.reasons.get(name, "").removeprefix(PREFIX)
            if OF_AN_INCIDENT.match(reason) and not MARK.match(reason) and LEFT not in reason:
                assert [one for one in incidents if reason.startswith(one.id) and one.node == name], reason
        free = [name for name in acting.waiting() if world.health[name] == "good"]
        for one in incidents:
            if one.step is Step.CHOOSE and free:
                spares = [name for name in free if world.reasons.get(name) == f"{PREFIX}spare"]
                lost = sum(other.was_spare and other.holds_node for other in incidents)
                assert not spares or lost >= POLICY.spares_hourly or one.tried, (one, spares)
            elif one.step is Step.DRAIN:
                # A spare that a person has put into service is theirs to drain, and they were told.
                theirs = one.was_spare and not world.reasons.get(one.node)
                assert world.open is not None or (theirs and f"{one.id}.not-drained" in acting.told), one
            elif one.is_open and one.step is not Step.CHOOSE:
                raise AssertionError(f"{one} has not come to an end")
            elif one.placed is not None and one.holds_node:
                self._serves(one, incidents)

    def _serves(self, one: Incident, incidents: list[Incident]) -> None:
        """A replacement is in service, or out of it for its own fault or by a person."""
        reason = self.world.reasons.get(one.spare, "")
        if reason.startswith(PREFIX):
            later = [other for other in incidents if other.node == one.spare]
            assert later or reason == ITSELF, (one, reason)
