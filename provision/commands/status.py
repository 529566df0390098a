"""gpuprov status: the state of the fleet now, from what the nodes' own health programs found last."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from provision.drift import fleet_options
from provision.errors import ExitCode

if TYPE_CHECKING:
    from provision.validate.status.rounds import Rounds
    from provision.validate.status.status import FleetStatus

EVERY = 10.0  # seconds between two rounds of --watch

EPILOG = """\
status measures nothing and changes nothing. It reads the newest result of each node's own health program
(role node_health), over one connection per node, and what Slurm says where its daemon is installed. A
result counts for three of its intervals, and for three minutes at least, by the node's clock since boot. A
node without a result that counts is `error`, never healthy.

With --watch the connections stay open, except those that go through Ansible or a worker. On a terminal
each round replaces the last; elsewhere a round is printed when something has changed; with --json each
round is one line. The inventory is read once, and Slurm is asked once a minute. Ctrl-C ends it.

exit codes: 3 when a node is unhealthy; otherwise 5 when a node is unreachable, unreadable, or has no result
that counts; otherwise 0. With --watch: 130, when it is ended.

examples:
  gpuprov status
  gpuprov status fleet.yml --nodes rack1
  gpuprov status --watch
  gpuprov status --json | jq -r '.nodes[] | select(.verdict == "fail") | .node'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser, gpu_only=True, lock=False, timeout=20.0)
    parser.add_argument(
        "--watch",
        nargs="?",
        type=fleet_options.seconds,
        const=EVERY,
        metavar="SECONDS",
        help=f"ask again every so many seconds (default {EVERY:g}), with connections kept open",
    )


def run(options: argparse.Namespace) -> ExitCode:
    from provision.checks.judge import Verdict
    from provision.terminal import Progress
    from provision.validate.status.rounds import Rounds

    fleet, _ = fleet_options.load(options)
    limits = {"timeout": options.timeout, "connections": options.connections}
    if options.watch is not None:
        say = functools.lru_cache(maxsize=256)(fleet_options.say)  # the same line once, not in each round
        with Rounds(fleet, say=say, persistent=True, **limits) as rounds:
            _watch(rounds, options.watch, options.json)
    with (
        Progress("status", len(fleet.nodes)) as progress,
        Rounds(fleet, say=progress.say, **limits) as rounds,
    ):
        status = rounds.ask(lambda _: progress.done())
    status = _with_repair(status)
    sys.stdout.write(_shown(status, options.json))
    codes = {Verdict.FAIL: ExitCode.UNHEALTHY, Verdict.ERROR: ExitCode.INCOMPLETE}
    return codes.get(status.verdict, ExitCode.OK)


def _watch(rounds: Rounds, seconds: float, as_json: bool) -> NoReturn:
    """Show the fleet every so many seconds, until an interrupt."""
    from provision.terminal import Redrawn

    with Redrawn() as screen:
        while True:
            began = time.monotonic()
            status = _with_repair(rounds.ask())
            if as_json:
                sys.stdout.write(_shown(status, as_json))
                sys.stdout.flush()
            else:
                screen.show(_shown(status, as_json), status.signature)
            _pause(max(0.0, began + seconds - time.monotonic()))


def _with_repair(status: FleetStatus) -> FleetStatus:
    """With the nodes that the watch of this inventory took out of service."""
    import dataclasses

    from provision.errors import RunFolderError
    from provision.up.watch import incidents

    try:
        known = incidents.Store(incidents.place_of(status.fleet)).incidents()
    except (RunFolderError, OSError) as error:
        fleet_options.say(f"the state of gpuprov watch cannot be read: {error}")
        return status
    waiting = {one.node: one.spare for one in known if one.holds_node and one.step is incidents.Step.REPAIR}
    waiting = {node: spare for node, spare in waiting.items() if node in status.fleet.nodes}
    return dataclasses.replace(status, repair=waiting)


def _pause(seconds: float) -> None:
    time.sleep(seconds)


def _shown(status: FleetStatus, as_json: bool) -> str:
    import shutil

    from provision.terminal import coloured
    from provision.validate.status import document, text

    if as_json:
        return document.line(status)
    width = shutil.get_terminal_size((100, 24)).columns
    return text.render(status, width, coloured(sys.stdout))
