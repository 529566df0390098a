"""gpuprov up: bring nodes to the declared stack, wave by wave, and verify that it held."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options
from provision.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from provision.store import RunFolder

EPILOG = """\
A node is done when every expectation of its roles holds (a second look says so), not when a playbook ended.
Nodes that already match are looked at once and left alone.

exit codes: 3 when a role failed on a node or it is still not as declared; else 5 when a node could not be
reached or read; else 0.

examples:
  gpuprov up                                          what ./inventory.yml declares, on all its nodes
  gpuprov up fleet.yml --nodes 'rack1:!gpu-07'        a part of the fleet
  gpuprov up --wave-size 20 --max-failures 2          20 at a time; stop when more than 2 have failed
  gpuprov up --check                                  what the roles would change; changes nothing
  gpuprov up --resume                                 go on with the last run, with its inventory and options
"""


def _number(least: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number, {least} or more")
        return int(text)

    return convert


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser)
    add = parser.add_argument
    add("--full", action="store_true", help="apply every role to every node, needed or not")
    add("--wave-size", type=_number(1), metavar="N", help="nodes changed together (default: all in one wave)")
    add(
        "--max-failures",
        type=_number(0),
        default=0,
        metavar="N",
        help="begin no further wave once more than N nodes have failed (default 0)",
    )
    add("--no-reboot", action="store_true", help="reboot nothing; say which nodes wait for it")
    add("--check", action="store_true", help="run the roles in check mode: say what they would change")
    add(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="go on with a run (its folder or name; default: the last one), with its inventory and options",
    )
    add("--forks", type=_number(1), default=50, metavar="N", help="nodes changed at once (default 50)")
    add(
        "--wave-timeout",
        type=_number(1),
        metavar="MIN",
        help="give up on a wave's roles after MIN minutes (default: an hour, and four times what is planned)",
    )
    add("--yes", "-y", action="store_true", help="do not ask; only a person at a terminal is asked at all")


def run(options: argparse.Namespace) -> ExitCode:
    before = _resumed(options) if options.resume is not None else None
    fleet, overrides = fleet_options.load(options)

    from provision.store import RunFolder
    from provision.up_session import Request, Session

    folder = RunFolder.create("up", _remembered(options, overrides))
    folder.note(inventory=str(fleet.source.absolute()), nodes=list(fleet.nodes))
    request = Request(
        wave_size=options.wave_size,
        full=options.full,
        max_failures=options.max_failures,
        may_reboot=not options.no_reboot,
        check_mode=options.check,
        forks=options.forks,
        connections=options.connections,
        observe_timeout=options.timeout,
        minutes=options.wave_timeout,
        ask=_at_a_terminal() and not (options.yes or options.check),
        json=options.json,
        done_before=_done(before) if before is not None else (),
        base=(str(fleet.source),),
    )
    return Session(fleet, overrides, request, folder).run()


def _at_a_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


# What a resumed run takes over from the one it goes on with, where the command line says nothing else.
_TAKEN_OVER = ("nodes", "wave_size", "full", "max_failures", "no_reboot", "vault_password_file", "lock", "no_lock")


def _remembered(options: argparse.Namespace, overrides: Mapping[str, Any]) -> dict[str, Any]:
    from pathlib import Path

    files = [str(Path(file).expanduser().absolute()) for file in options.vault_password_file]
    kept = {name: getattr(options, name) for name in _TAKEN_OVER}
    return {**kept, "vault_password_file": files, "check": options.check, "set": dict(overrides)}


def _resumed(options: argparse.Namespace) -> RunFolder:
    """The run to go on with; what it was asked for is filled into `options`."""
    from pathlib import Path

    from provision import store
    from provision.secrets_mask import HIDDEN

    if options.resume:
        named = Path(options.resume)
        before = store.RunFolder.open(named if named.is_dir() else store.runs_home() / options.resume)
    else:
        before = store.latest("up")
    meta = before.meta()
    if meta.get("verb") != "up":
        raise UsageError(f"{before.path} is not an up run", "give the folder of a gpuprov up")
    asked = meta.get("arguments") or {}
    defaults = {"nodes": "all", "max_failures": 0}
    for name in _TAKEN_OVER:
        if getattr(options, name) in (defaults.get(name), None, False, []) and name in asked:
            setattr(options, name, asked[name])
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


def _done(before: RunFolder) -> frozenset[str]:
    """The nodes the run had finished; one more look decides whether that is still true."""
    ended = {record.get("node"): record.get("status") for record in before.read("outcomes")}
    return frozenset(str(node) for node, status in ended.items() if status in ("done", "as declared"))
