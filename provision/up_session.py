"""One `gpuprov up` from beginning to end: look, plan, carry out in waves, say how it ended, leave a run
folder."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from provision import assess, plan, up_summary
from provision.ansible_events import Event
from provision.assess import Assessment
from provision.errors import ExitCode, GpuprovError
from provision.expectations import roles_in_order
from provision.inventory import Fleet
from provision.plan import Plan
from provision.secrets_mask import masked, secrets_of
from provision.store import RunFolder
from provision.terminal import Progress, printable
from provision.up import Settings, Up
from provision.up_hands import AnsibleHands, Journal, looks
from provision.up_result import Result, Status, count_of, exit_code, nodes_of

_FEW = 32  # nodes whose every role is worth a line where there is no terminal


@dataclass(frozen=True)
class Request:
    """What was asked of `up`. `done_before`: nodes a resumed run had finished; `base`: how to name the
    inventory on a command line; `ask`: confirm before anything is changed."""

    wave_size: int | None = None
    full: bool = False
    max_failures: int = 0
    may_reboot: bool = True
    check_mode: bool = False
    forks: int = 50
    connections: int = 64
    observe_timeout: float = 60.0
    minutes: float | None = None
    ask: bool = False
    json: bool = False
    done_before: Collection[str] = ()
    base: tuple[str, ...] = ()


@dataclass
class Session:
    """One `up`. `results` fills as nodes end; whatever happens, the run folder says how far it came."""

    fleet: Fleet
    overrides: Mapping[str, Any]
    request: Request
    folder: RunFolder
    results: dict[str, Result] = field(default_factory=dict)
    changes: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    _secrets: tuple[str, ...] = ()
    _started: float = field(default_factory=time.monotonic)
    _roles: dict[str, str] = field(default_factory=dict)

    def run(self) -> ExitCode:
        """Raises GpuprovError when it is stopped by a named error, after noting it in the run folder."""
        try:
            code = self._run()
        except KeyboardInterrupt:
            code = ExitCode.INTERRUPTED
            self._close(code, interrupted=True)
        except GpuprovError as error:
            self.folder.note(error=error.what)
            self.folder.finish(error.exit_code)
            raise
        except Exception:
            kept = self.folder.keep_traceback(traceback.format_exc())
            self.folder.finish(ExitCode.BUG)
            last = traceback.format_exc().strip().splitlines()[-1]
            sys.stderr.write(
                f"gpuprov: a bug in gpuprov: {printable(last)}\n  → please report it with {kept}\n"
            )
            return ExitCode.BUG
        return code

    def _run(self) -> ExitCode:
        known = self._look()
        made = self._plan(known)
        if not made.waves or not self._agreed(made):
            code = exit_code(self.results.values())
            return self._close(code)
        request = self.request
        settings = Settings(request.max_failures, request.may_reboot, request.check_mode, roles_in_order())
        busy = sum(len(wave) for wave in made.waves)
        with Progress("up", total=busy) as progress:
            hands = AnsibleHands(
                known,
                made,
                self._journal,
                forks=request.forks,
                connections=request.connections,
                observe_timeout=request.observe_timeout,
                minutes=request.minutes,
                check_mode=request.check_mode,
                on_event=lambda event: self._heard(event, progress, busy),
            )

            def ended(result: Result) -> None:
                self._note(result)
                detail = f": {result.message.splitlines()[0]}" if result.message else ""
                progress.done(f"{result.node}: {result.status}{detail}")

            Up(made, hands, settings, on_result=ended, say=progress.say).run()
        return self._close(exit_code(self.results.values()))

    def _look(self) -> Assessment:
        """The first look at every node; those nothing can be done on end here."""
        with Progress("look", total=len(self.fleet.nodes)) as progress:
            known = assess.assess(
                self.fleet,
                self.overrides,
                timeout=self.request.observe_timeout,
                connections=self.request.connections,
                on_done=lambda said: progress.done(f"{said.node}: {said.error}" if said.error else ""),
            )
        self._secrets = secrets_of({"secret": list(known.secrets)}, *known.declared.values())
        self._journal.looked(known, "before")
        for node, look in looks(known).items():
            if node in known.refused:
                fixes = dict.fromkeys(refusal.fix for refusal in known.refused[node] if refusal.fix)
                self._note(
                    Result(node, Status.REFUSED, "\n".join([look.error, *(f"→ {fix}" for fix in fixes)]))
                )
            elif look.error:
                status = Status.UNREACHABLE if look.unreachable else Status.UNREADABLE
                self._note(Result(node, status, look.error))
        return known

    def _plan(self, known: Assessment) -> Plan:
        """What to do on whom; nodes nothing is to be done on end here."""
        request = self.request
        verified = {node for node in request.done_before if not known.drifts.get(node, ("unknown",))}
        made = plan.make(
            {node: found for node, found in known.drifts.items() if node not in verified},
            known.observations,
            wave_size=request.wave_size,
            full=request.full,
            first=known.waves,
        )
        for node in verified:
            self._note(Result(node, Status.AS_DECLARED))
        for node, wanted in made.nodes.items():
            if wanted.as_declared:
                self._note(Result(node, Status.AS_DECLARED))
            elif not wanted.roles:
                text = count_of(wanted.drifts, "no role can make true")
                self._note(Result(node, Status.NOT_HELD, text, drifts=wanted.drifts))
        self.folder.write_json(
            "plan.json",
            {
                "waves": made.waves,
                "nodes": {
                    node: {"roles": wanted.roles, "reboot": wanted.reboot, "minutes": wanted.minutes}
                    for node, wanted in made.nodes.items()
                },
            },
        )
        return made

    def _agreed(self, made: Plan) -> bool:
        """Say what is about to happen; ask where a person can answer."""
        busy = [made.nodes[node] for wave in made.waves for node in wave]
        reboots = sum(node.reboot for node in busy) if self.request.may_reboot else 0
        minutes = sum(max(made.nodes[node].minutes for node in wave) for wave in made.waves)
        words = [f"{len(busy)} of {len(self.fleet.nodes)} nodes differ from what was declared"]
        if self.request.full:
            words = [f"every role on {len(busy)} of {len(self.fleet.nodes)} nodes"]
        words.append(f"{len(made.waves)} wave{'s' if len(made.waves) != 1 else ''}")
        if reboots and not self.request.check_mode:
            words.append(f"{reboots} to be rebooted")
        words.append(f"about {minutes:.0f} min")
        sys.stderr.write(" · ".join(words) + "\n")
        if not self.request.ask:
            return True
        sys.stderr.write("go on? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return True
        raise GpuprovError("stopped before anything was changed", "--yes goes on without asking")

    def _heard(self, event: Event, progress: Progress, busy: int) -> None:
        """Tell a person what is happening: every task on a terminal, every role elsewhere; of a large fleet
        the node that comes first."""
        if event.kind == "changed" and "item" not in event.result:
            self.changes.setdefault(event.node, []).append((event.role, event.task))
        if event.kind != "started":
            return
        if sys.stderr.isatty():
            progress.step(f"{event.node}: {event.role + ' · ' if event.role else ''}{event.task}")
        elif event.role and self._roles.get(event.node if busy <= _FEW else "all") != event.role:
            self._roles[event.node if busy <= _FEW else "all"] = event.role
            progress.step(f"{event.node}: {event.role}")

    def _note(self, result: Result) -> None:
        self.results[result.node] = result
        self._journal.write("outcomes", up_summary.record(result))

    @property
    def _journal(self) -> Journal:
        return Journal(self.folder, self._secrets)

    def _close(self, code: ExitCode, *, interrupted: bool = False) -> ExitCode:
        results = [self.results[node] for node in self.fleet.nodes if node in self.results]
        run = str(self.folder.path)
        command = up_summary.next_command(results, self.request.base, run)
        if interrupted:
            command = f"gpuprov up --resume {self.folder.path}"
        self.folder.note(counts=up_summary.counts(results), interrupted=interrupted)
        self.folder.finish(code)
        minutes = (time.monotonic() - self._started) / 60
        said = masked(up_summary.text(results, command, run, minutes), self._secrets)
        if results and all(result.status is Status.AS_DECLARED for result in results):
            said = f"{nodes_of(len(results))} already as declared\nnext: {command}\nrun:  {run}"
        if self.request.check_mode:
            said = "\n".join([*up_summary.would_change(self.changes), said])
        if self.request.json:
            import json

            document = up_summary.document(results, run=run, exit_code=code, next_command=command)
            sys.stdout.write(json.dumps(masked(document, self._secrets), indent=1, default=str) + "\n")
        else:
            sys.stdout.write(said + "\n")
        sys.stdout.flush()
        return code
