"""gpuprov up: bring nodes to the declared stack, wave by wave, and verify that it held."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options, wave_options
from provision.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from provision.store import RunFolder

EPILOG = """\
A node is done when every expectation of its roles holds (a second look says so), not when a playbook ended.
Nodes that already match are looked at once and left alone. First comes one node of each SKU and operating
system, then the rest in waves; the next wave waits for the one before.

The roles run in one ansible-playbook for each core of this machine, 50 nodes or more in each, --forks divided
among them; GPUPROV_PROCESSES chooses another number.

exit codes: 3 when a role failed on a node or it is still not as declared; else 5 when a node could not be
reached or read; else 0.

examples:
  gpuprov up                                          what ./inventory.yml declares, on all its nodes
  gpuprov up fleet.yml --nodes 'rack1:!gpu-07'        a part of the fleet
  gpuprov up --wave 10% --max-failures 2              a tenth at a time; stop when more than 2 have failed
  gpuprov up --gate quick --reboots-at-once 4         check each wave's GPUs; reboot 4 at a time
  gpuprov up --check                                  what the roles would change; changes nothing
  gpuprov up --resume                                 go on with the last run, with its inventory and options
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser)
    add = parser.add_argument
    add("--full", action="store_true", help="apply every role to every node, needed or not")
    wave_options.add_arguments(parser)
    add(
        "--max-failures",
        type=wave_options.share,
        metavar="N|P%",
        help="begin no further wave once more nodes have failed (default 0); a failed canary always stops",
    )
    add(
        "--gate",
        choices=("expectations", "quick"),
        help="what the nodes of a wave must pass before the next: what was promised of them (default), "
        "or also the quick checks of validate",
    )
    add("--no-reboot", action="store_true", help="reboot nothing; say which nodes wait for it")
    add(
        "--reboots-at-once",
        type=fleet_options.count,
        metavar="N",
        help="nodes of a wave that are rebooted together (default: all that need it)",
    )
    add("--check", action="store_true", help="run the roles in check mode: say what they would change")
    add(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="go on with a run (its folder or name; default: the last one), with its inventory and options",
    )
    add("--break-lock", action="store_true", help="take nodes that another gpuprov up has locked")
    add(
        "--forks",
        type=fleet_options.count,
        default=50,
        metavar="N",
        help="nodes changed at once (default 50)",
    )
    add(
        "--wave-timeout",
        type=fleet_options.count,
        metavar="MIN",
        help="give up on a wave's roles after MIN minutes (default: an hour, and four times what is planned)",
    )
    add("--yes", "-y", action="store_true", help="do not ask; only a person at a terminal is asked at all")


def run(options: argparse.Namespace) -> ExitCode:
    resumed = _resumed(options) if options.resume is not None else None
    fleet, overrides = fleet_options.load(options)

    from provision import up_resume
    from provision.store import RunFolder
    from provision.up_session import Session
    from provision.up_work import Request
    from provision.waves import Share

    if "@" in options.nodes:  # a resumed run is for the same nodes, whatever became of the file
        options.nodes = ",".join(fleet.nodes)
    folder = RunFolder.create("up", _remembered(options))
    folder.note(inventory=str(fleet.source.absolute()), nodes=list(fleet.nodes))
    if resumed is not None:
        folder.note(resumes=str(resumed.path.absolute()))
    request = Request(
        size=options.wave,
        canary=not options.no_canary,
        full=options.full,
        max_failures=options.max_failures or Share(0),
        may_reboot=not options.no_reboot,
        reboots_at_once=options.reboots_at_once,
        check_mode=options.check,
        gate=options.gate or "expectations",
        break_lock=options.break_lock,
        forks=options.forks,
        connections=options.connections,
        observe_timeout=options.timeout,
        minutes=options.wave_timeout,
        ask=_at_a_terminal() and not (options.yes or options.check),
        json=options.json,
        before=up_resume.before(resumed) if resumed is not None else up_resume.Before(),
        base=(str(fleet.source),),
    )
    return Session(fleet, overrides, request, folder).run()


def _at_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


# What a resumed run takes over from the one it goes on with, where the command line says nothing else.
_TAKEN_OVER = (
    *("nodes", "wave", "no_canary", "full", "max_failures", "gate", "no_reboot", "reboots_at_once"),
    *("vault_password_file", "lock", "no_lock"),
)
_SHARES = ("wave", "max_failures")


def _remembered(options: argparse.Namespace) -> dict[str, Any]:
    from pathlib import Path

    files = [str(Path(file).expanduser().absolute()) for file in options.vault_password_file]
    kept = {name: getattr(options, name) for name in _TAKEN_OVER}
    shares = {name: str(kept[name]) for name in _SHARES if kept[name] is not None}
    return {
        **kept,
        **shares,
        "vault_password_file": files,
        "check": options.check,
        "set": fleet_options.overrides(options),
    }


def _resumed(options: argparse.Namespace) -> RunFolder:
    """The run to go on with; what it was asked for is filled into `options`."""
    from pathlib import Path

    from provision import store, up_resume
    from provision.secrets_mask import HIDDEN

    if options.resume:
        named = Path(options.resume)
        before = store.RunFolder.open(named if named.is_dir() else store.runs_home() / options.resume)
    else:
        before = store.latest("up")
    meta = before.meta()
    if meta.get("verb") != "up":
        raise UsageError(f"{before.path} is not an up run", "give the folder of a gpuprov up")
    up_resume.refuse_running(before)
    asked = meta.get("arguments") or {}
    for name in _TAKEN_OVER:
        if getattr(options, name) in ("all" if name == "nodes" else None, None, False, []) and asked.get(
            name
        ):
            setattr(options, name, wave_options.share(asked[name]) if name in _SHARES else asked[name])
    if not (options.inventory or options.inventory_option):
        options.inventory = meta.get("inventory")
    given = {text.partition("=")[0] for text in options.set}
    for key, value in (asked.get("set") or {}).items():
        if key in given:
            continue
        if value == HIDDEN:
            raise UsageError(
                f"--set {key}=… of that run was not kept: it looks like a secret", "give it again"
            )
        options.set.append(f"{key}={json.dumps(value)}")
    return before
