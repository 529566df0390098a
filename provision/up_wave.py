"""What happens to the nodes of one wave: apply, look again, reboot where that is what is missing, look again.

A node is done when its expectations hold, never because a playbook said so. What touches nodes is behind
`Hands`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from provision.ansible_events import Outcome
from provision.drift import Drift
from provision.plan import Plan
from provision.up_protocol import Hands, Look, Settings
from provision.up_result import Ledger, Status, count_of, nodes_of

PASSES = 2  # a role may undo what another promised; whoever still differs after the second pass is stuck
SETTLE_LOOKS = 12  # further looks at what is still starting (a fabric manager takes half a minute)
SETTLE_PAUSE = 5.0  # seconds between them
LOST_LOOKS = 6  # looks at a node that fell silent in the middle: a short cut, a quick reboot
LOST_PAUSE = 10.0
_MOVING = ("activating", "reloading", "deactivating")  # what systemd calls a service that is on its way


class WaveWork:
    """Brings the nodes of a wave to what was declared."""

    def __init__(
        self,
        plan: Plan,
        hands: Hands,
        settings: Settings,
        ledger: Ledger,
        *,
        boots: Mapping[str, str],
        say: Callable[[str], None] = lambda _text: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._hands = hands
        self._settings = settings
        self._ledger = ledger
        self._boots = dict(boots)
        self._say = say
        self._pause = pause

    def run(self, nodes: Collection[str], may_fail: int) -> dict[str, str]:
        """The nodes that are as declared now, each with what there is to say of it. The others have ended.
        More than `may_fail` nodes that do not come back from a reboot: no further one is rebooted."""
        pending = {node: self._plan.nodes[node].roles for node in nodes}
        known = {node: _facts(self._plan.nodes[node].drifts) for node in nodes}
        hold: dict[str, str] = {}
        for number in range(1, PASSES + 1):
            alive, lost = self._apply(pending, number)
            if self._settings.check_mode:
                return {}
            looks = self._settled(alive)
            returned = self._returned(lost)
            looks.update(returned)
            rebooted: set[str] = set()
            if self._settings.may_reboot:
                wanting = [n for n, look in looks.items() if _wants_reboot(look, number)]
                rebooted = self._reboot(wanting, may_fail)
                looks = {n: look for n, look in looks.items() if n not in self._ledger.results}
                looks.update(self._settled(sorted(rebooted), booted=True))
            pending = {}
            for node, look in looks.items():
                every = node in rebooted or node in returned
                again = () if number == PASSES else self._again(look, known[node], every)
                if look.drifts and again:
                    self._say(f"{node}: now {', '.join(again)} differs: a second pass")
                    pending[node] = again
                elif node not in self._ledger.results:
                    hold.update(self._verdict(node, look))
            if not pending:
                break
        return hold

    def _apply(
        self, roles: Mapping[str, tuple[str, ...]], number: int
    ) -> tuple[list[str], dict[str, Outcome]]:
        """Run roles: the nodes on which they succeeded, and those that fell silent (they get a chance)."""
        for node, names in roles.items():
            done = self._ledger.begin(node)
            done.roles += [name for name in names if name not in done.roles]
        outcomes = self._hands.apply(roles)
        checked = Status.CHECKED if self._settings.check_mode else None
        lost = {}
        if number < PASSES and checked is None:
            lost = {node: said for node in roles if (said := _of(outcomes, node)).status == "unreachable"}
            for node, said in lost.items():
                self._ledger.begin(node).changed += said.changed
        return self._survivors([node for node in roles if node not in lost], outcomes, checked), lost

    def _returned(self, lost: Mapping[str, Outcome]) -> dict[str, Look]:
        """Nodes that fell silent in the middle, and answer again after a while; the others end here."""
        found: dict[str, Look] = {}
        looks: Mapping[str, Look] = {}
        for number in range(LOST_LOOKS):
            missing = [node for node in lost if node not in found]
            if not missing:
                break
            if number:
                self._pause(LOST_PAUSE)
            looks = self._hands.look(missing)
            found.update({node: look for node, look in looks.items() if not look.error})
        for node, outcome in lost.items():
            where = " · ".join(part for part in (outcome.role, outcome.task) if part)
            if node in found:
                before, now = self._boots.get(node, ""), found[node].boot
                why = "it booted by itself" if before and now and before != now else "the connection broke"
                self._boots[node] = now
                self._say(f"{node}: {why} in the middle{f' of {where}' if where else ''}; it answers again")
                continue
            look = looks.get(node, Look(node, error=outcome.message, unreachable=True))
            status = Status.UNREACHABLE if look.unreachable else Status.UNREADABLE
            message = f"it stopped answering during this task: {outcome.message}"
            self._ledger.end(node, status, message, role=outcome.role, task=outcome.task)
        return found

    def _reboot(self, nodes: Sequence[str], may_fail: int) -> set[str]:
        """Reboot nodes, some at a time; those that came back."""
        back: set[str] = set()
        step = self._settings.reboots_at_once or max(1, len(nodes))
        for start in range(0, len(nodes), step):
            some = nodes[start : start + step]
            dead = start - len(back)
            if dead > may_fail:
                why = f"it needs a reboot; {nodes_of(dead)} of its wave did not come back from theirs"
                self._ledger.end_all(nodes[start:], Status.NOT_HELD, why)
                break
            self._say(f"rebooting {nodes_of(len(some))}")
            outcomes = self._hands.reboot(some)
            for node in some:
                self._ledger.begin(node).rebooted = True
            back.update(self._survivors(some, outcomes, None))
        return back

    def _survivors(
        self, nodes: Iterable[str], outcomes: Mapping[str, Outcome], when_ok: Status | None
    ) -> list[str]:
        alive = []
        for node in nodes:
            outcome = _of(outcomes, node)
            self._ledger.begin(node).changed += outcome.changed
            if outcome.status == "ok" and when_ok is None:
                alive.append(node)
                continue
            status = {"ok": when_ok, "unreachable": Status.UNREACHABLE}.get(outcome.status) or Status.FAILED
            self._ledger.end(node, status, outcome.message, role=outcome.role, task=outcome.task)
        return alive

    def _look(self, nodes: Sequence[str]) -> dict[str, Look]:
        """Look again; nodes that cannot be asked any more end here."""
        looks = {}
        for node, look in (self._hands.look(nodes) if nodes else {}).items():
            if look.error:
                status = Status.UNREACHABLE if look.unreachable else Status.UNREADABLE
                self._ledger.end(node, status, look.error)
            else:
                self._boots[node] = look.boot
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

    def _again(self, look: Look, known: set[tuple[str, str]], every: bool) -> tuple[str, ...]:
        """The roles worth running once more: their promise was broken meanwhile, or they had waited for a
        reboot, or were interrupted (`every`)."""
        wanted = {
            drift.expectation.role
            for drift in look.drifts
            if every or (drift.expectation.role, drift.expectation.fact) not in known
        }
        return tuple(role for role in self._settings.role_order if role in wanted)

    def _verdict(self, node: str, look: Look) -> dict[str, str]:
        """Whether the node's expectations hold, now that all was done; it ends here when they do not."""
        end = self._ledger.end
        if not look.drifts:
            return {node: f"it still needs a reboot: {look.boot_required}" if look.boot_required else ""}
        if all(drift.unknown for drift in look.drifts):
            end(node, Status.UNREADABLE, count_of(look.drifts, "could not be read"), drifts=look.drifts)
        elif not self._settings.may_reboot and all(drift.expectation.reboot for drift in look.drifts):
            message = "only a reboot is missing (--no-reboot)"
            end(node, Status.REBOOT_NEEDED, message, drifts=look.drifts)
        else:
            message = "\n".join([count_of(look.drifts, "still not as declared"), *look.causes])
            end(node, Status.NOT_HELD, message, drifts=look.drifts)
        return {}


def _of(outcomes: Mapping[str, Outcome], node: str) -> Outcome:
    return outcomes.get(node, Outcome(node, "failed", message="nothing was run on it"))


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
