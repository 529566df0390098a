"""Brings a fleet to what was declared, wave by wave: out of service, changed, looked at, back into service.

The next wave is begun only when the nodes of the one before hold what was promised of them. What touches
nodes is behind `Hands`; what happens inside a wave is up_wave.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from provision.node_names import fold
from provision.plan import Plan
from provision.up_protocol import Hands, Settings
from provision.up_result import INCOMPLETE, UNHEALTHY, Ledger, Result, Status, nodes_of
from provision.up_wave import WaveWork
from provision.waves import CANARY, Wave

_WELL = {Status.DONE, Status.CHECKED, Status.REBOOT_NEEDED}


class Up:
    """One `up`: takes a plan, carries it out, and keeps one Result per node in `results`.

    `halted` says why no further wave may be begun (a lock was lost), if so; `on_wave` is told each wave's
    number and itself as it begins (True) and ends (False); `drained` are nodes an earlier run left drained.
    """

    def __init__(
        self,
        plan: Plan,
        hands: Hands,
        settings: Settings,
        *,
        on_result: Callable[[Result], None],
        boots: Mapping[str, str] | None = None,
        halted: Callable[[], str] = lambda: "",
        on_wave: Callable[[int, Wave, bool], None] = lambda _number, _wave, _begins: None,
        say: Callable[[str], None] = lambda _text: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.stopped = ""  # why later waves were not begun
        self._ledger = Ledger(on_result)
        self._plan = plan
        self._hands = hands
        self._settings = settings
        self._halted = halted
        self._on_wave = on_wave
        self._say = say
        self._work = WaveWork(plan, hands, settings, self._ledger, boots=boots or {}, say=say, pause=pause)
        self._may_fail = settings.max_failures.of(sum(map(len, plan.waves)))
        self._hold: dict[str, str] = {}  # as declared, but their wave has not ended yet

    @property
    def results(self) -> dict[str, Result]:
        return self._ledger.results

    def run(self) -> None:
        """Carry the plan out. On KeyboardInterrupt every node still has a Result."""
        try:
            for number, wave in enumerate(self._plan.waves, 1):
                self.stopped = self.stopped or self._halted()
                if self.stopped:
                    self._say(f"not attempted: {fold(wave)}")
                    self._ledger.end_all(wave, Status.NOT_ATTEMPTED, self.stopped)
                    continue
                if len(self._plan.waves) > 1:
                    kind = f" ({wave.kind})" if wave.kind == CANARY else ""
                    self._say(f"wave {number} of {len(self._plan.waves)}{kind}: {nodes_of(len(wave))}")
                self._on_wave(number, wave, True)
                self._wave(number, wave)
                self._on_wave(number, wave, False)
                self._stop_if_too_many_failed(number, wave)
        except BaseException:
            self._interrupted()
            raise

    def _wave(self, number: int, wave: Wave) -> None:
        ready = wave if self._settings.check_mode else self._drained(number, wave)
        self._hold = self._work.run(ready, self._may_fail - len(self._bad())) if ready else {}
        for node, why in (self._hands.gate(list(self._hold)) if self._hold else {}).items():
            self._hold.pop(node)
            self._ledger.end(node, Status.UNHEALTHY, why)
        back = Wave(self._hold, wave.kind)
        refused = self._hands.undrain(number, back) if back else {}
        for node in back:
            message = self._hold.pop(node)
            if node in refused:
                self._ledger.end(node, Status.DRAINED, f"it matches its declared state; {refused[node]}")
            else:
                self._ledger.end(node, Status.DONE, message)

    def _drained(self, number: int, wave: Wave) -> list[str]:
        """The nodes that are out of service now. One that is not stays untouched, with its group."""
        refused = self._hands.drain(number, wave)
        left: dict[str, str] = {}
        for node, why in refused.items():
            for other in wave.together(node):
                left.setdefault(other, why if other == node else f"{node} of its group: {why}")
        left.update(refused)
        back = Wave([node for node in left if node not in refused], wave.kind)
        for node, why in (self._hands.undrain(number, back) if back else {}).items():
            left[node] += f"; and {why}"
        for node, why in left.items():
            self._say(f"{node}: not attempted: {why}")
            self._ledger.end(node, Status.NOT_ATTEMPTED, why)
        return [node for node in wave if node not in left]

    def _bad(self) -> list[Result]:
        """Nodes that were touched, and are in trouble now."""
        touched = [self.results[node] for node in self._ledger.done if node in self.results]
        bad = [result for result in touched if result.status in UNHEALTHY | INCOMPLETE]
        return [result for result in bad if result.status is not Status.REBOOT_NEEDED]

    def _stop_if_too_many_failed(self, number: int, wave: Wave) -> None:
        dead = [node for node in wave if self.results[node].status not in _WELL]
        bad = self._bad()
        if wave.kind == CANARY and dead:
            # Whatever --max-failures says: the others of its kind would be done without a proof.
            what = "canary" if len(dead) == 1 else "canaries"
            self.stopped = f"the {what} {fold(dead)} failed: no other wave was started"
        elif len(bad) > self._may_fail:
            allowed = f"--max-failures {self._settings.max_failures}"
            self.stopped = f"{len(bad)} failed up to wave {number}, more than allowed ({allowed})"

    def _interrupted(self) -> None:
        end_all, results = self._ledger.end_all, self.results
        waiting = [node for node in self._hold if node not in results]
        end_all(waiting, Status.INTERRUPTED, "it matches its declared state; stopped before its wave ended")
        started = [node for node in self._ledger.done if node not in results]
        end_all(started, Status.INTERRUPTED, "stopped during its roles; they can be run again")
        rest: Sequence[str] = [node for wave in self._plan.waves for node in wave if node not in results]
        end_all(rest, Status.NOT_ATTEMPTED, "interrupted before its wave")
