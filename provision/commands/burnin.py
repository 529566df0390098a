"""gpuprov burnin: hours of load before production, that need no controller, and the record of acceptance."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options
from provision.errors import ExitCode, IncompleteError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection
    from contextlib import AbstractContextManager

    from provision.api.fleets import LoadedFleet
    from provision.api.source import Limits
    from provision.burnin.actions import Alone, BurninOptions
    from provision.burnin.campaign import Looked
    from provision.burnin.plan import Plan
    from provision.burnin.profile import Profile
    from provision.fleet import Fleet

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
    loaded = fleet_options.loaded(options)
    alone = _alone(loaded.fleet, fleet_options.limits(options), options.break_lock)
    how = _options(options)
    if not options.plan:
        return carried_out(loaded, chosen, how, alone, fleet_options.limits(options), options.with_jobs)
    looked, planned, unable = _ready(loaded, chosen, fleet_options.limits(options), options.with_jobs)
    return _show(chosen, looked, planned, unable, options)


def carried_out(
    loaded: LoadedFleet,
    chosen: Profile,
    options: BurninOptions,
    alone: Alone | None = None,
    limits: Limits | None = None,
    with_jobs: bool = False,
) -> ExitCode:
    """Burn the nodes in, and draw how it goes until it is over, unless it is to go on alone."""
    from provision.api.source import Limits
    from provision.burnin import actions

    limits = limits or Limits()
    looked, planned, unable = _ready(loaded, chosen, limits, with_jobs)
    alone = alone or _alone(loaded.fleet, limits)
    given = loaded.fleet, loaded.overrides, chosen, looked, planned, unable, alone, options
    with fleet_options.Drawn() as draw:
        return actions.start(*given, draw)


def _ready(
    loaded: LoadedFleet, chosen: Profile, limits: Limits, with_jobs: bool
) -> tuple[Looked, Plan, dict[str, str]]:
    """What was seen of the nodes, the plan, and the nodes that cannot take part with the reason."""
    from provision.burnin.campaign import look
    from provision.desired import variables
    from provision.remote.schedulers import chosen as schedulers

    fleet, overrides = loaded.fleet, loaded.overrides
    variables.check(fleet, overrides, fleet_options.say)
    fleet_options.say_what(fleet)
    known = schedulers.load(fleet, overrides)  # also where it will not be asked: contradictions are refused
    with fleet_options.Drawn() as draw:
        looked = look(
            fleet,
            overrides,
            chosen,
            timeout=limits.timeout,
            connections=limits.connections,
            schedulers=None if with_jobs else known,
            on_event=draw,
        )
    return looked, *_planned(chosen, looked)


def _act(action: str, options: argparse.Namespace) -> ExitCode:
    from provision.burnin import actions, campaign

    named = options.resume if action == "resume" else (options.run or "latest")
    folder = campaign.known_here(named)
    if folder is not None and not (options.inventory or options.inventory_option):
        options.inventory = folder.meta().get("inventory") or None
    options.last_used = action in ("status", "attach", "collect")  # they start and end nothing
    fleet, overrides = fleet_options.load(options)
    alone = _alone(fleet, fleet_options.limits(options), options.break_lock)
    how = _options(options)
    with fleet_options.Drawn() as draw:
        return actions.run(action, named, folder, fleet, overrides, alone, how, draw)


def _alone(fleet: Fleet, limits: Limits, broken: bool = False) -> Alone:
    from dataclasses import replace

    from provision.remote import fleet_lock

    def alone(nodes: Collection[str], burnin: str = "") -> AbstractContextManager[None]:
        part = replace(fleet, nodes={name: fleet.nodes[name] for name in nodes})
        return fleet_lock.alone(
            "start",
            fleet_lock.fresh_name(),
            part,
            before=[burnin],
            timeout=limits.timeout,
            connections=limits.connections,
            say=fleet_options.say,
            broken=broken,
        )

    return alone


def _options(options: argparse.Namespace) -> BurninOptions:
    from pathlib import Path

    from provision.burnin.actions import BurninOptions

    return BurninOptions(
        forks=options.forks,
        every_node=options.nodes == "all",
        detach=options.detach,
        json=options.json,
        thresholds=Path(options.thresholds) if options.thresholds else None,
        output=Path(options.output) if options.output else None,
        remove=options.remove,
    )


def _planned(chosen: Profile, looked: Looked) -> tuple[Plan, dict[str, str]]:
    """The plan, and the nodes that cannot take part with the reason."""
    from provision.burnin import orders, plan

    unable = {name: node.trouble for name, node in looked.seen.items() if node.error}
    if not looked.able:
        name, why = next(iter(unable.items()))
        raise IncompleteError(
            f"no node can be burned in; {name}: {why}", "widen --nodes, or repair the nodes first"
        )
    caps = plan.caps(looked.variables)
    loads = [plan.load_of(node, looked.variables[name]) for name, node in looked.able.items()]
    seconds = {name: orders.seconds(chosen, node) for name, node in looked.able.items()}
    ramp: dict[str, Any] = {"ramp_steps": chosen.ramp_steps, "ramp_seconds": chosen.ramp_seconds}
    return plan.plan(loads, caps, seconds, **ramp), unable


def _show(
    chosen: Profile, looked: Looked, planned: Plan, unable: dict[str, str], options: argparse.Namespace
) -> ExitCode:
    import json

    from provision.burnin import orders

    if options.json:
        sys.stdout.write(json.dumps(orders.document(chosen, planned, unable, looked.able), indent=1) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in orders.lines(chosen, planned, unable, looked.able))
    return ExitCode.INCOMPLETE if unable else ExitCode.OK
