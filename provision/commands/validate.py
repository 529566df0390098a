"""gpuprov validate: run the hardware checks on many nodes at once, judge them, write one health report."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options
from provision.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from provision.checks.health import FleetHealth
    from provision.fleet import Fleet
    from provision.runs.store import RunFolder
    from provision.validate.validation import Settings

FORMATS = ("html", "md", "junit", "json", "nodes")  # written where none is named
NAMED = (*FORMATS, "prometheus")

EPILOG = """\
exit codes: 3 when a node failed a check; otherwise 5 when a node is unreachable, unreadable, without a GPU
or not measured; otherwise 0. A warning alone exits 0: the node needs attention, not a repair.

--timeout also limits each program that a check starts, in addition to the duration of its load. A program
that exceeds its limit is killed, and the check's verdict is `error`.

examples:
  gpuprov validate --nodes all
  gpuprov validate --nodes 'rack1:!gpu-07' --stage quick
  gpuprov validate --checks gpu_burn --burn-seconds 600
  gpuprov validate --checks pair_bandwidth,pair_latency
  gpuprov validate --checks nccl_group --nodes 'rack1:rack2'
  gpuprov validate --resume
"""


def _checks(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _formats(text: str) -> list[str]:
    names = _checks(text)
    unknown = [name for name in names if name not in NAMED]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"choose among {','.join(NAMED)}")
    return names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser, last_used=False, gpu_only=True)
    parser.set_defaults(
        timeout=None
    )  # checks have limits of their own; one that was typed holds for them too
    parser.add_argument(
        "--checks", type=_checks, default=[], metavar="A,B", help="run only these checks (see --list)"
    )
    parser.add_argument(
        "--pairs",
        nargs="?",
        const="suspects",
        choices=["suspects", "all"],
        help="also measure bandwidth and latency between pairs of nodes, and name the bad nodes, links and "
        "switches. suspects (default): a few rounds; all: every pair, in as many rounds as there are nodes. "
        "With --checks pair_bandwidth or pair_latency: only that one",
    )
    parser.add_argument(
        "--group",
        action="store_true",
        help="also run NCCL over all nodes at once, and over pairs of nodes when the result is bad",
    )
    parser.add_argument(
        "--stage",
        choices=["quick", "standard", "burnin"],
        help="quick: read state only, seconds; standard (default): also load tests, minutes; burnin: also "
        "long load tests",
    )
    fleet_options.add_count(parser, "--burn-seconds", 60, "duration of gpu_burn in seconds")
    parser.add_argument(
        "--thresholds", metavar="FILE", help="thresholds that override or extend the shipped ones"
    )
    fleet_options.add_count(parser, "--forks", 50, "maximum number of nodes checked at the same time", "-f")
    parser.add_argument(
        "--format",
        type=_formats,
        default=list(FORMATS),
        metavar="A,B",
        help=f"reports to write into the run folder: {','.join(NAMED)} (default: all but prometheus)",
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="continue a run (default: the last one) with its checks; skip what is already measured",
    )
    fleet_options.add_break_lock(parser, "also measure")
    fleet_options.add_with_jobs(parser)
    parser.add_argument("--list", action="store_true", help="list the checks and exit")


def run(options: argparse.Namespace) -> ExitCode:
    if options.list:
        return _list_checks()
    from pathlib import Path

    from provision.checks import registry, thresholds
    from provision.checks.registry import PAIRS
    from provision.desired import variables
    from provision.remote import fleet_lock
    from provision.remote.observe import Reach
    from provision.remote.schedulers import chosen
    from provision.text import many
    from provision.validate import validation

    before = validation.to_go_on_with(options.resume) if options.resume is not None else None
    checks = options.checks
    if before is not None:
        checks = _taken_over(options, before)
    asked = registry.select(options.stage or "standard", checks)
    more = {"pairs": options.pairs and not registry.of_pairs(asked), "group": options.group}
    added = [name for name, one in PAIRS.entries.items() if more.get(one.stage)]
    asked = tuple(dict.fromkeys((*asked, *added)))
    override = Path(options.thresholds) if options.thresholds else None
    thresholds.for_sku(None, override)  # a file that cannot be used is refused before any node is touched
    fleet, overrides = fleet_options.load(options)
    if not fleet.nodes:
        raise UsageError("there is no node to validate", "widen --nodes, or add nodes to the inventory")
    variables.check(fleet, overrides, fleet_options.say)
    schedulers = chosen.load(fleet, overrides)
    settings = validation.Settings(
        burn_seconds=options.burn_seconds,
        timeout=options.timeout,
        forks=options.forks,
        every_pair=options.pairs == "all",
        override=override,
        vault_password_files=fleet_options.vault_password_files(options),
        schedulers=None if options.with_jobs else schedulers,
    )
    fleet_options.say_what(
        fleet, f"{many(len(asked), 'check')} on each", _minutes(asked, fleet, overrides, settings)
    )
    held_as = str((before and before.meta().get("lock")) or fleet_lock.fresh_name())
    limits = (options.timeout or 60.0, options.connections, settings.vault_password_files)
    with (
        Reach(fleet.nodes.values(), *limits, persistent=True) as over,  # a login is what a quick run costs
        fleet_options.alone(options, "validate", held_as, fleet, over=over),
    ):
        folder = validation.open_folder(before, fleet, asked, settings)
        folder.note(lock=held_as)
        health, code = validation.validate(folder, fleet, overrides, asked, settings, over)
    try:
        _publish(health, folder, options)
    finally:
        folder.note(counts={verdict.value: count for verdict, count in health.counts.items()})
        folder.finish(code)
    return code


# Checks that measure nothing where their variable is not set.
_OPTIONAL = {"dcgm_diag": "validation_tools_dcgm_level", "disk_speed": "validation_tools_scratch_dir"}


def _minutes(asked: Sequence[str], fleet: Fleet, overrides: Mapping[str, Any], settings: Settings) -> str:
    """`about 12 min`: one check after the other, each on as many nodes at a time as --forks says."""
    import math

    from provision.burnin.plan import cost
    from provision.checks import registry

    declared = {*overrides, *(name for node in fleet.nodes.values() for name in node.variables)}
    checks = [one for one in registry.of_nodes(asked) if one not in _OPTIONAL or _OPTIONAL[one] in declared]
    quick = registry.select("quick")  # they only read state, all of them about as long
    seconds = sum(cost("gpu_inventory" if one in quick else one) for one in checks) + max(
        0, settings.burn_seconds - 60
    ) * ("gpu_burn" in checks)
    minutes = math.ceil(len(fleet.nodes) / settings.forks) * seconds / 60
    between = " besides the checks between nodes" if registry.of_pairs(asked) else ""
    return f"about {max(1, round(minutes))} min{between}"


def _taken_over(options: argparse.Namespace, before: RunFolder) -> list[str]:
    """What a resumed run takes from `before` where the command line says nothing else: inventory and nodes;
    and the checks, which are returned."""
    meta = before.meta()
    if not (options.inventory or options.inventory_option):
        options.inventory = meta.get("inventory") or None
    if options.nodes == "all":
        options.nodes = str(meta.get("pattern") or "all")
    goes_on = not options.stage and not options.checks
    return [str(name) for name in meta.get("asked", ())] if goes_on else options.checks


def _publish(health: FleetHealth, folder: RunFolder, options: argparse.Namespace) -> None:
    """The report's files, and on stdout the summary (or the JSON) with where they are."""
    import shutil
    from dataclasses import replace

    from provision import report
    from provision.report import json as json_report
    from provision.report import nodes, terminal
    from provision.report.context import of_run
    from provision.terminal import coloured

    context = of_run(folder, health)
    files = report.write_all(health, folder, options.format, context)
    if files:
        context = replace(context, folder=str(folder.path.absolute()))
    if "nodes" in options.format and (said := nodes.left_out(health)):
        sys.stderr.write(f"{said}\n")
    if options.json:
        sys.stdout.writelines(json_report.render(health))
        return
    width = shutil.get_terminal_size((100, 24)).columns
    sys.stdout.write(terminal.summary(health, width=width, color=coloured(sys.stdout), context=context))
    sys.stdout.write(f"\nrun folder  {folder.path}\n")
    for name, file in files.items():
        sys.stdout.write(f"{name:<11} {file}\n")


def _list_checks() -> ExitCode:
    from provision.checks import registry

    table = registry.table()
    width = max(len(name) for name in table)
    for name, one in table.items():
        origin = f" (from {one.source})" if one.source else ""
        sys.stdout.write(f"{name:<{width}} {one.stage:<9} {one.scope:<6} {one.load().SUMMARY}{origin}\n")
    return ExitCode.OK
