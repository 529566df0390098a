"""Draining of nodes through their scheduler before a change, and their return to service.

The reason set on a node, `gpuprov: up RUN`, later identifies it as held by an `up`: this one, a killed one,
or one on another controller. A node held by anyone else, or by another verb of gpuprov (such as a failed
burn-in), is changed and stays out of service. Actions are recorded like calls of hooks, before and after, for
`--resume`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from provision.node_names import fold
from provision.remote.schedulers import PREFIX, Evicts, Holder, Scheduled
from provision.remote.schedulers.chosen import Schedulers, jobs_on
from provision.up.hooks import DRAIN, UNDRAIN, Called

VERB = "up"
POLL = 10.0  # seconds between two queries for jobs
EVICTION = 300.0  # seconds for the scheduler to move remaining jobs elsewhere
SAID = 60.0  # seconds between two messages while waiting
_OURS = re.compile(re.escape(PREFIX) + rf"(?:\([^)]*\) )?{VERB} ")


@dataclass
class Drains:
    """The schedulers around one run. `begun` is called before each action, `heard` with its outcome."""

    schedulers: Schedulers
    run: str
    begun: Callable[[str, Sequence[str]], None]
    heard: Callable[[Called], None]
    say: Callable[[str], None] = lambda _line: None
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _since: float = field(default=0.0)

    def drain(self, nodes: Sequence[str]) -> dict[str, str]:
        """Drain nodes and wait for their jobs; return the reason for each node that is not ready.

        Nodes that this call drained in vain return to service. Nodes without a scheduler are ready."""
        mine = [node for node in nodes if node in self.schedulers.of]
        if not mine:
            return {}
        self._since = self.clock()
        looked = self.schedulers.look(mine)
        problems = {node: f"its scheduler: {state.error}" for node, state in looked.items() if state.error}
        free = []
        for node, state in looked.items():
            if node in problems:
                continue
            if state.holder is Holder.NOBODY or _by_up(state):
                free.append(node)
            else:
                self.say(f"{node}: out of service already ({state.reason or state.state}), and stays so")
        if free:
            self.begun(DRAIN, free)
            problems |= self.schedulers.drain(dict.fromkeys(free, f"{VERB} {self.run}"))
        problems |= self._jobs([node for node in mine if node not in problems])
        for node in free:
            self._called(DRAIN, node, problems.get(node, ""))
        # Nodes drained by an earlier run stay drained: they may be half changed, or have failed the health
        # gate.
        back = [node for node in free if node in problems and looked[node].holder is Holder.NOBODY]
        for node, why in (self._returned(back) if back else {}).items():
            problems[node] += f"; and it is still drained: {why}"
        return problems

    def undrain(self, nodes: Sequence[str]) -> dict[str, str]:
        """Return the nodes held by an `up` to service; return the reason for each failure."""
        mine = [node for node in nodes if node in self.schedulers.of]
        if not mine:
            return {}
        self._since = self.clock()
        return self._returned(mine)

    def _returned(self, nodes: Sequence[str]) -> dict[str, str]:
        self.begun(UNDRAIN, nodes)
        looked = self.schedulers.look(nodes)
        problems = {node: f"its scheduler: {state.error}" for node, state in looked.items() if state.error}
        problems |= self.schedulers.resume([node for node, state in looked.items() if _by_up(state)])
        for node in nodes:
            state = looked[node]
            if state.holder is not Holder.NOBODY and not state.error and not _by_up(state):
                self.say(f"{node}: not returned to service: {state.reason or state.state}")
            self._called(UNDRAIN, node, problems.get(node, ""))
        return problems

    def _jobs(self, nodes: Sequence[str]) -> dict[str, str]:
        """Wait until these nodes have no jobs, each up to its limit; return the remaining jobs by node."""
        start, said_at = self.clock(), -SAID
        left = self._busy(nodes)
        over: dict[str, str] = {}
        while left:
            waited = self.clock() - start
            for node in [node for node in left if waited >= self.schedulers.waits[node]]:
                over[node] = f"{left.pop(node)}, and did not end within {self.schedulers.waits[node]} s"
            if not left:
                break
            if waited - said_at >= SAID:
                said_at = waited
                node, why = next(iter(left.items()))
                others = f" (and for others: {fold(list(left))})" if len(left) > 1 else ""
                longest = max(self.schedulers.waits[node] for node in left)
                self.say(f"{node}: {why}: waiting for it{others}, {waited:.0f} of {longest} s")
            nearest = min(self.schedulers.waits[node] for node in left) - waited
            self.pause(max(0.1, min(POLL, nearest)))
            left = self._busy(list(left))
        return self._evicted(over)

    def _evicted(self, over: dict[str, str]) -> dict[str, str]:
        """Evict the jobs in `over` (node → remaining jobs) if the scheduler can; return remaining ones."""
        for scheduler, nodes in self.schedulers.grouped(list(over)):
            if isinstance(scheduler, Evicts):
                self.say(f"{fold(nodes)}: moving elsewhere what did not end by itself")
                still = scheduler.evict(nodes, EVICTION)
                over = {node: why for node, why in over.items() if node not in nodes} | still
        return over

    def _busy(self, nodes: Sequence[str]) -> dict[str, str]:
        busy = {}
        for node, state in self.schedulers.look(nodes).items() if nodes else ():
            if state.error:
                busy[node] = f"its scheduler does not say whether jobs run on it ({state.error})"
            elif state.jobs:
                busy[node] = jobs_on(state)
        return busy

    def _called(self, event: str, node: str, problem: str) -> None:
        seconds = self.clock() - self._since
        self.heard(Called(event, (node,), problem, 1 if problem else 0, seconds, ""))


def _by_up(said: Scheduled) -> bool:
    return said.holder is Holder.US and _OURS.match(said.reason) is not None


def no_drains() -> Drains:
    """Return drains without any scheduler."""
    return Drains(Schedulers({}, {}), "", lambda _event, _nodes: None, lambda _called: None)
