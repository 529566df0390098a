"""A small fleet, its scheduler and two controllers as a model, for drawn histories of the real watch.

Each controller has a clock, a disk and a network of its own, and gets to the one scheduler over that network.
What a watch must never do is judged here, where it is done.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provision.errors import RunFolderError
from provision.remote.protocol import unreachable
from provision.remote.schedulers import PREFIX, BreakerError, Holder, Scheduled
from provision.remote.schedulers.lease import Lease
from provision.remote.schedulers.slurm_breaker import limit
from provision.up.watch.incidents import Incident, Store
from provision.up.watch.policy import SPARES, Policy
from provision.up.watch.roles import Role, roles
from provision.up.watch.service import Watch
from provision.up.watch.steps import Checked, Message
from provision.up.watch.surroundings import Pace
from provision.validate.status.status import NodeStatus, judged
from tests.support.baton import AtOnce
from tests.support.health_results import failed, printed, result
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
MARK = re.compile(r"\S+ takes the place of (\S+)")
LEFT = "could not be put into service"  # of a spare, behind the incident


class Killed(BaseException):
    """The watch dies here."""


@dataclass
class World:
    """The fleet and its scheduler, whatever a watch knows of them. Times are seconds since the history began,
    by a clock that nobody sets."""

    now: float = 1.0
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
    open: str | None = None
    permits: list[tuple[float, str]] = field(default_factory=list)
    drains: list[tuple[float, str]] = field(default_factory=list)  # by a watch, for a fault
    replaced: dict[str, list[str]] = field(default_factory=dict)  # failed node → spares put into its place
    wrong: list[str] = field(default_factory=list)
    # When limits by the hour could last be forgotten: a clock was set, or other incidents are known.
    forgot: float = -2 * HOUR
    changing_hands: bool = False  # leases were taken over within these seconds

    def __post_init__(self) -> None:
        for name in NAMES:
            self.pools[name] = [] if name in SPARE else ["gpu"]
            self.reasons |= {name: f"{PREFIX}spare"} if name in SPARE else {}

    def unfit(self, name: str) -> bool:
        """Whether a drain for a fault is right: its own verdict, now or a minute ago, or it is lost."""
        return self.health[name] != "good" or self.now - self.was_bad.get(name, -HOUR) <= 60.0

    def change(self, name: str, how: str) -> None:
        """A node's health from now on."""
        if self.health[name] != how:
            self.health[name], self.since[name] = how, self.now

    def undo(self, name: str) -> None:
        """A person, or its return, ends what a fault of this node had led to."""
        # What a person has undone counts for no limit, and the watch has its minute again.
        self.drains = [one for one in self.drains if one[1] != name]
        self.replaced.pop(name, None)

    def look_around(self) -> None:
        """Note the unfit nodes of this moment."""
        for name, how in self.health.items():
            if how != "good":
                self.was_bad[name] = self.now
            if how == "bad":
                self.failed.add(name)

    def word(self, name: str) -> Scheduled:
        reason = self.reasons.get(name, "")
        down = self.health[name] == "silent"
        ours = reason.startswith(PREFIX)
        holder = Holder.US if ours else Holder.OTHERS if reason else Holder.NOBODY
        state = ("DOWN" if down else "IDLE") + ("+DRAIN" if reason else "")
        takes = not reason and not down
        pools = tuple(self.pools[name])
        return Scheduled(name, state, reason, holder, takes, down, pools, lease=self.leases.get(name))

    def drain(self, name: str, reason: str) -> None:
        """By a watch. What holds then: its cause is this node's own, and no limit is exceeded."""
        self.reasons[name] = PREFIX + reason
        if not OF_AN_INCIDENT.match(reason) or LEFT in reason:
            return
        if self.open is not None:
            self.wrong.append(f"{name} was drained while the breaker is open")
        if not self.unfit(name):
            self.wrong.append(f"{name} was drained without a fault of its own: {reason}")
        lost = self.now - self.since[name]
        alone = self.health[name] == "silent" and name not in self.failed
        if alone and lost < POLICY.down_minutes * 60:
            self.wrong.append(f"{name} was drained after {lost:.0f} s of silence")
        self.drains.append((self.now, name))
        recent = [other for at, other in self.drains if self.now - at < HOUR]
        if self.now - self.forgot > HOUR:
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

    def judge_replacement(self, spare: str, reason: str) -> None:
        """A fault has one replacement in service at a time."""
        if (match := MARK.match(reason.removeprefix(PREFIX))) is None:
            return
        both = self.replaced.setdefault(match[1], [])
        if others := [one for one in both if one != spare and not self.reasons.get(one)]:
            self.wrong.append(f"{match[1]} has two replacements: {others[0]} and {spare}")
        both.append(spare)

    def permit(self, node: str, share: float, least: int) -> str:
        if self.open is not None:
            return self.open
        self.permits = [(at, name) for at, name in self.permits if self.now - at < HOUR]
        if len(self.permits) >= limit(len(GPUS), share, least):
            self.open = "the limit"
            return self.open
        self.permits.append((self.now, node))
        return ""

    def close_breaker(self) -> None:
        self.open, self.permits = None, []


