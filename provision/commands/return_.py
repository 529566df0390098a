"""gpuprov return: return a repaired node to the spares."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from provision.commands import fleet_options
from provision.errors import ExitCode, GpuprovError, InventoryError, UsageError

if TYPE_CHECKING:
    from provision.api.source import Source

EPILOG = """\
Use it after you have repaired a node that gpuprov watch took out of service. It runs `gpuprov up`, `gpuprov
validate` and `gpuprov burnin` on the node in turn. Run again after an interruption, it continues with the
first that has not passed; after one that found a fault it begins anew, since a repair may change anything.
The node stays drained in its scheduler throughout, and becomes a spare once all three have passed. A node
that has failed several times in 30 days has to wait longer each time (gpuprov_watch.return_hours).

exit codes: the exit code of the command that did not pass; otherwise 0.

examples:
  gpuprov return gpu-03
  gpuprov return gpu-03 fleet.yml --profile smoke --now
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument("node", nargs="?", metavar="NODE", help="the node, by its name in the inventory")
    fleet_options.add_arguments(parser, gpu_only=True, lock=False, last_used=False, json=False)
    parser.add_argument(
        "--profile",
        default="day",
        metavar="NAME",
        help="burn-in: smoke, day (default), long, or the path of a profile file",
    )
    parser.add_argument("--now", action="store_true", help="skip the wait after repeated failures")


def run(options: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from provision.burnin import profile
    from provision.desired import variables
    from provision.remote.schedulers import chosen
    from provision.up.watch import incidents, policy, returning

    node = options.node
    if options.nodes != "all" and options.inventory is None and (node is None or Path(node).exists()):
        # As with every other verb: an inventory, and the node in --nodes.
        options.inventory, node, options.nodes = node, options.nodes, "all"
    if node is None:
        raise UsageError(
            "no node given", "gpuprov return gpu-03; gpuprov watch state lists the nodes in repair"
        )
    profile.load(options.profile)  # fails now instead of after a password prompt, or hours later
    source = fleet_options.settled(options)
    loaded = fleet_options.loaded_from(source)
    fleet, overrides = loaded.fleet, loaded.overrides
    variables.check(fleet, overrides, fleet_options.say)
    rules = policy.of(fleet, overrides)
    store = incidents.Store(incidents.place_of(fleet))
    alone = replace(fleet, nodes={name: one for name, one in fleet.nodes.items() if name == node})
    if (other := incidents.elsewhere(store.path, alone))[0]:
        raise UsageError(f"{other[0]}: another watch has it", f"gpuprov return {node} {other[1]}")
    stored = store.incidents()
    for why in store.damaged.values():
        fleet_options.say(why)
    incident = returning.incident_of(node, fleet, stored)
    returning.refuse_unfinished(incident)
    returning.refuse_early(incident, stored, rules, time.time(), options.now)

    def one(part: str) -> int:
        return _part(part, replace(source, nodes=node), options.profile)

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    if (scheduler := chosen.load(fleet, overrides).of.get(node)) is None:
        raise InventoryError(f"{node}: no scheduler that gpuprov can ask", "set gpuprov_scheduler")
    return returning.bring_back(incident, store, scheduler, one, time.time, say)


def _part(part: str, source: Source, profile_name: str) -> int:
    """Run one part on the current inventory and print its verb's output; return its exit code."""
    from provision import bug_file
    from provision.terminal import complain

    try:
        if part == "burnin":
            return _burnin(source, profile_name)
        return _up(source) if part == "up" else _validate(source)
    except GpuprovError as error:
        complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        named = bug_file.named(error)
        complain(named)
        return named.exit_code


def _up(source: Source) -> ExitCode:
    from provision.api import fleets
    from provision.api.source import Limits
    from provision.commands import up
    from provision.up.options import UpOptions

    files = [str(file.absolute()) for file in fleets.vault_password_files(source)]
    arguments = {"nodes": source.nodes, "user": source.user, "vault_password_file": files}
    loaded = fleet_options.loaded_from(replace(source, use_lock=True, gpu_nodes_only=False))
    options = UpOptions(connections=Limits().connections)
    result = up.carried_out(loaded, options, {**arguments, "set": source.variables})
    sys.stdout.write(f"{result.text()}\n")
    sys.stdout.flush()
    return result.code


def _validate(source: Source) -> ExitCode:
    from provision.api.validations import Campaign
    from provision.commands import validate

    result = validate.carried_out(fleet_options.loaded_from(replace(source, use_lock=True)), Campaign())
    validate.printed(result, as_json=False)
    return result.code


def _burnin(source: Source, profile_name: str) -> ExitCode:
    from provision.api.source import Limits
    from provision.burnin import profile
    from provision.burnin.actions import BurninOptions
    from provision.commands import burnin

    chosen = profile.load(profile_name)
    loaded, options = fleet_options.loaded_from(source), BurninOptions(every_node=False)
    done = burnin.carried_out(loaded, chosen, options, Limits())
    return burnin.printed(done, as_json=False)
