"""Brings nodes to what was declared, wave by wave: apply, look again, reboot where that is what is missing,
look again.

A node is done when its expectations hold, never because a playbook said so. What touches nodes is behind
`Hands`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from provision.ansible_events import Outcome
from provision.drift import Drift
from provision.plan import Plan
from provision.up_result import INCOMPLETE, UNHEALTHY, Result, Status, count_of, nodes_of

PASSES = 2  # a role may undo what another promised; whoever still differs after the second pass is stuck
SETTLE_LOOKS = 12  # further looks at what is still starting (a fabric manager takes half a minute)
SETTLE_PAUSE = 5.0  # seconds between them
_MOVING = ("activating", "reloading", "deactivating")  # what systemd calls a service that is on its way


@dataclass(frozen=True)
class Look:
    """What one look at a node said. `error`: the node as a whole could not be asked, and why."""

    node: str
    drifts: tuple[Drift, ...] = ()
    boot_required: str = ""  # why the node itself asks for a reboot
    error: str = ""
    unreachable: bool = False


class Hands(Protocol):
    """What touches nodes. Every method answers for every node it was given, and raises for none."""

    def look(self, nodes: Sequence[str]) -> Mapping[str, Look]:
        """Observe nodes again."""

    def apply(self, roles: Mapping[str, tuple[str, ...]]) -> Mapping[str, Outcome]:
        """Run each node's roles."""

    def reboot(self, nodes: Sequence[str]) -> Mapping[str, Outcome]:
        """Reboot nodes, and wait until they are back."""


@dataclass(frozen=True)
class Settings:
    """How careful to be. More than `max_failures` nodes in trouble: no further wave is begun."""

    max_failures: int = 0
    may_reboot: bool = True
    check_mode: bool = False
    role_order: tuple[str, ...] = ()


@dataclass
class _Progress:
    """What was done to a node so far in its wave."""

    roles: list[str] = field(default_factory=list)
    changed: int = 0
    rebooted: bool = False


