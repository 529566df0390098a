"""gpuprov watch: take failed nodes out of service, and replace them with proven spares."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options
from provision.commands.parser import add_verbs
from provision.errors import ExitCode, GpuprovError, InventoryError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from provision.api.source import Source
    from provision.fleet import Fleet
    from provision.remote.schedulers import Leases
    from provision.up.watch.policy import Policy

EPILOG = """\
watch runs until you stop it (Ctrl-C, SIGTERM). It is meant to run as a service on the controller: `watch
install` writes the systemd unit. It keeps one connection to each node open and reads the results of
the node's own health program (role node_health) as they change. When a node fails, watch drains it in its
scheduler (gpuprov_scheduler), checks a spare from the group gpuprov_spares once more, puts it in the node's
place, and sends a notification (gpuprov_watch_hook, gpuprov_watch_webhooks, gpuprov_watch_alertmanager). The
failed node stays drained until `gpuprov return`.

It never resumes a node that it did not drain. The variable gpuprov_watch sets its limits; it reports every
failed node that a limit keeps in service. See `gpuprov docs watch`.

One watch acts on a node: the one whose lease the scheduler keeps. A second one, on another machine or with
another state folder, follows: it shows what it sees and does nothing. `watch take-over` makes it the one that
acts, with the incidents of the earlier one (its folder, or what the scheduler knows).

A spare that is in service is left there, since it may have replaced a node for another watch: it is reported,
and `watch spare --nodes` drains it.

When too many nodes fail within an hour, a breaker stops all drains for a fault,
those by the nodes' own programs under Slurm as well, until a person closes it:
`watch breaker --close`.

exit codes: 130 after Ctrl-C, 0 after SIGTERM. state: 0 when the watch is at work, or follows another one,
which is to be asked on its own machine; 3 when something keeps it from a part of its work; 5 when no watch
runs here. 0 of spare, take-over, breaker, replay and install.

examples:
  gpuprov watch fleet.yml
  gpuprov watch replay fleet.yml        what it would have done on the last day
  gpuprov watch state fleet.yml         spares, open incidents, nodes in repair
  gpuprov watch spare fleet.yml --nodes gpu-65
  gpuprov watch take-over fleet.yml     the watch of another machine is gone
  gpuprov watch breaker fleet.yml --close
  sudo gpuprov watch install fleet.yml  as a service of the user who called sudo
