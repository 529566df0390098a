"""One run of `up`: observe, plan, lock, execute in waves, leave a run folder."""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from provision import bug_file
from provision.desired import inventory, stack
from provision.drift import assess
from provision.drift.assess import Assessment
from provision.errors import ExitCode, GpuprovError
from provision.events import (
    Confirm,
    NodeEnded,
    Note,
    OnEvent,
    RunBegan,
    Step,
    TaskBegan,
    UpPlanned,
    agree,
    ignore,
    work,
)
from provision.events import Event as Reported
from provision.fleet import Fleet
from provision.node_names import fold
from provision.remote.ansible import accelerator, handover
from provision.remote.ansible.events import Event
from provision.remote.ansible.runner import ended_as_interrupted
from provision.remote.reach import fleet_lock
from provision.remote.reach.fleet_lock import FleetLock
from provision.remote.schedulers import chosen
from provision.remote.workers import register
from provision.runs.store import RunFolder
from provision.up import collect, durations, hooks, plan, plan_report, resume, waves
from provision.up import result as up_result
from provision.up.drains import Drains
from provision.up.execute import Execution
from provision.up.executor import AnsibleExecutor, Journal, looks
from provision.up.options import QUICK, Gate, UpOptions
from provision.up.plan import Plan
from provision.up.result import Result, Status, UpResult, count_of, exit_code
from provision.up.resume import StillRunning, locked
from provision.up.waves import Wave


