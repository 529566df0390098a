"""gpuprov status: show the current state of the fleet from the nodes' own health programs."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from provision.commands import fleet_options
from provision.errors import ExitCode

if TYPE_CHECKING:
    from provision.validate.status.rounds import Rounds
    from provision.validate.status.status import FleetStatus

EVERY = 10.0  # seconds between rounds of --watch

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
    from provision.api import states
    from provision.checks.judge import Verdict
    from provision.validate.status.rounds import Rounds

    loaded = fleet_options.loaded(options)
    if options.watch is not None:
        say = functools.lru_cache(maxsize=256)(fleet_options.say)  # prints each line once, not in every round
        limits = {"timeout": options.timeout, "connections": options.connections}
        with Rounds(loaded.fleet, say=say, persistent=True, **limits) as rounds:
            _watch(rounds, options.watch, options.json)
    with fleet_options.progress("status", len(loaded.nodes)) as on_event:
        status = states.status(loaded, limits=fleet_options.limits(options), on_event=on_event)
    sys.stdout.write(_shown(status, options.json))
    codes = {Verdict.FAIL: ExitCode.UNHEALTHY, Verdict.ERROR: ExitCode.INCOMPLETE}
    return codes.get(status.verdict, ExitCode.OK)


def _watch(rounds: Rounds, seconds: float, as_json: bool) -> NoReturn:
    """Show the fleet every `seconds`, until an interrupt."""
    from provision.api import states
    from provision.terminal import Redrawn

    with Redrawn() as screen:
        while True:
            began = time.monotonic()
            status = states.with_watched(rounds.ask(), fleet_options.Drawn())
            if as_json:
                sys.stdout.write(_shown(status, as_json))
                sys.stdout.flush()
            else:
                screen.show(_shown(status, as_json), status.signature)
            _pause(max(0.0, began + seconds - time.monotonic()))


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
