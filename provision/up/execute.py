"""Execution of an `up` plan, wave by wave: drain, change, verify, return to service.

A wave begins only once the expectations of all earlier nodes hold. A node is done when its expectations hold,
not when a playbook succeeds. Nodes are reached through an `Executor` only."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from provision.desired.expectations import roles_in_order
from provision.drift.drifts import Drift
from provision.node_names import fold
from provision.remote.ansible.events import Outcome
from provision.text import many
from provision.up.options import UpOptions
from provision.up.plan import Plan
from provision.up.result import INCOMPLETE, UNHEALTHY, Ledger, Result, Status, count_of
from provision.up.waves import BATCH, CANARY, Wave


@dataclass(frozen=True)
class Look:
    """The result of observing a node. `error`: why the node as a whole could not be read."""

    node: str
    drifts: tuple[Drift, ...] = ()
    boot_required: str = ""  # the node's own reason for a reboot
    error: str = ""
    unreachable: bool = False
    booted: bool = False  # rebooted since the previous observation
    causes: tuple[str, ...] = ()  # faults of its driver stack with the next step, one per line


class Executor(Protocol):
    """Interface for acting on nodes; each method returns a result for every given node and never raises."""

    def look(self, nodes: Sequence[str]) -> Mapping[str, Look]:
        """Observe nodes again."""

    def apply(self, roles: Mapping[str, tuple[str, ...]]) -> Mapping[str, Outcome]:
        """Run each node's roles."""

    def reboot(self, nodes: Sequence[str]) -> Mapping[str, Outcome]:
        """Reboot nodes, and wait until they are back."""

    def drain(self, wave: int, nodes: Wave) -> Mapping[str, str]:
        """Take nodes out of service; return the reason for each failure."""

    def undrain(self, wave: int, nodes: Wave) -> Mapping[str, str]:
        """Return nodes to service; return the reason for each failure."""

    def gate(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """Run the health gate on nodes in their declared state; return the finding for each that fails."""


PASSES = 2  # a role may undo another's promise; a node that still differs after two passes is stuck
SETTLE_LOOKS = 12  # further observations while services start (a fabric manager takes half a minute)
SETTLE_PAUSE = 5.0  # seconds between them
LOST_LOOKS = 6  # observations of a node that stopped answering: a short network failure, a quick reboot
LOST_PAUSE = 10.0
_MOVING = ("activating", "reloading", "deactivating")  # systemd's states of a service in transition
_WELL = {Status.DONE, Status.CHECKED, Status.REBOOT_NEEDED}


@dataclass
class Execution:
    """Execution of a plan, with one Result per node in `results`.

    `waiting`: nodes in their declared state from an unfinished wave of an earlier run; they pass the gate
    before any wave. `halted`: returns why no further wave may begin (a lock was lost), or ""; `on_wave`:
    receives each wave's number and the wave at its begin (True) and end (False)."""

    plan: Plan
    executor: Executor
    options: UpOptions
    on_result: Callable[[Result], None]
    halted: Callable[[], str] = lambda: ""
    on_wave: Callable[[int, Wave, bool], None] = lambda _number, _wave, _begins: None
    say: Callable[[str], None] = lambda _text: None
    pause: Callable[[float], None] = time.sleep
    waiting: Sequence[str] = ()
    stopped: str = ""  # why later waves were not started
    _hold: dict[str, str] = field(default_factory=dict)  # as declared, but their wave has not ended yet

    def __post_init__(self) -> None:
        self._ledger = Ledger(self.on_result)
        self._may_fail = self.options.max_failures.of(sum(map(len, (self.waiting, *self.plan.waves))))
        self._work = WaveWork(
            self.plan, self.executor, self.options, self._ledger, say=self.say, pause=self.pause
        )

    @property
    def results(self) -> dict[str, Result]:
        return self._ledger.results

    def run(self) -> None:
        """Execute the plan. On KeyboardInterrupt every node still has a Result."""
        try:
            if self.waiting:
                for node in self.waiting:
                    self._ledger.begin(node)
                self._hold = dict.fromkeys(self.waiting, "")
                self._put_back(0, BATCH)
                self._stop_if_too_many_failed(0, Wave(self.waiting))
            for number, wave in enumerate(self.plan.waves, 1):
                self.stopped = self.stopped or self.halted()
                if self.stopped:
                    self.say(f"not attempted: {fold(wave)}")
                    self._ledger.end_all(wave, Status.NOT_ATTEMPTED, self.stopped)
                    continue
                if len(self.plan.waves) > 1:
                    kind = f" ({wave.kind})" if wave.kind == CANARY else ""
                    self.say(f"wave {number} of {len(self.plan.waves)}{kind}: {many(len(wave), 'node')}")
                self.on_wave(number, wave, True)
                self._wave(number, wave)
                self.on_wave(number, wave, False)
                self._stop_if_too_many_failed(number, wave)
        except BaseException:  # unlike Exception, includes KeyboardInterrupt
            self._interrupted()
            raise

    def _wave(self, number: int, wave: Wave) -> None:
        ready = wave if self.options.check_mode else self._drained(number, wave)
        self._hold = self._work.run(ready, self._may_fail - len(self._bad())) if ready else {}
        self._put_back(number, wave.kind)

    def _put_back(self, number: int, kind: str) -> None:
        """Run the held nodes through the health gate, and return the passing ones to service."""
        for node, why in (self.executor.gate(list(self._hold)) if self._hold else {}).items():
            self._hold.pop(node)
            self._ledger.end(node, Status.UNHEALTHY, why)
        drained = self.options.earlier.drained
        # Wave 0 has the waiting nodes of an earlier run, which may not have drained all of them.
        back = Wave([node for node in self._hold if number or node in drained], kind)
        refused = self.executor.undrain(number, back) if back else {}
        for node, message in list(self._hold.items()):
            self._hold.pop(node)
            if node in refused:
                self._ledger.end(node, Status.DRAINED, f"it matches its declared state; {refused[node]}")
            else:
                self._ledger.end(node, Status.DONE, message)

    def _drained(self, number: int, wave: Wave) -> list[str]:
        """Drain a wave and return its drained nodes; a failure excludes the node with its whole group."""
        refused = self.executor.drain(number, wave)
        left: dict[str, str] = {}
        for node, why in refused.items():
            for other in wave.together(node):
                left.setdefault(other, why if other == node else f"{node} of its group: {why}")
        left.update(refused)  # a node's own reason, not that of another in its group
        # Nodes drained by an earlier run stay drained: they may be half changed, or have failed the gate.
        ours = {*wave}.difference(refused, self.options.earlier.drained)
        back = Wave([node for node in left if node in ours], wave.kind)
        for node, why in (self.executor.undrain(number, back) if back else {}).items():
            left[node] += f"; and {why}"
        for node, why in left.items():
            self.say(f"{node}: not attempted: {why}")
            self._ledger.end(node, Status.NOT_ATTEMPTED, why)
        return [node for node in wave if node not in left]

    def _bad(self) -> list[Result]:
        """Return the touched nodes that are in trouble now."""
        touched = [self.results[node] for node in self._ledger.done if node in self.results]
        return [one for one in touched if one.status in (UNHEALTHY | INCOMPLETE) - {Status.REBOOT_NEEDED}]

    def _stop_if_too_many_failed(self, number: int, wave: Wave) -> None:
        dead = [node for node in wave if self.results[node].status not in _WELL]
        if wave.kind == CANARY and dead:
            # Stop regardless of --max-failures: the others of its kind would be changed without proof.
            tried = [node for node in dead if self.results[node].status is not Status.NOT_ATTEMPTED]
            what = "canary" if len(tried or dead) == 1 else "canaries"
            how = "failed" if tried else "not attempted"
            self.stopped = f"the {what} {fold(tried or dead)} {how}: no other wave was started"
        elif (bad := len(self._bad())) > self._may_fail:
            allowed = f"--max-failures {self.options.max_failures}"
            where = f"up to wave {number}" if number else "the health gate"
            self.stopped = f"{bad} failed {where}, more than allowed ({allowed})"

    def _interrupted(self) -> None:
        end_all, results = self._ledger.end_all, self.results
        waiting = [node for node in self._hold if node not in results]
        end_all(waiting, Status.INTERRUPTED, "it matches its declared state; stopped before its wave ended")
        started = [node for node in self._ledger.done if node not in results]
        end_all(started, Status.INTERRUPTED, "stopped during its roles; they can be run again")
        rest: Sequence[str] = [node for wave in self.plan.waves for node in wave if node not in results]
        end_all(rest, Status.NOT_ATTEMPTED, "interrupted before its wave")


@dataclass
class WaveWork:
    """Work on the nodes of one wave: apply, observe, reboot if drifts wait for that, observe again."""

    plan: Plan
    executor: Executor
    options: UpOptions
    ledger: Ledger
    say: Callable[[str], None]
    pause: Callable[[float], None]

    def run(self, nodes: Collection[str], may_fail: int) -> dict[str, str]:
        """Bring nodes to their declared state; return those that reached it, each with a remark.

        The others have ended. Once more than `may_fail` nodes failed to come back from a reboot, no other is
        rebooted."""
        pending = {node: self.plan.nodes[node].roles for node in nodes}
        before = {node: _facts(self.plan.nodes[node].drifts) for node in nodes}
        hold: dict[str, str] = {}
        for number in range(1, PASSES + 1):
            alive, lost = self._apply(pending, number)
            if self.options.check_mode:
                return {}
            looks = self._settled(alive)
            returned = self._returned(lost)
            looks.update(returned)
            rebooted: set[str] = set()
            if self.options.may_reboot:
                wanting = [n for n, look in looks.items() if _wants_reboot(look, number)]
                rebooted = self._reboot(wanting, may_fail)  # also ends nodes that do not come back
                looks = {n: look for n, look in looks.items() if n not in self.ledger.results}
                looks.update(self._settled(sorted(rebooted), booted=True))
            pending = {}
            for node, look in looks.items():
                every = node in rebooted or node in returned
                again = () if number == PASSES else self._again(look, before[node], every)
                if look.drifts and again:
                    self.say(f"{node}: now {', '.join(again)} differs: a second pass")
                    pending[node] = again
                elif node not in self.ledger.results:
                    hold.update(self._verdict(node, look))
            if not pending:
                break
        return hold

    def _apply(
        self, roles: Mapping[str, tuple[str, ...]], number: int
    ) -> tuple[list[str], dict[str, Outcome]]:
        """Run roles; return the nodes on which they succeeded, and silent nodes, which get another chance."""
        for node, names in roles.items():
            done = self.ledger.begin(node)
            done.roles += [name for name in names if name not in done.roles]
        outcomes = self.executor.apply(roles)
        checked = Status.CHECKED if self.options.check_mode else None
        lost = {}
        # In the last pass nothing would run again on a silent node, so it ends as unreachable.
        if number < PASSES and checked is None:
            lost = {node: said for node in roles if (said := _of(outcomes, node)).status == "unreachable"}
            for node, said in lost.items():
                self.ledger.begin(node).changed += said.changed
        return self._survivors([node for node in roles if node not in lost], outcomes, checked), lost

    def _returned(self, lost: Mapping[str, Outcome]) -> dict[str, Look]:
        """Wait for nodes that stopped answering, end the lost ones and return the others."""
        back: dict[str, Look] = {}
        looks: Mapping[str, Look] = {}
        for number in range(LOST_LOOKS):
            missing = [node for node in lost if node not in back]
            if not missing:
                break
            if number:
                self.pause(LOST_PAUSE)
            looks = self.executor.look(missing)
            back.update({node: look for node, look in looks.items() if not look.error})
        for node, outcome in lost.items():
            where = " · ".join(part for part in (outcome.role, outcome.task) if part)
            if node in back:
                why = "it booted by itself" if back[node].booted else "the connection broke"
                self.say(f"{node}: {why} in the middle{f' of {where}' if where else ''}; it answers again")
                continue
            look = looks.get(node, Look(node, error=outcome.message, unreachable=True))
            status = Status.UNREACHABLE if look.unreachable else Status.UNREADABLE
            message = f"it stopped answering during this task: {outcome.message}"
            self.ledger.end(node, status, message, role=outcome.role, task=outcome.task)
        return back

    def _reboot(self, nodes: Sequence[str], may_fail: int) -> set[str]:
        """Reboot nodes in batches; return the ones that came back."""
        back: set[str] = set()
        step = self.options.reboots_at_once or max(1, len(nodes))
        for start in range(0, len(nodes), step):
            some = nodes[start : start + step]
            dead = start - len(back)  # all nodes before `start` were rebooted
            if dead > may_fail:
                why = f"it needs a reboot; {many(dead, 'node')} of its wave did not come back from theirs"
                self.ledger.end_all(nodes[start:], Status.NOT_HELD, why)
                break
            self.say(f"rebooting {many(len(some), 'node')}")
            outcomes = self.executor.reboot(some)
            for node in some:
                self.ledger.begin(node).rebooted = True
            back.update(self._survivors(some, outcomes, None))
        return back

    def _survivors(
        self, nodes: Iterable[str], outcomes: Mapping[str, Outcome], when_ok: Status | None
    ) -> list[str]:
        alive = []
        for node in nodes:
            outcome = _of(outcomes, node)
            self.ledger.begin(node).changed += outcome.changed
            if outcome.status == "ok" and when_ok is None:
                alive.append(node)
                continue
            status = {"ok": when_ok, "unreachable": Status.UNREACHABLE}.get(outcome.status) or Status.FAILED
            self.ledger.end(node, status, outcome.message, role=outcome.role, task=outcome.task)
        return alive

    def _look(self, nodes: Sequence[str]) -> dict[str, Look]:
        """Observe nodes again; end those without an answer."""
        looks = {}
        for node, look in (self.executor.look(nodes) if nodes else {}).items():
            if look.error:
                status = Status.UNREACHABLE if look.unreachable else Status.UNREADABLE
                self.ledger.end(node, status, look.error)
            else:
                looks[node] = look
        return looks

    def _settled(self, nodes: Sequence[str], *, booted: bool = False) -> dict[str, Look]:
        """Observe repeatedly until no service is in transition.

        A freshly booted machine is observed at least twice, and again as long as its drifts decrease."""
        looks = self._look(nodes)
        for _ in range(SETTLE_LOOKS):
            moving = [node for node, look in looks.items() if _is_moving(look) or (booted and look.drifts)]
            if not moving:
                break
            self.pause(SETTLE_PAUSE)
            before = {node: looks.pop(node) for node in moving}
            after = self._look(moving)
            looks.update(after)
            # Once no node's drifts decrease, only services in transition are waited for.
            booted = any(len(look.drifts) < len(before[node].drifts) for node, look in after.items())
        return {node: looks[node] for node in nodes if node in looks}

    def _again(self, look: Look, known: set[tuple[str, str]], every: bool) -> tuple[str, ...]:
        """Return the roles to run once more: those with drifts that are not in `known`.

        These are new drifts, or drifts that a step of the role did not remove. With `every` (after a reboot
        or a lost connection), any drift counts."""
        differing = {
            drift.expectation.role
            for drift in look.drifts
            if every or (drift.expectation.role, drift.expectation.fact) not in known
        }
        return tuple(role for role in roles_in_order() if role in differing)

    def _verdict(self, node: str, look: Look) -> dict[str, str]:
        """Judge a node after all work: return it if its expectations hold, else end it."""
        end = self.ledger.end
        if not look.drifts:
            return {node: f"it still needs a reboot: {look.boot_required}" if look.boot_required else ""}
        if all(drift.unknown for drift in look.drifts):
            end(node, Status.UNREADABLE, count_of(look.drifts, "could not be read"), drifts=look.drifts)
        elif not self.options.may_reboot and all(drift.expectation.reboot for drift in look.drifts):
            end(node, Status.REBOOT_NEEDED, "only a reboot is missing (--no-reboot)", drifts=look.drifts)
        else:
            message = "\n".join([count_of(look.drifts, "still not as declared"), *look.causes])
            end(node, Status.NOT_HELD, message, drifts=look.drifts)
        return {}


def _of(outcomes: Mapping[str, Outcome], node: str) -> Outcome:
    return outcomes.get(node, Outcome(node, "failed", message="nothing was run on it"))


def _facts(drifts: Iterable[Drift]) -> set[tuple[str, str]]:
    # A drift with a step is left out: pass 1 may have run that step only, and the whole role may repair it.
    return {(d.expectation.role, d.expectation.fact) for d in drifts if not d.expectation.step}


def _is_moving(look: Look) -> bool:
    return any(drift.found in _MOVING for drift in look.drifts if isinstance(drift.found, str))


def _wants_reboot(look: Look, number: int) -> bool:
    """Return whether to reboot: in the first pass if one promise waits for it, later if all do.

    Other roles may depend on a waiting promise, such as the fabric manager on the driver."""
    waiting = [drift for drift in look.drifts if drift.expectation.reboot and not drift.unknown]
    if number < PASSES:
        return bool(waiting or look.boot_required)
    return bool(waiting or look.boot_required) and len(waiting) == len(look.drifts)