class Controller:
    """A machine with a watch, and what this watch is given: the scheduler as this machine reaches it, the
    health of nodes, and checks. `ahead`: seconds by which its wall clock is ahead."""

    kind = "slurm"
    settle = 0.0

    def __init__(self, world: World, host: str, folder: Path) -> None:
        self.world, self.host, self.folder = world, host, folder
        self.ahead = 0.0
        self.full = False  # its disk
        self.cut = False  # off the network
        self.connected = 0.0  # when its network was last mended
        self.off = False  # its watch does not run
        self.left_to_kill = -1  # moments until the watch dies
        self.began = 0.0  # when the watch last did
        self.interrupt: tuple[int, Callable[[], None]] | None = (
            None  # moments until it, and what happens then
        )
        self.told: dict[str, Message] = {}
        self._seen_lease: dict[str, str] = {}
        for name in ("incidents", "outbox", "alerts", "returns"):
            (folder / name).mkdir(parents=True)
        self.store = ModelStore(self)

    def wall(self) -> float:
        return BEGUN + self.world.now + self.ahead

    def point(self) -> None:
        """A moment at which the watch may die, or somebody else does something."""
        if self.interrupt is not None:
            left, happens = self.interrupt
            self.interrupt = (left - 1, happens) if left else None
            if not left:
                happens()
        if self.left_to_kill >= 0:
            self.left_to_kill -= 1
            if self.left_to_kill < 0:
                raise Killed

    def start(self, late: Sequence[str] = ()) -> None:
        """A life of the watch: what it knew is gone but for what it has written. `late`: nodes whose first
        result comes with their next change."""
        self._sent = dict.fromkeys(late, "")
        self._late = {name: self.world.health[name] for name in late}
        self.told, self.store, self.began, self.off = {}, ModelStore(self), self.world.now, False
        self.watch = Watch(
            *(FLEET, POLICY, self.store, self, self, self, People(self), lambda _: None, self.wall),
            steady=lambda: self.world.now,
            pace=Pace(least=0.0, wait=0.0, beat=1e12),
        )
        self.watch.lease._sleep = lambda _: None
        for one in (self.watch, self.watch._renewal):
            one._pool.shutdown()
            one._pool = AtOnce()

    @property
    def holder(self) -> str:
        return str(Store(self.folder).lease().get("holder", ""))

    def waiting(self) -> list[str]:
        """Nodes that are spares, or about to take a place, as far as it knows."""
        known = roles(FLEET, Store(self.folder).incidents())
        return [name for name, role in known.items() if role is Role.SPARE]

    # --- health and checks

    def changes(self, seconds: float) -> list[NodeStatus]:  # noqa: ARG002 - as the protocol has it
        health = dict.fromkeys(NAMES, "silent") if self.cut else self.world.health
        found = [name for name in NAMES if health[name] not in (self._sent.get(name), self._late.get(name))]
        self._sent |= {name: health[name] for name in found}
        self._late = {name: was for name, was in self._late.items() if name not in found}
        return [STATUS[name, health[name]] for name in found]

    def arrive(self) -> None:
        """The late ones have answered."""
        self._late = {}

    def verify(self, spare: str) -> Checked:
        self.point()
        if self.cut:
            return Checked(False, "no answer", again=True, elsewhere=True)
        found = self.world.answers.get(spare, Checked(True, run="run"))
        if not found.passed and not found.again:
            self.world.failed_a_check.add(spare)
        return found

    def evidence(self, incident: Incident) -> str:  # noqa: ARG002 - as the protocol has it
        self.point()
        return ""

    def stop(self) -> None: ...

    # --- the scheduler, as Slurm is

    def look(self, nodes: Sequence[str]) -> dict[str, Scheduled]:
        self.point()
        if self.world.away or self.cut:
            return {name: Scheduled(name, error="no answer from slurmctld") for name in nodes}
        found = {name: self.world.word(name) for name in nodes}
        self._seen_lease |= {name: word.lease.holder if word.lease else "" for name, word in found.items()}
        return found

    def lease(self, leases: Mapping[str, Lease | None], before: Mapping[str, Lease | None]) -> dict[str, str]:
        def change(name: str) -> str:
            if self.world.leases.get(name) != before.get(name):
                return "another watch changed its lease just now"
            self.world.leases[name] = leases[name]
            return ""

        return self._changed(list(leases), change)

    def _changed(self, nodes: Sequence[str], change: Callable[[str], str]) -> dict[str, str]:
        self.point()
        if self.world.away or self.cut:
            return dict.fromkeys(nodes, "no answer from slurmctld")
        problems = {name: why for name in nodes if (why := change(name))}
        self.point()
        return problems

    def has(self, name: str) -> bool:
        return (lease := self.world.leases.get(name)) is not None and lease.holder == self.holder

    def _may(self, name: str) -> None:
        """Judge that it acts on a node whose lease it has, or had at its last look a moment ago."""
        had = self.world.changing_hands and self._seen_lease.get(name) == self.holder
        if not self.has(name) and not had:
            self.world.wrong.append(f"{self.host} acted on {name}, and has no lease of it")

    def drain(self, reasons: Mapping[str, str]) -> dict[str, str]:
        def change(name: str) -> str:
            if not self.world.reasons.get(name):
                self._may(name)
                self.world.drain(name, reasons[name])
            return ""

        return self._changed(list(reasons), change)

    def resume(self, nodes: Sequence[str]) -> dict[str, str]:
        def change(name: str) -> str:
            if self.world.reasons.get(name, "").startswith(PREFIX):
                self._may(name)
                if name not in self.waiting():
                    self.world.wrong.append(f"{name} was resumed, and was no spare")
                self.world.judge_replacement(name, self.world.reasons.pop(name))
            return ""

        return self._changed(nodes, change)

    def mark(self, reasons: Mapping[str, str]) -> dict[str, str]:
        def change(name: str) -> str:
            if not self.world.reasons.get(name, "").startswith(PREFIX):
                return "gpuprov does not hold it"
            self._may(name)
            self.world.reasons[name] = PREFIX + reasons[name]
            return ""

        return self._changed(list(reasons), change)

    def join(self, node: str, like: str, pools: Sequence[str]) -> str:  # noqa: ARG002 - as the protocol has it
        def change(name: str) -> str:
            self._may(name)
            self.world.pools[name] += [pool for pool in pools if pool not in self.world.pools[name]]
            return ""

        return self._changed([node], change).get(node, "")

    def breaker(self) -> str | None:
        self.point()
        if self.world.away or self.cut:
            raise BreakerError("no answer from slurmctld")
        return self.world.open

    def permit(self, node: str, share: float, least: int) -> str:
        self.breaker()
        refused = self.world.permit(node, share, least)
        self.point()
        return refused

    def open_breaker(self, why: str) -> None:
        self.breaker()
        self.world.open = why

    def close_breaker(self) -> None:
        self.world.close_breaker()


class People:
    """The people whom the watch of a controller notifies."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def tell(self, message: Message) -> None:
        self._controller.point()
        self._controller.told[message.id] = message

    def settle(self, over: Callable[[Message], bool]) -> None: ...


class ModelStore(Store):
    """The real one, on a disk that may be full, of a watch that may die before and after each write."""

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller.folder)
        self._controller = controller

    def _replace(self, name: str, document: Mapping[str, Any]) -> None:
        self._controller.point()
        if self._controller.full:
            raise RunFolderError(f"{name} cannot be written: No space left on device", "make room")
        super()._replace(name, document)
        self._controller.point()

    def next_number(self) -> int:
        if self._controller.full:
            raise RunFolderError("last-number cannot be written: No space left on device", "make room")
        return super().next_number()

    def remember(self, rows: Sequence[Mapping[str, Any]]) -> None:  # noqa: ARG002 - nothing here reads it
        if self._controller.full:
            raise RunFolderError("history.jsonl cannot be written: No space left on device", "make room")