class Up:
    """One `up`: takes a plan, carries it out, and keeps one Result per node in `results`."""

    def __init__(
        self,
        plan: Plan,
        hands: Hands,
        settings: Settings,
        *,
        on_result: Callable[[Result], None],
        say: Callable[[str], None] = lambda _text: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.results: dict[str, Result] = {}
        self.stopped = ""  # why later waves were not begun
        self._plan = plan
        self._hands = hands
        self._settings = settings
        self._on_result = on_result
        self._say = say
        self._pause = pause
        self._done: dict[str, _Progress] = {}

    def run(self) -> None:
        """Carry the plan out. On KeyboardInterrupt every node still has a Result."""
        try:
            for number, wave in enumerate(self._plan.waves, 1):
                if self.stopped:
                    self._end_all(wave, Status.NOT_ATTEMPTED, self.stopped)
                    continue
                if len(self._plan.waves) > 1:
                    self._say(f"wave {number} of {len(self._plan.waves)}: {nodes_of(len(wave))}")
                self._wave(wave)
                self._stop_if_too_many_failed()
        except BaseException:
            started = [node for node in self._done if node not in self.results]
            self._end_all(started, Status.INTERRUPTED, "stopped in the middle; its roles can be run again")
            rest = [node for wave in self._plan.waves for node in wave if node not in self.results]
            self._end_all(rest, Status.NOT_ATTEMPTED, "interrupted before its turn")
            raise

    def _stop_if_too_many_failed(self) -> None:
        touched = [self.results[node] for node in self._done]
        bad = [result for result in touched if result.status in UNHEALTHY | INCOMPLETE]
        bad = [result for result in bad if result.status is not Status.REBOOT_NEEDED]
        if len(bad) > self._settings.max_failures:
            self.stopped = f"{len(bad)} failed before its wave (--max-failures {self._settings.max_failures})"

    def _wave(self, nodes: Sequence[str]) -> None:
        pending = {node: self._plan.nodes[node].roles for node in nodes}
        known = {node: _facts(self._plan.nodes[node].drifts) for node in nodes}
        for number in range(1, PASSES + 1):
            alive = self._apply(pending)
            if self._settings.check_mode:
                return
            looks = self._settled(alive)
            rebooted: set[str] = set()
            if self._settings.may_reboot:
                rebooted = self._reboot([n for n, look in looks.items() if _wants_reboot(look, number)])
                looks = {n: look for n, look in looks.items() if n not in self.results}
                looks.update(self._settled(sorted(rebooted), booted=True))
            pending = {}
            for node, look in looks.items():
                again = () if number == PASSES else self._again(look, known[node], node in rebooted)
                if look.drifts and again:
                    self._say(f"{node}: now {', '.join(again)} differs: a second pass")
                    pending[node] = again
                elif node not in self.results:
                    self._verdict(node, look)
            if not pending:
                return

    def _apply(self, roles: Mapping[str, tuple[str, ...]]) -> list[str]:
        """Run roles; the nodes on which they succeeded."""
        for node, names in roles.items():
            self._done.setdefault(node, _Progress()).roles += [
                n for n in names if n not in self._done[node].roles
            ]
        outcomes = self._hands.apply(roles)
        return self._survivors(roles, outcomes, Status.CHECKED if self._settings.check_mode else None)

    def _reboot(self, nodes: Sequence[str]) -> set[str]:
        """Reboot nodes; those that came back."""
        if not nodes:
            return set()
        self._say(f"rebooting {nodes_of(len(nodes))}")
        outcomes = self._hands.reboot(nodes)
        for node in nodes:
            self._done[node].rebooted = True
        return set(self._survivors(nodes, outcomes, None))

    def _survivors(
        self, nodes: Iterable[str], outcomes: Mapping[str, Outcome], when_ok: Status | None
    ) -> list[str]:
        alive = []
        for node in nodes:
            outcome = outcomes.get(node, Outcome(node, "failed", message="nothing was run on it"))
            self._done[node].changed += outcome.changed
            if outcome.status == "ok" and when_ok is None:
                alive.append(node)
                continue
            status = {"ok": when_ok, "unreachable": Status.UNREACHABLE}.get(outcome.status) or Status.FAILED
            self._end(node, status, outcome.message, role=outcome.role, task=outcome.task)
        return alive

    def _look(self, nodes: Sequence[str]) -> dict[str, Look]:
        """Look again; nodes that cannot be asked any more end here."""
        looks = {}
        for node, look in (self._hands.look(nodes) if nodes else {}).items():
            if look.error:
                self._end(node, Status.UNREACHABLE if look.unreachable else Status.UNREADABLE, look.error)
            else:
                looks[node] = look
        return looks

    def _settled(self, nodes: Sequence[str], *, booted: bool = False) -> dict[str, Look]:
        """Look again until nothing is on its way any more. A machine that has just booted gets at least a
        second look, and more as long as each finds less to differ."""
        looks = self._look(nodes)
        for _ in range(SETTLE_LOOKS):
            moving = [node for node, look in looks.items() if _is_moving(look) or (booted and look.drifts)]
            if not moving:
                break
            self._pause(SETTLE_PAUSE)
            before = {node: looks.pop(node) for node in moving}
            after = self._look(moving)
            looks.update(after)
            booted = any(len(look.drifts) < len(before[node].drifts) for node, look in after.items())
        return {node: looks[node] for node in nodes if node in looks}

    def _again(self, look: Look, known: set[tuple[str, str]], rebooted: bool) -> tuple[str, ...]:
        """The roles worth running once more: their promise was broken meanwhile, or they had waited for a
        reboot."""
        wanted = {
            drift.expectation.role
            for drift in look.drifts
            if rebooted or (drift.expectation.role, drift.expectation.fact) not in known
        }
        return tuple(role for role in self._settings.role_order if role in wanted)

    def _verdict(self, node: str, look: Look) -> None:
        """Whether the node's expectations hold, now that all was done."""
        if not look.drifts:
            message = f"it still asks for a reboot: {look.boot_required}" if look.boot_required else ""
            self._end(node, Status.DONE, message)
        elif all(drift.unknown for drift in look.drifts):
            self._end(node, Status.UNREADABLE, count_of(look.drifts, "could not be read"), drifts=look.drifts)
        elif not self._settings.may_reboot and all(drift.expectation.reboot for drift in look.drifts):
            self._end(
                node, Status.REBOOT_NEEDED, "only a reboot is missing (--no-reboot)", drifts=look.drifts
            )
        else:
            self._end(
                node, Status.NOT_HELD, count_of(look.drifts, "still not as declared"), drifts=look.drifts
            )

    def _end_all(self, nodes: Iterable[str], status: Status, message: str) -> None:
        for node in nodes:
            self._end(node, status, message)

    def _end(
        self,
        node: str,
        status: Status,
        message: str,
        *,
        role: str = "",
        task: str = "",
        drifts: tuple[Drift, ...] = (),
    ) -> None:
        done = self._done.get(node, _Progress())
        self.results[node] = Result(
            node, status, message, role, task, tuple(done.roles), done.changed, done.rebooted, drifts
        )
        self._on_result(self.results[node])


def _facts(drifts: Iterable[Drift]) -> set[tuple[str, str]]:
    return {(drift.expectation.role, drift.expectation.fact) for drift in drifts}


def _is_moving(look: Look) -> bool:
    return any(drift.found in _MOVING for drift in look.drifts if isinstance(drift.found, str))


def _wants_reboot(look: Look, number: int) -> bool:
    """On the first pass any promise that waits for a reboot is reason enough: other roles may wait for it,
    too (the fabric manager for the driver). On the last one a reboot must be all that is missing."""
    waiting = [drift for drift in look.drifts if drift.expectation.reboot and not drift.unknown]
    if number < PASSES:
        return bool(waiting or look.boot_required)
    return bool(waiting or look.boot_required) and len(waiting) == len(look.drifts)
