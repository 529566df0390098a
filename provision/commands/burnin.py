"""gpuprov burnin: hours of load before production, that need no controller, and the record of acceptance."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from provision.commands import fleet_options
from provision.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from provision.api.burnins import Planned
    from provision.api.fleets import LoadedFleet
    from provision.api.source import Limits
    from provision.burnin.actions import BurninOptions, Outcome
    from provision.burnin.profile import Profile
    from provision.events import Event

ACTIONS = ("status", "attach", "stop", "collect")

EPILOG = """\
Each node runs the burn-in under its own systemd and writes to its own disk, so the burn-in survives a lost
controller, a network failure and a reboot. Without --detach, gpuprov stays attached and shows progress;
Ctrl-C detaches, and the burn-in continues.

  status   show the progress of each node
  attach   show progress until all nodes are done, then collect
  stop     end the burn-in on all nodes
  collect  fetch the measurements, judge them, write the record of acceptance

RUN is the name of a burn-in, or `latest`. These actions work from any machine that has the inventory: without
the run folder, gpuprov reads the burn-in's data from the nodes.

exit codes: 3 when a node failed; otherwise 5 when a node is unreachable, unreadable, without a GPU or not
done, or something was not measured; otherwise 0.

examples:
  gpuprov burnin --nodes rack1 --profile day --plan
  gpuprov burnin --nodes rack1 --profile day --detach
  gpuprov burnin --nodes gpu-07 --duration 6h
  gpuprov burnin status latest
  gpuprov burnin collect latest --output .
"""


def _minutes(text: str) -> float:
    from provision.burnin.profile import duration

    try:
        return duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser, lock=False, last_used=False, gpu_only=True)
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN",
        help="the burn-in for status, attach, stop or collect (default: latest)",
    )
    parser.add_argument(
        "--profile",
        default=None,
        metavar="NAME",
        help="smoke, day (default), long, or the path of a profile file",
    )
    parser.add_argument(
        "--duration",
        type=_minutes,
        metavar="24h",
        help="length of the burn-in: 90m, 24h, 3d (default: the profile's)",
    )
    parser.add_argument("--plan", action="store_true", help="show duration, power and order; load nothing")
    parser.add_argument("--detach", action="store_true", help="start the burn-in and return immediately")
    parser.add_argument(
        "--resume", metavar="RUN", help="start the burn-in on its nodes that are not running it, and attach"
    )
    parser.add_argument(
        "--thresholds", metavar="FILE", help="thresholds that override or extend the shipped ones"
    )
    parser.add_argument("--output", metavar="DIR", help="collect: also write the record into this folder")
    parser.add_argument(
        "--remove", action="store_true", help="collect: remove a finished burn-in's data from the nodes"
    )
    fleet_options.add_count(parser, "--forks", 50, "maximum number of nodes contacted at the same time", "-f")
    fleet_options.add_break_lock(parser, "also burn in")
    fleet_options.add_with_jobs(parser)
    parser.add_argument("--list", action="store_true", help="list the profiles and exit")


def run(options: argparse.Namespace) -> ExitCode:
    if options.list:
        return _list()
    action = options.inventory if options.inventory in ACTIONS else None
    if action is not None:
        options.inventory = None
    _refuse_contradictions(options, action)
    if action is not None or options.resume:
        return _act(action or "resume", options)
    return _start(options)


def _refuse_contradictions(options: argparse.Namespace, action: str | None) -> None:
    """Raises UsageError for options that cannot be combined."""
    if options.run and action is None:
        raise UsageError(
            f"{options.inventory!r} {options.run!r}: the first word is not an action of burnin",
            f"give one of {', '.join(ACTIONS)} and RUN, or one INVENTORY",
        )
    late = action or ("--resume" if options.resume else None)
    for name in ("plan", "duration", "profile"):
        if late and getattr(options, name):
            raise UsageError(f"{late} cannot be combined with --{name}", f"leave out --{name}")
    if options.remove and action != "collect":
        raise UsageError("--remove works with collect only", "gpuprov burnin collect RUN --remove")


def _list() -> ExitCode:
    from provision.burnin import profile

    for name in profile.available():
        one = profile.load(name)
        sys.stdout.write(f"{name:<8} {one.minutes / 60:>5.3g} h  {one.summary}\n")
    return ExitCode.OK


def _start(options: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from provision.burnin import profile
    from provision.burnin.plan import cost
    from provision.checks import thresholds

    chosen = profile.fitted(profile.load(options.profile or "day"), options.duration, cost)
    thresholds.for_sku(None, Path(options.thresholds) if options.thresholds else None)
    loaded, limits = fleet_options.loaded(options), fleet_options.limits(options)
    if options.plan:
        return _show(chosen, _planned(loaded, chosen, limits, options.with_jobs), options)
    how = _options(options)
    done = carried_out(loaded, chosen, how, limits, options.with_jobs, options.break_lock)
    return printed(done, options.json)


def _planned(loaded: LoadedFleet, chosen: Profile, limits: Limits, with_jobs: bool) -> Planned:
    from provision.api import burnins

    fleet_options.say_what(loaded.fleet)
    with fleet_options.Drawn() as draw:
        return burnins.plan(loaded, chosen, limits, draw, with_jobs=with_jobs)


def carried_out(
    loaded: LoadedFleet,
    chosen: Profile,
    options: BurninOptions,
    limits: Limits,
    with_jobs: bool = False,
    broken: bool = False,
) -> Outcome:
    """Burn the nodes in, and draw how it goes until it is over, unless it is to go on alone."""
    from provision.api import burnins

    planned = _planned(loaded, chosen, limits, with_jobs)
    with _Drawn(options.detach) as draw:
        return burnins.start(loaded, chosen, planned, options, limits, draw, broken=broken)


def _act(action: str, options: argparse.Namespace) -> ExitCode:
    from provision.api import burnins
    from provision.burnin import campaign

    named = options.resume if action == "resume" else (options.run or "latest")
    folder = campaign.known_here(named)
    if folder is not None and not (options.inventory or options.inventory_option):
        options.inventory = folder.meta().get("inventory") or None
    options.last_used = action in ("status", "attach", "collect")  # they start and end nothing
    loaded, limits = fleet_options.loaded(options), fleet_options.limits(options)
    how = _options(options)
    with _Drawn() as draw:
        done = burnins.act(action, named, folder, loaded, how, limits, draw, broken=options.break_lock)
    if action == "stop":
        _say(f"  → gpuprov burnin collect {done.run}")
    return printed(done, options.json)


def printed(done: Outcome, as_json: bool) -> ExitCode:
    """On stdout where each node stands, or the record's summary; or the document of either."""
    import json

    if done.record is not None:
        if as_json:
            sys.stdout.write(done.record.read_text("utf-8"))
        else:
            _say(*done.summary)
    elif done.nodes is not None:
        if as_json:
            nodes = [one.record() for one in done.nodes]
            sys.stdout.write(json.dumps({"format": 1, "burnin": done.run, "nodes": nodes}, indent=1) + "\n")
        else:
            width = max((len(one.node) for one in done.nodes), default=0)
            _say(done.run, *(f"  {one.node:<{width}}  {one.words}" for one in done.nodes))
    return done.code