"""

VERBS = {
    "run": "replace failed nodes with proven spares",
    "state": "print spares, incidents and nodes in repair",
    "spare": "drain nodes of the group gpuprov_spares, which wait as spares",
    "take-over": "take the nodes and incidents of another watch over",
    "breaker": "print whether drains for a fault are stopped; --close ends that",
    "replay": "print what it would have done in the last 24 recorded hours",
    "install": "write a systemd unit that runs it as a service",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser, VERBS, usual="run")
    verbs["run"].epilog = EPILOG
    for name, verb in verbs.items():
        fleet_options.add_arguments(
            verb, gpu_only=True, lock=False, last_used=False, timeout=20.0, json=name == "state"
        )
    verbs["breaker"].add_argument(
        "--close",
        action="store_true",
        help="let nodes be drained for a fault again, once the cause is known",
    )
    verbs["replay"].add_argument(
        "--history",
        metavar="FILE",
        help="a recorded health history (default: the one that watch recorded for this inventory)",
    )
    verbs["take-over"].add_argument(
        "--from",
        dest="folder",
        metavar="FOLDER",
        help="the state folder of the earlier watch (default: its own on this machine, else the scheduler)",
    )


def run(options: argparse.Namespace) -> ExitCode:
    from provision.desired import variables
    from provision.up.watch import incidents, policy

    passed_on = _for_unit(options) if options.act == "install" else []
    source = fleet_options.settled(options)
    loaded = fleet_options.loaded_from(source)
    fleet, overrides = loaded.fleet, loaded.overrides
    variables.check(fleet, overrides, fleet_options.say)
    rules = policy.of(fleet, overrides)
    folder = incidents.place_of(fleet)
    if options.act == "replay":
        return _replay(fleet, rules, options.history, folder)
    if options.act == "spare":
        return _spare(fleet, overrides, folder)
    if options.act == "take-over":
        return _take_over(fleet, overrides, folder, options.folder)
    if options.act == "breaker":
        return _breaker(fleet, overrides, options.close)
    if options.act == "state":
        return _state(fleet, folder, options.json)
    if options.act == "install":
        from provision.up.watch import unit

        nodes = [] if fleet.pattern == "all" else ["--nodes", fleet.pattern]
        sys.stdout.write(unit.install(fleet, [*passed_on, *nodes]))
        return ExitCode.OK
    return _watch(fleet, overrides, rules, folder, source, options)


def _for_unit(options: argparse.Namespace) -> list[str]:
    """Return the options that the unit's command line needs as well.
    Raises UsageError for variables and passwords: all users can read a unit, and it has no terminal."""
    if options.set or options.ask_pass or options.ask_become_pass:
        raise UsageError(
            "everyone may read a unit, so it has no variables and no passwords",
            "write them into the inventory (with Ansible Vault), not on the command line",
        )
    from provision.api import fleets

    files = map(str, (file.absolute() for file in fleets.vault_password_files(fleet_options.source(options))))
    arguments = [argument for file in files for argument in ("--vault-password-file", file)]
    return [*arguments, "--user", options.user] if options.user else arguments


def _watch(
    fleet: Fleet,
    overrides: dict[str, Any],
    rules: Policy,
    place: Path,
    source: Source,
    options: argparse.Namespace,
) -> ExitCode:
    from provision.api.spare_checks import SpareChecks
    from provision.node_names import fold
    from provision.up.watch import systemd
    from provision.up.watch.alerts import Alerts
    from provision.up.watch.incidents import Store
    from provision.up.watch.lease import refuse_half_taken
    from provision.up.watch.service import Watch
    from provision.up.watch.tell import Teller, alertmanager, receivers
    from provision.validate.status.stream import HealthStream

    scheduler, without = _leases(fleet, overrides)
    if without:
        _say(f"{fold(without, 200)}: no scheduler that gpuprov can ask, so they are reported, never drained")
    to, post = receivers(fleet, overrides), alertmanager(fleet, overrides)
    store = Store(place)
    # On a hang, systemd sends SIGABRT, and the journal then shows the current line.
    faulthandler.enable(file=2, all_threads=False)
    ended: list[int] = []
    with (
        store.alone(),
        Teller(place / "outbox", to, _say, Alerts(place / "alerts", post, _say) if post else None) as teller,
        HealthStream(fleet, timeout=options.timeout, connections=options.connections, say=_say) as stream,
    ):
        store.announce(fleet)
        checks = SpareChecks(source, rules.verify_seconds, place)
        refuse_half_taken(store)
        watch = Watch(
            *(fleet, rules, store, stream, scheduler, checks, teller, _say),
            unscheduled=without,
            systemd=systemd.teller(),
        )

        def end(number: int, _frame: object) -> None:
            ended.append(number)
            watch.stop()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end)
        if not to and post is None:
            _say("nobody will be notified: see gpuprov_watch_hook, _webhooks and _alertmanager")
        watch.run()
    return ExitCode.INTERRUPTED if signal.SIGINT in ended else ExitCode.OK


def _spare(fleet: Fleet, overrides: dict[str, Any], place: Path) -> ExitCode:
    from provision.remote.schedulers import chosen
    from provision.up.watch.aside import set_aside
    from provision.up.watch.incidents import Store
    from provision.up.watch.lease import refuse_held

    if fleet.pattern == "all":
        raise UsageError("no node given", "name those that are to wait as spares: --nodes gpu-65")
    scheduler, without = chosen.only(fleet, overrides)
    if without:
        raise UsageError(f"{', '.join(without)}: no scheduler that gpuprov can ask", "see docs/schedulers.md")
    store = Store(place)
    refuse_held(scheduler.look(list(fleet.nodes)), store)
    set_aside(list(fleet.nodes), fleet, store.incidents(), scheduler, fleet_options.say)
    return ExitCode.OK


def _take_over(fleet: Fleet, overrides: dict[str, Any], place: Path, folder: str | None) -> ExitCode:
    from dataclasses import replace
    from pathlib import Path

    from provision.up.watch.incidents import Store
    from provision.up.watch.take_over import take_over

    scheduler, without = _leases(fleet, overrides)
    nodes = {name: node for name, node in fleet.nodes.items() if name not in without}
    store, source = Store(place), Path(folder).absolute() if folder else None
    with store.alone():
        take_over(replace(fleet, nodes=nodes), store, scheduler, source, fleet_options.say)
    return ExitCode.OK


def _leases(fleet: Fleet, overrides: dict[str, Any]) -> tuple[Leases, frozenset[str]]:
    """Return the fleet's scheduler, and its nodes without one. Raises GpuprovError if it has no leases."""
    from provision.remote.schedulers import Leases, chosen

    scheduler, without = chosen.only(fleet, overrides)
    if not isinstance(scheduler, Leases):
        raise GpuprovError(f"{scheduler.kind} keeps no leases, so no watch may drain its nodes", "update it")
    return scheduler, without