@dataclass
class UpRun:
    """One `up`. `results` fills as nodes end; the run folder always records the progress.

    `changes`: role and task → nodes a --check would change; `diffs`: role, task and file difference → nodes
    (--diff)."""

    fleet: Fleet
    overrides: Mapping[str, Any]
    options: UpOptions
    folder: RunFolder
    gate: Gate
    on_event: OnEvent = ignore
    confirm: Confirm = agree
    results: dict[str, Result] = field(default_factory=dict)
    changes: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    diffs: dict[tuple[str, str, str], list[str]] = field(default_factory=dict)
    _secrets: tuple[str, ...] = ()
    _clocks: Mapping[str, str] = field(default_factory=dict)
    _still_locked: tuple[str, ...] = ()
    _started: float = field(default_factory=time.monotonic)
    _listing: tuple[str, ...] = ()  # nodes that still declare a removed role

    def run(self) -> UpResult:
        """Run `up`. Raises GpuprovError after noting it in the run folder."""
        running = StillRunning(self.folder)
        try:
            # SIGTERM counts as an interrupt: work in progress ends in order, and locks are released.
            with ended_as_interrupted(), register.use(self.folder.path):
                return self._run()
        except KeyboardInterrupt:
            return self._close(ExitCode.INTERRUPTED, interrupted=True)
        except GpuprovError as error:
            self.folder.note(error=error.what)
            self.folder.finish(error.exit_code)
            self._tell_drained()
            raise
        except Exception as error:
            named = bug_file.named(error)
            with contextlib.suppress(OSError):  # the disk may be full
                self.folder.finish(named.exit_code)
            self._tell_drained()
            raise named from error
        finally:
            running.close()

    def _run(self) -> UpResult:
        resume.refuse_twice_named(self.fleet)
        site_hooks = hooks.load(self.fleet, self.overrides)
        schedulers = chosen.load(self.fleet, self.overrides)
        name = accelerator.VARIABLE
        accelerator.check(
            [self.overrides.get(name, node.variables.get(name)) for node in self.fleet.nodes.values()]
        )
        handover.remove_orphans()
        earlier = resume.chain(self.folder)[1:]
        collect.remove_overdue([self.folder, *earlier])
        collected = collect.gather(earlier, self._say)
        seen = self._look()
        collect.keep(collected, self.fleet, seen.vaulted, seen.secrets)
        made = self._plan(seen)
        busy = {node for wave in made.waves for node in wave}
        waiting = [node for node in self._unfinished(seen) if node not in busy]
        collect.unlock(collected, self.fleet, {*busy, *waiting}, self._lock())
        if made.waves:
            self._confirm(made, seen)
        if made.waves or waiting:
            with work("up", len(busy) + len(waiting), self.on_event):
                self._carry_out(seen, made, site_hooks, schedulers, waiting)
        return self._close(exit_code(self.results.values()))

    def _carry_out(
        self,
        known: Assessment,
        made: Plan,
        found: Mapping[str, Mapping[str, hooks.Hook]],
        schedulers: chosen.Schedulers,
        waiting: Sequence[str],
    ) -> None:
        """Finish nodes that an earlier run left `waiting`, then execute. Raises LockedError."""
        options, lock = self.options, self._lock()
        executor = AnsibleExecutor(
            options,
            known,
            made,
            self._journal,
            self._hooks(found, made),
            health=self._quick_checks,
            rebooted=lock.renew,
            on_event=self._heard,
            drains=Drains(
                schedulers,
                self.folder.id,
                lambda event, nodes: self._begun(f"{event} in the scheduler", event, nodes),
                self._journal.called,
                self._say,
            ),
            say=self._say,
        )

        def execute(plan: Plan) -> None:
            Execution(
                plan,
                executor,
                options,
                self._end,
                halted=lambda: lock.lost,
                on_wave=lambda *about: self._note_wave(lock, *about),
                say=self._say,
                waiting=[node for node in waiting if node not in self.results],
            ).run()

        if options.check_mode:
            execute(made)
        else:
            busy = [*waiting, *(node for wave in made.waves for node in wave)]
            with locked(lock, busy, say=self._say) as held:
                self._clocks = held.clocks
                for result in held.lost.values():
                    self._end(result)
                left = tuple(kept for wave in made.waves if (kept := wave.without(held.lost)))
                execute(replace(made, waves=left))
            self._still_locked = lock.left

    def _lock(self) -> FleetLock:
        options = self.options
        return FleetLock(
            self.folder.id,
            fleet_lock.on_fleet(self.fleet, timeout=options.timeout, connections=options.connections),
            before=options.earlier.ids,
            force=options.break_lock,
            since=str(self.folder.meta()["started"]),
            fleet=self.fleet,
        )

    def _hooks(self, found: Mapping[str, Mapping[str, hooks.Hook]], made: Plan) -> hooks.Runner:
        about = {
            node: {"roles": list(planned.roles), "reboot": planned.reboot}
            for node, planned in made.nodes.items()
        }

        def begun(event: str, nodes: Sequence[str]) -> None:
            self._begun(f"{event} hooks", event, nodes)

        return hooks.Runner(found, self.folder.id, self.fleet.source, begun, self._journal.called, about)

    def _say(self, line: str) -> None:
        self.on_event(Note(line))

    def _begun(self, step: str, event: str, nodes: Sequence[str]) -> None:
        self.on_event(Step(step))
        self._journal.write("hooks", {"hook": event, "nodes": list(nodes), "what": "begins"})

    def _quick_checks(self, nodes: Sequence[str]) -> Mapping[str, str]:
        def on_event(event: Reported) -> None:
            if isinstance(event, RunBegan):
                self._journal.write("waves", {"what": "gate", "run": str(event.folder), "nodes": list(nodes)})
            self.on_event(event)

        return self.gate(self.fleet, self.overrides, nodes, self.options, on_event)

    def _note_wave(self, lock: FleetLock, number: int, wave: Wave, begins: bool) -> None:
        what = "begins" if begins else "ends"
        self._journal.write("waves", {"wave": number, "what": what, **wave.record()})
        if not begins:  # no more work follows; releasing silent nodes would delay the next wave
            silent = (Status.UNREACHABLE, Status.UNREADABLE)
            lock.release([name for name in wave if self.results[name].status not in silent])

    def _end(self, result: Result) -> None:
        if result.node in self._clocks and result.status is Status.FAILED:
            result = replace(result, message=f"{result.message} ({self._clocks[result.node]})")
        self._note(result)
        self.on_event(NodeEnded(result.node, result.status, result.message))

    def _look(self) -> Assessment:
        """Observe every node for the first time; nodes that cannot be worked on end here."""
        seen = assess.with_progress(
            "look",
            self.fleet,
            self.overrides,
            self.on_event,
            timeout=self.options.timeout,
            connections=self.options.connections,
            say=None,
            remove=self.options.remove,
        )
        self._secrets = seen.secrets
        self._listing = tuple(
            node
            for node, declared in seen.declared.items()
            for roles in [declared.get("gpuprov_roles")]
            if roles is None or set(self.options.remove).intersection(roles)
        )
        self._journal.looked(seen, "before")
        for node, look in looks(seen).items():
            if node in seen.refused:
                fixes = dict.fromkeys(refusal.fix for refusal in seen.refused[node] if refusal.fix)
                self._note(
                    Result(node, Status.REFUSED, "\n".join([look.error, *(f"→ {fix}" for fix in fixes)]))
                )
            elif look.error:
                status = Status.UNREACHABLE if look.unreachable else Status.UNREADABLE
                self._note(Result(node, status, look.error))
        return seen

    def _plan(self, known: Assessment) -> Plan:
        """Plan the work; nodes that need no work end here."""
        options, before = self.options, self.options.earlier
        verified = {node for node in before.ended if not known.drifts.get(node, ("unknown",))}
        rollout = waves.rollout(
            known.declared, known.described, size=options.wave_size, canary=options.canary
        )
        proved = frozenset(rollout.kinds[node] for node in verified & before.changed)
        made = plan.make(
            {node: drifts for node, drifts in known.drifts.items() if node not in verified},
            known.observations,
            full=options.full,
            rollout=replace(rollout, proved=proved),
            takes_part={n: set(r).difference(before.applied.get(n, ())) for n, r in known.roles.items()},
            remove=options.remove,
            minutes=durations.learn(self.fleet.place),
        )
        unfinished = set(self._unfinished(known))
        for node in verified - unfinished:
            self._note(Result(node, Status.AS_DECLARED))
        for node, planned in made.nodes.items():
            if planned.as_declared and node in unfinished:
                continue  # its result is that of the health gate
            if planned.as_declared:
                self._note(Result(node, Status.AS_DECLARED))
            elif not planned.roles:
                text = count_of(planned.drifts, "no role can make true")
                self._note(Result(node, Status.NOT_HELD, text, drifts=planned.drifts))
        self.folder.write_json(
            "plan.json",
            {
                "waves": [wave.record() for wave in made.waves],
                "nodes": {
                    node: {"roles": planned.roles, "reboot": planned.reboot, "minutes": planned.minutes}
                    for node, planned in made.nodes.items()
                },
            },
        )
        return made

    def _confirm(self, made: Plan, known: Assessment) -> None:
        """Report the planned changes and ask for confirmation. Raises GpuprovError if it is declined."""
        names = [node for wave in made.waves for node in wave]
        seen = known.described
        stacks = {stack.node_stack(self.fleet.nodes[node], self.overrides, seen[node]).name for node in names}
        intent = plan_report.intent(made, self.options, len(self.fleet.nodes))
        planned = UpPlanned(str(self.fleet.source), tuple(names), tuple(sorted(stacks)), intent)
        self.on_event(planned)
        if not self.confirm(planned):
            raise GpuprovError("stopped before anything was changed", "--yes skips the confirmation")

    def _heard(self, event: Event) -> None:
        """Report an event, and collect changes and diffs for the summary."""
        if "detail" in event.result:
            where = [event.node, event.kind, event.role, event.task, str(event.result.get("item", ""))]
            self._say(" · ".join([*filter(None, where), event.result["detail"]]))
        # Collected only if the summary shows it, since it grows with tasks times nodes.
        if event.kind == "changed" and (self.options.check_mode or "diff" in event.result):
            node = self.fleet.nodes[event.node].name  # reuses the existing string
            if self.options.check_mode and "item" not in event.result:
                self.changes.setdefault((event.role, event.task), []).append(node)
            if "diff" in event.result:
                key = (event.role, event.task, event.result["diff"])
                self.diffs.setdefault(key, []).append(node)
        if event.kind == "started":
            self.on_event(TaskBegan(event.node, event.role, event.task))

    def _note(self, result: Result) -> None:
        self.results[result.node] = result
        self._journal.write("outcomes", result.record())

    def _unfinished(self, known: Assessment) -> list[str]:
        """Return nodes in their declared state that an earlier run left drained or did not gate."""
        earlier, gated = self.options.earlier, self.options.gate == QUICK
        left = earlier.drained | (earlier.begun if gated else frozenset())
        return [node for node in known.as_declared if node in left and not self.options.check_mode]

    @property
    def _drained(self) -> tuple[str, ...]:
        """The nodes of this fleet that `up` has taken out of service and not returned."""
        mine = (
            {"hook": hooks.DRAIN, "nodes": sorted(self.options.earlier.drained)},
            *self.folder.read("hooks"),
        )
        return tuple(sorted(hooks.left_drained(mine) & set(self.fleet.nodes)))

    def _tell_drained(self) -> None:
        """Report the nodes still drained by a run that ends without a summary, and the next command."""
        if drained := self._drained:
            self._say(
                f"gpuprov: still drained, out of service: {fold(drained)}\n"
                f"  → gpuprov up --resume {shlex.quote(str(self.folder.path))}"
            )

    @property
    def _journal(self) -> Journal:
        return Journal(self.folder, self._secrets)

    def _close(self, code: ExitCode, *, interrupted: bool = False) -> UpResult:
        results = tuple(self.results[node] for node in self.fleet.nodes if node in self.results)
        run, options = str(self.folder.path), self.options
        fleet = inventory.arguments(self.fleet)
        command = up_result.next_command(results, fleet, run, options.remove, locked=bool(self._still_locked))
        if interrupted:
            command = f"gpuprov up --resume {self.folder.path}"
        elif options.remove and not code and not options.check_mode:
            command = up_result.after_removal(options.remove, self._listing, fleet)
        self.folder.note(counts=up_result.counts(results), interrupted=interrupted)
        self.folder.finish(code)
        return UpResult(
            folder=self.folder.path,
            results=results,
            code=code,
            command=command,
            drained=self._drained,
            minutes=(time.monotonic() - self._started) / 60,
            removed=options.remove,
            check_mode=options.check_mode,
            changes=self.changes,
            diffs=self.diffs,
            secrets=self._secrets,
        )