def _say(*lines: str) -> None:
    from provision.terminal import printable

    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)
    sys.stdout.flush()


class _Drawn(fleet_options.Drawn):
    """Prints how a burn-in goes: it lasts for hours, so its lines are the output."""

    def __init__(self, detached: bool = False) -> None:
        super().__init__()
        self._detached = detached

    def __call__(self, event: Event) -> None:
        import time

        from provision import events
        from provision.text import many

        match event:
            case events.BurninPlanned(lines):
                _say(*lines)
            case events.BurninBegan(run, nodes, of, between):
                _say("", f"{run}: {len(nodes)} of {many(of, 'node')} burning in")
                if self._detached:
                    _say(f"  → gpuprov burnin status {run}", f"  → gpuprov burnin collect {run}")
                    if between:
                        _say(f"  → gpuprov burnin attach {run} (for the checks between nodes)")
            case events.NodeBurns(node, words):
                _say(f"{time.strftime('%H:%M:%S')}  {node}  {words}")
            case events.NodeStopped(node, words):
                _say(f"  {node}  {words}")
            case _:
                super().__call__(event)


def _options(options: argparse.Namespace) -> BurninOptions:
    from pathlib import Path

    from provision.burnin.actions import BurninOptions

    return BurninOptions(
        forks=options.forks,
        every_node=options.nodes == "all",
        detach=options.detach,
        thresholds=Path(options.thresholds) if options.thresholds else None,
        output=Path(options.output) if options.output else None,
        remove=options.remove,
    )


def _show(chosen: Profile, planned: Planned, options: argparse.Namespace) -> ExitCode:
    import json

    from provision.burnin import orders

    given = chosen, planned.plan, planned.unable, planned.looked.able
    if options.json:
        sys.stdout.write(json.dumps(orders.document(*given), indent=1) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in orders.lines(*given))
    return ExitCode.INCOMPLETE if planned.unable else ExitCode.OK
