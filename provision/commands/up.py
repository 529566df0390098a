"""gpuprov up: install the declared stack on the nodes, wave by wave, and verify the result."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options, plan
from provision.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from provision.api.fleets import LoadedFleet
    from provision.events import Event, UpPlanned
    from provision.runs.store import RunFolder
    from provision.up.options import UpOptions
    from provision.up.result import UpResult

_FEW = 32  # up to this many nodes, each role of each node gets a line outside a terminal

EPILOG = """\
A node is done when a second observation shows that every expectation of its roles holds, not when the
playbook ends. Nodes that already match are observed once and not changed. The first wave has one node of
each SKU and operating system (the canaries); the other nodes follow in waves, one wave after the other.

The roles run in one ansible-playbook process per CPU core of this machine, each with 50 nodes or more;
--forks is divided among the processes. GPUPROV_PROCESSES sets another number of processes.

exit codes: 3 when a role failed on a node, a node is refused or still differs from its declared state;
otherwise 5 when a node is unreachable or unreadable; otherwise 0.

examples:
  gpuprov up                              all nodes of ./inventory.yml
  gpuprov up fleet.yml --nodes 'rack1:!gpu-07'
  gpuprov up --wave 10% --max-failures 2  stop after more than 2 failures
  gpuprov up --gate quick                 check the GPUs of each wave
  gpuprov up --check --diff               show what would change; change nothing
  gpuprov up --remove validation_tools    take a role off the nodes again
  gpuprov up --resume                     continue the last run
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser, last_used=False)
    add = parser.add_argument
    add("--full", action="store_true", help="apply every role to every node, needed or not")
    plan.add_removal(parser)
    plan.add_wave_options(parser)
    add(
        "--max-failures",
        type=plan.share,
        metavar="N|P%",
        help="start no further wave after more failed nodes than this (default 0); a failed canary always "
        "stops",
    )
    add(
        "--gate",
        choices=("expectations", "quick"),
        help="what a wave must pass before the next wave starts: the expectations of its roles (default), or "
        "also the quick checks of validate",
    )
    add("--no-reboot", action="store_true", help="do not reboot; list the nodes that need a reboot")
    add(
        "--reboots-at-once",
        type=fleet_options.count,
        metavar="N",
        help="maximum number of nodes rebooting at the same time (default: all of the wave that need it)",
    )
    add("-C", "--check", action="store_true", help="run the roles in check mode: show what they would change")
    add(
        "-D",
        "--diff",
        action="store_true",
        help="show the differences in files that the roles change, or with --check would change",
    )
    add(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="show the result of every task as it comes; -vvv also its arguments and Ansible's connections",
    )
    fleet_options.add_resume(parser, "inventory and options")
    fleet_options.add_break_lock(parser, "take over")
    fleet_options.add_count(parser, "--forks", 50, "maximum number of nodes changed at the same time", "-f")
    add(
        "--wave-timeout",
        type=fleet_options.count,
        metavar="MIN",
        help="stop a wave's roles after MIN minutes (default: one hour plus four times the planned time)",
    )
    add(
        "--yes",
        "-y",
        action="store_true",
        help="skip the confirmation prompt (shown only on an interactive terminal)",
    )


def run(options: argparse.Namespace) -> ExitCode:
    resumed = _resumed(options) if options.resume is not None else None
    remove = plan.removed(options)
    loaded = fleet_options.loaded(options)
    if "@" in options.nodes:  # a resumed run uses the same nodes, even if the file has changed
        options.nodes = ",".join(loaded.nodes)
    asking = _at_a_terminal() and not (options.yes or options.check)
    result = carried_out(loaded, _options(options, remove), _remembered(options), resumed, asking=asking)
    sys.stdout.write(json.dumps(result.document(), indent=1, default=str) if options.json else result.text())
    sys.stdout.write("\n")
    sys.stdout.flush()
    return result.code


def carried_out(
    loaded: LoadedFleet,
    options: UpOptions,
    arguments: Mapping[str, Any],
    resumed: RunFolder | None = None,
    *,
    asking: bool = False,
) -> UpResult:
    """Change the nodes and show progress; `arguments`: settings for a run that resumes this one."""
    from provision.api import ups
    from provision.events import agree

    with _Drawn() as draw:
        return ups.up(
            loaded,
            options,
            resume=resumed.path if resumed is not None else None,
            arguments=arguments,
            on_event=draw,
            confirm=_asked if asking else agree,
        )


def _asked(planned: UpPlanned) -> bool:
    """Prompt the person at the terminal."""
    from provision.node_names import fold
    from provision.text import many

    what = f"{many(len(planned.nodes), 'node')} of {planned.source} ({fold(planned.nodes)})"
    sys.stderr.write(f"change {what}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class _Drawn(fleet_options.Drawn):
    """Display of every task on a terminal, and otherwise of every role.
    In a large fleet, a role gets one line, with the first node that reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self._roles: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        from provision import events
        from provision.node_names import fold

        match event:
            case events.UpPlanned(source, nodes, stacks, intent):
                sys.stderr.write(f"{source} · stack {', '.join(stacks)} · {fold(nodes)}\n{intent}\n")
            case events.TaskBegan(node, role, task):
                self._task(node, role, task)
            case events.NodeEnded(node, status, message):
                detail = f": {message.splitlines()[0]}" if message else ""
                # Nodes that were not attempted are listed together in one line.
                text = "" if status == "not attempted" else f"{node}: {status}{detail}"
                super().__call__(events.PartEnded(text))
            case _:
                super().__call__(event)

    def _task(self, node: str, role: str, task: str) -> None:
        from provision.events import Step
        from provision.terminal import live

        if live(sys.stderr):
            super().__call__(Step(f"{node}: {role + ' · ' if role else ''}{task}"))
            return
        scope = node if self.total <= _FEW else "all"
        if role and self._roles.get(scope) != role:
            self._roles[scope] = role
            super().__call__(Step(f"{node}: {role}"))


def _options(options: argparse.Namespace, remove: tuple[str, ...]) -> UpOptions:
    from provision.up.options import UpOptions
    from provision.up.waves import Share

    return UpOptions(
        wave_size=options.wave,
        canary=not options.no_canary,
        full=options.full,
        remove=remove,
        max_failures=options.max_failures or Share(0),
        gate=options.gate or "expectations",
        may_reboot=not options.no_reboot,
        reboots_at_once=options.reboots_at_once,
        check_mode=options.check,
        diff=options.diff,
        verbosity=options.verbose,
        break_lock=options.break_lock,
        forks=options.forks,
        connections=options.connections,
        timeout=options.timeout,
        wave_minutes=options.wave_timeout,
    )


def _at_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


# Options that a resumed run takes over, besides nodes and logins.
_TAKEN_OVER = (
    *("wave", "no_canary", "full", "max_failures", "gate"),
    *("no_reboot", "reboots_at_once", "remove"),
)
_SHARES = ("wave", "max_failures")


def _remembered(options: argparse.Namespace) -> dict[str, Any]:
    from provision.commands import resuming

    kept = resuming.remembered(options, _TAKEN_OVER)
    shares = {name: str(kept[name]) for name in _SHARES if kept[name] is not None}
    return {**kept, **shares, "check": options.check}


def _resumed(options: argparse.Namespace) -> RunFolder:
    """Return the run to resume, after copying its settings into `options`."""
    from provision.commands import resuming
    from provision.up import resume

    before = resume.to_go_on_with(options.resume)
    resuming.take_over(options, before.meta(), _TAKEN_OVER)
    for name in _SHARES:
        if isinstance(written := getattr(options, name), str):
            setattr(options, name, plan.share(written))
    return before
