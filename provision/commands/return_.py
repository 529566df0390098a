"""gpuprov return: bring a repaired node back, as a spare."""

from __future__ import annotations

import argparse
import sys
import time

from provision.drift import fleet_options
from provision.errors import ExitCode, UsageError

EPILOG = """\
For a node that gpuprov watch took out of service, after its repair. It runs `gpuprov up`, `gpuprov validate`
and `gpuprov burnin` on the node, one after the other, and goes on where it stopped when it is called again.
The node stays drained in its scheduler until all have passed; then it is a spare. A node that has failed
several times in 30 days must wait longer each time (gpuprov_watch.return_hours).

exit codes: that of the part that did not pass; otherwise 0.

examples:
  gpuprov return gpu-03
  gpuprov return gpu-03 fleet.yml --profile smoke --now
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("node", nargs="?", metavar="NODE", help="the node, by its name in the inventory")
    fleet_options.add_arguments(parser, gpu_only=True, lock=False, last_used=False)
    parser.add_argument(
        "--profile",
        default="day",
        metavar="NAME",
        help="burn-in: smoke, day (default), long, or the path of a profile file",
    )
    parser.add_argument("--now", action="store_true", help="do not wait after repeated failures")


def run(options: argparse.Namespace) -> ExitCode:
    from provision.desired import variables
    from provision.remote.schedulers import chosen
    from provision.up.watch import incidents, policy, returning

    if options.set or options.ask_pass or options.ask_become_pass:
        raise UsageError(
            "return starts other runs: they read the inventory alone", "put variables and logins there"
        )
    node = options.node
    if node is None:
        raise UsageError(
            "no node is named", "gpuprov return gpu-03: gpuprov watch --state lists those in repair"
        )
    fleet, overrides = fleet_options.load(options)
    variables.check(fleet, overrides, fleet_options.say)
    rules = policy.of(fleet, overrides)
    store = incidents.Store(incidents.place_of(fleet))
    known = store.incidents()
    incident = returning.incident_of(node, fleet, known)
    if not returning.is_ready(incident):
        raise UsageError(
            f"the watch is not through with {node} yet ({incident.step})",
            "gpuprov watch --state shows how far it is",
        )
    returning.refuse_early(incident, known, rules, time.time(), options.now)
    passed_on = [
        word
        for file in fleet_options.vault_password_files(options)
        for word in ("--vault-password-file", str(file.absolute()))
    ]
    passed_on += ["--user", options.user] if options.user else []

    def one(part: str) -> int:
        return returning.run_here(returning.command(part, fleet.place, node, passed_on, options.profile))

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    return returning.bring_back(incident, store, chosen.only(fleet, overrides), one, time.time, say)