def _breaker(fleet: Fleet, overrides: dict[str, Any], close: bool) -> ExitCode:
    """Print whether the scheduler's breaker of all drains is open, or close it, independent of any watch."""
    from provision.remote.schedulers import BreakerError, Breaks, chosen

    scheduler = chosen.only(fleet, overrides)[0]
    if not isinstance(scheduler, Breaks):
        raise UsageError(f"{scheduler.kind} keeps no breaker", "see docs/schedulers.md")
    try:
        if close:
            scheduler.close_breaker()
        why = scheduler.breaker()
    except BreakerError as error:
        raise GpuprovError(
            f"{scheduler.kind}: {error}", "until then nothing is drained for a fault"
        ) from None
    sys.stdout.write("closed: nodes that fail are drained\n" if why is None else f"open: {why}\n")
    return ExitCode.OK


def _say(line: str) -> None:
    """Print a line with the UTC time, which a terminal lacks; the journal adds its own."""
    from provision.text import one_line

    sys.stdout.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {one_line(line, 1000)}\n")
    sys.stdout.flush()


def _replay(fleet: Fleet, rules: Policy, named: str | None, place: Path) -> ExitCode:
    from pathlib import Path

    from provision.up.watch import replay

    paths = [Path(named)] if named else [place / "history.1.jsonl", place / "history.jsonl"]
    records = replay.history([path for path in paths if named or path.exists()])
    if not records:
        where = named or str(place)
        raise UsageError(
            f"no health history in {where} yet", "start gpuprov watch, or name one with --history"
        )
    lines = list(replay.Replay(fleet, rules).lines(replay.last_day(records)))
    sys.stdout.writelines(f"{line}\n" for line in lines or ["it would have done nothing"])
    return ExitCode.OK


def _state(fleet: Fleet, place: Path, as_json: bool) -> ExitCode:
    from provision.desired import inventory
    from provision.up.watch import breaker, heartbeat, state
    from provision.up.watch.incidents import Store, elsewhere

    store, beat, now = Store(place), heartbeat.last(place), time.time()
    follows = str(store.lease().get("follows") or "")
    if follows and beat:
        beat["follows"] = follows
    running = store.is_watched()
    word = heartbeat.state(beat, now, running)
    _, options = other = elsewhere(place, fleet)
    if options:
        fleet_options.say(f"{other[0]}: another watch has them: gpuprov watch state {options}")
        word = "elsewhere"
    if beat and fleet.pattern == "all":
        with contextlib.suppress(InventoryError):  # the nodes that the watch counts
            fleet = inventory.select(fleet, beat["nodes"])
    status = state.document(fleet, store.incidents(), store.validated(), now)
    if store.damaged and word == "work":
        word = "held"
    status |= {"watch": beat, "damaged": store.damaged, "state": word, "follows": follows}
    stopped = breaker.KIND in beat.get("held", ()) and word == "held"
    status["next"] = _of_service("follows" if follows else "breaker" if stopped else word, options, fleet)
    line = heartbeat.line(beat, now, running)
    sys.stdout.write(json.dumps(status, indent=1) + "\n" if as_json else state.text(status, place, line))
    return {"work": ExitCode.OK, "follows": ExitCode.OK, "held": ExitCode.UNHEALTHY}.get(
        word, ExitCode.INCOMPLETE
    )


def _of_service(word: str, elsewhere: str, fleet: Fleet) -> str:
    """Return the command to run next if the watch is not at work."""
    from provision.desired import inventory
    from provision.up.watch import unit

    name, arguments = unit.PLACE.name, inventory.arguments(fleet)
    start = (
        f"sudo systemctl enable --now {name}"
        if unit.PLACE.exists()
        else f"sudo gpuprov watch install {arguments}"
    )
    return {
        "elsewhere": f"gpuprov watch state {elsewhere}",
        "never": start,
        "stopped": start,
        "late": f"journalctl -u {name} -n 50",
        "held": "gpuprov docs watch",
        "breaker": f"gpuprov watch breaker {arguments}",
        "follows": f"gpuprov watch take-over {arguments}",
    }.get(word, "")
