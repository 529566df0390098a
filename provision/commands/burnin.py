"""gpuprov burnin: load nodes for hours without a controller, and write a record of acceptance."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from provision.commands import fleet_options
from provision.commands.parser import add_verbs
from provision.errors import ExitCode

if TYPE_CHECKING:
    from provision.api.burnins import Planned
    from provision.api.fleets import LoadedFleet
    from provision.api.source import Limits
    from provision.burnin.actions import BurninOptions, Outcome
    from provision.burnin.profile import Profile
    from provision.events import Event

VERBS = {
    "start": "start a burn-in, show its progress, and collect",
    "plan": "show duration, power and order; load nothing",
    "status": "show the progress of each node",
    "attach": "show progress until all nodes are done, then collect",
    "resume": "start the burn-in on its nodes that are not running it, and attach",
    "stop": "end the burn-in on all nodes",
    "collect": "fetch the measurements, judge them, write the record of acceptance",
    "profiles": "list the profiles",
}
BEGINNING = ("start", "plan")

EPILOG = """\
Each node runs the burn-in under its own systemd and writes to its own disk, so the burn-in survives a lost
controller, a network failure and a reboot. Without --detach, start stays attached and shows progress; Ctrl-C
detaches, and the burn-in continues.

The verbs after plan take the name of a burn-in, or `latest`. They work from any machine that has the
inventory: without the run folder, gpuprov reads the burn-in's data from the nodes.

exit codes: 3 when a node failed; otherwise 5 when a node is unreachable, unreadable, without a GPU or not
done, or something was not measured; otherwise 0.

examples:
  gpuprov burnin plan --nodes rack1 --profile day
  gpuprov burnin start --nodes rack1 --profile day --detach
  gpuprov burnin start --nodes gpu-07 --duration 6h
  gpuprov burnin status
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
    verbs = add_verbs(parser, VERBS)
    parser.set_defaults(
        **dict.fromkeys(("detach", "thresholds", "output", "remove", "break_lock", "with_jobs"))
    )
    for name, verb in verbs.items():
        if name == "profiles":
            continue
        begins, reads = name in BEGINNING, name in ("status", "attach", "collect")
        fleet_options.add_arguments(verb, lock=False, last_used=reads, gpu_only=True, word=begins)
        if begins:
            _add_load(verb)
        else:
            about = "name of a burn-in (default: latest)"
            verb.add_argument("run", nargs="?", default="latest", metavar="RUN", help=about)
        fleet_options.add_count(
            verb, "--forks", 50, "maximum number of nodes contacted at the same time", "-f"
        )
        if name in ("start", "resume"):
            fleet_options.add_break_lock(verb, "also burn in")
        if name in ("start", "attach", "resume", "collect"):
            verb.add_argument(
                "--thresholds", metavar="FILE", help="thresholds that override or extend the shipped ones"
            )
    verbs["start"].add_argument("--detach", action="store_true", help="return once it is started")
    collect = verbs["collect"].add_argument
    collect("--output", metavar="DIR", help="also write the record into this folder")
    collect("--remove", action="store_true", help="remove a finished burn-in's data from the nodes")


def _add_load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile",
        default="day",
        metavar="NAME",
        help="smoke, day (default), long, or the path of a profile file (burnin profiles lists them)",
    )
    parser.add_argument(
        "--duration",
        type=_minutes,
        metavar="24h",
        help="length of the burn-in: 90m, 24h, 3d (default: the profile's)",
    )
    fleet_options.add_with_jobs(parser)


def run(options: argparse.Namespace) -> ExitCode:
    if options.act == "profiles":
        return _list()
    return _start(options) if options.act in BEGINNING else _act(options)


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

    chosen = profile.fitted(profile.load(options.profile), options.duration, cost)
    thresholds.for_sku(None, Path(options.thresholds) if options.thresholds else None)
    loaded, limits = fleet_options.loaded(options), fleet_options.limits(options)
    if options.act == "plan":
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
    """Burn the nodes in and show progress to the end, unless detached."""
    from provision.api import burnins

    planned = _planned(loaded, chosen, limits, with_jobs)
    with _Drawn(options.detach) as draw:
        return burnins.start(loaded, chosen, planned, options, limits, draw, broken=broken)


def _act(options: argparse.Namespace) -> ExitCode:
    from provision.api import burnins
    from provision.burnin import campaign

    folder = campaign.known_here(options.run)
    if folder is not None and not options.inventory_option:
        options.inventory = folder.meta().get("inventory") or None
    loaded, limits = fleet_options.loaded(options), fleet_options.limits(options)
    given = options.act, options.run, folder, loaded, _options(options), limits
    with _Drawn() as draw:
        done = burnins.act(*given, draw, broken=bool(options.break_lock))
    if options.act == "stop":
        _say(f"  → gpuprov burnin collect {done.run}")
    return printed(done, options.json)


def printed(done: Outcome, as_json: bool) -> ExitCode:
    """Print each node's state, or the record's summary, or the JSON document of either."""
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
    """Display of a burn-in's progress on standard output, since it takes hours."""

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
        detach=bool(options.detach),
        thresholds=Path(options.thresholds) if options.thresholds else None,
        output=Path(options.output) if options.output else None,
        remove=bool(options.remove),
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
