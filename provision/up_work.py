"""Carries a plan out: the nodes' locks in hand, the site's hooks around it, all of it written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from provision import hooks
from provision.ansible_events import Event
from provision.assess import Assessment
from provision.expectations import roles_in_order
from provision.fleet_lock import FleetLock
from provision.inventory import Fleet
from provision.node_error import NodeError
from provision.observe import run_programs
from provision.plan import Plan
from provision.store import RunFolder
from provision.terminal import Progress
from provision.up import Up
from provision.up_hands import AnsibleHands, Journal
from provision.up_lock import locked
from provision.up_protocol import EXPECTATIONS, QUICK, Settings
from provision.up_result import Result, Status
from provision.up_resume import Before, run_id
from provision.waves import BATCH, Share, Wave


@dataclass(frozen=True)
class Request:
    """What was asked of `up`. `before`: what a resumed run left; `base`: how to name the inventory on a
    command line; `ask`: confirm before anything is changed."""

    size: Share | None = None
    canary: bool = True
    full: bool = False
    max_failures: Share = field(default_factory=lambda: Share(0))
    may_reboot: bool = True
    reboots_at_once: int | None = None
    check_mode: bool = False
    gate: str = EXPECTATIONS
    break_lock: bool = False
    forks: int = 50
    connections: int = 64
    observe_timeout: float = 60.0
    minutes: float | None = None
    ask: bool = False
    json: bool = False
    before: Before = field(default_factory=Before)
    base: tuple[str, ...] = ()


@dataclass
class Work:
    """All that carrying a plan out needs. `found`: the hooks; `ended` is told each node's end, `heard` every
    event."""

    fleet: Fleet
    overrides: Mapping[str, Any]
    request: Request
    journal: Journal
    known: Assessment
    made: Plan
    found: Mapping[str, Mapping[str, hooks.Hook]]
    progress: Progress
    ended: Callable[[Result], None]
    heard: Callable[[Event], None]
    _clocks: Mapping[str, str] = field(default_factory=dict)

    def carry_out(self, waiting: Sequence[str]) -> None:
        """Put `waiting` back into service (an earlier run left them out of it); then wave by wave.

        Raises LockedError when somebody else is at work on one of the nodes."""
        calls = self._hooks()
        refused = calls.call(hooks.UNDRAIN, waiting, 0, BATCH)
        for node, why in refused.items():
            self._end(Result(node, Status.DRAINED, f"it matches its declared state; {why}"))
        lock = FleetLock(
            self._run,
            self._programs,
            before=self.request.before.runs,
            force=self.request.break_lock,
            since=str(self.journal.folder.meta()["started"]),
        )
        busy = [node for wave in self.made.waves for node in wave]
        if self.request.check_mode:
            self._wave_by_wave(self.made, calls, lock)
        elif busy:
            with locked(lock, busy, say=self.progress.say) as held:
                self._clocks = held.clocks
                for result in held.lost.values():
                    self._end(result)
                waves = tuple(kept for wave in self.made.waves if (kept := wave.without(held.lost)))
                self._wave_by_wave(replace(self.made, waves=waves), calls, lock)

    def _wave_by_wave(self, plan: Plan, calls: hooks.Runner, lock: FleetLock) -> None:
        request = self.request
        boots = {node: str(said.facts.get("boot.id") or "") for node, said in self.known.observations.items()}
        hands = AnsibleHands(
            self.known,
            plan,
            self.journal,
            calls,
            self._run,
            forks=request.forks,
            connections=request.connections,
            observe_timeout=request.observe_timeout,
            minutes=request.minutes,
            check_mode=request.check_mode,
            on_event=self.heard,
            rebooted=lock.renew,
            checks=self._checks,
            boots=dict(boots),
        )
        settings = Settings(
            request.max_failures,
            request.may_reboot,
            request.reboots_at_once,
            request.check_mode,
            roles_in_order(),
        )
        Up(
            plan,
            hands,
            settings,
            on_result=self._end,
            boots=boots,
            halted=lambda: lock.lost,
            on_wave=self._note_wave,
            say=self.progress.say,
        ).run()

    @property
    def _run(self) -> str:
        return run_id(self.journal.folder)

    def _hooks(self) -> hooks.Runner:
        about = {
            node: {"roles": list(planned.roles), "reboot": planned.reboot}
            for node, planned in self.made.nodes.items()
        }

        def begun(event: str, nodes: Sequence[str]) -> None:
            self.progress.step(f"{event} hooks")
            self.journal.write("hooks", {"hook": event, "nodes": list(nodes), "what": "begins"})

        return hooks.Runner(self.found, self._run, self.fleet.source, begun, self.journal.called, about)

    def _programs(self, programs: Mapping[str, str]) -> Mapping[str, bytes | NodeError]:
        return run_programs(
            [self.fleet.nodes[node] for node in programs],
            programs,
            timeout=self.request.observe_timeout,
            connections=self.request.connections,
            vault_password_files=self.fleet.vault_password_files,
        )

    def _checks(self, nodes: Sequence[str]) -> Mapping[str, str]:
        """The gate beyond the expectations."""
        if self.request.gate != QUICK:
            return {}
        from provision import gate, validation  # they bring every check with them

        settings = validation.Settings(
            forks=self.request.forks,
            connections=self.request.connections,
            vault_password_files=self.fleet.vault_password_files,
        )

        def opened(folder: RunFolder) -> None:
            self.journal.write("waves", {"what": "gate", "run": str(folder.path), "nodes": list(nodes)})

        with self.progress.paused():
            return gate.quick(self.fleet, self.overrides, nodes, settings, opened)

    def _note_wave(self, number: int, wave: Wave, begins: bool) -> None:
        what = "begins" if begins else "ends"
        self.journal.write("waves", {"wave": number, "what": what, **wave.record()})

    def _end(self, result: Result) -> None:
        if result.node in self._clocks and result.status is Status.FAILED:
            result = replace(result, message=f"{result.message} ({self._clocks[result.node]})")
        self.ended(result)
        detail = f": {result.message.splitlines()[0]}" if result.message else ""
        # Who was not attempted was said in one line for all of them.
        said = result.status is Status.NOT_ATTEMPTED
        self.progress.done("" if said else f"{result.node}: {result.status}{detail}")
