"""gpuprov validate: run hardware checks on many nodes at once, and write one health report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options, formats
from provision.errors import ExitCode

if TYPE_CHECKING:
    from provision.api.fleets import LoadedFleet
    from provision.api.validations import Campaign, ValidateResult

FORMATS = ("html", "md", "junit", "json", "nodes")  # the default
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser, last_used=False, gpu_only=True)
    parser.set_defaults(timeout=None)  # default: each check's own limit; a given one applies to all
    parser.add_argument(
        "--checks",
        type=_checks,
        default=[],
        metavar="A,B",
        help="run only these checks (gpuprov docs checks lists them)",
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
        type=formats.Names(NAMED),
        action="extend",
        metavar="A,B",
        help=f"reports to write into the run folder: {','.join(NAMED)} (default: all but prometheus)",
    )
    fleet_options.add_resume(parser, "inventory, nodes, checks and options; skip what is already measured")
    fleet_options.add_break_lock(parser, "also measure")
    fleet_options.add_with_jobs(parser)


def run(options: argparse.Namespace) -> ExitCode:
    from provision.api import validations

    chosen = campaign(options)
    validations.asked(chosen)  # reports mistakes before an inventory is read or a password is typed
    loaded = fleet_options.loaded(options)
    result = carried_out(loaded, chosen, _remembered(options))
    printed(result, options.json)
    return result.code


def campaign(options: argparse.Namespace) -> Campaign:
    """Return the campaign that the command line selects, or that of the run it resumes."""
    from pathlib import Path

    from provision.api.validations import Campaign

    resume = _resumed(options) if options.resume is not None else None
    return Campaign(
        checks=options.checks,
        stage=options.stage or "",
        pairs=options.pairs or "",
        group=options.group,
        burn_seconds=options.burn_seconds,
        timeout=options.timeout,
        connections=options.connections,
        forks=options.forks,
        thresholds=Path(options.thresholds) if options.thresholds else None,
        formats=options.format or FORMATS,
        resume=resume,
        break_lock=options.break_lock,
        with_jobs=options.with_jobs,
    )


def carried_out(
    loaded: LoadedFleet, chosen: Campaign, arguments: Mapping[str, Any] | None = None
) -> ValidateResult:
    """Run the checks and show progress; `arguments`: settings for a run that resumes this one."""
    from provision.api import validations
    from provision.events import ChecksChosen, Event
    from provision.text import many

    with fleet_options.Drawn() as draw:

        def on_event(event: Event) -> None:
            draw(event)
            if isinstance(event, ChecksChosen):
                between = " besides the checks between nodes" if event.between else ""
                about = f"about {event.minutes} min{between}"
                fleet_options.say_what(loaded.fleet, f"{many(len(event.checks), 'check')} on each", about)

        return validations.validate(loaded, chosen, on_event, arguments=arguments)


# Options that a resumed run takes over, besides nodes, logins and checks.
_TAKEN_OVER = ("burn_seconds", "timeout", "thresholds", "pairs")


def _remembered(options: argparse.Namespace) -> dict[str, Any]:
    from pathlib import Path

    from provision.commands import resuming

    kept = resuming.remembered(options, _TAKEN_OVER)
    file = options.thresholds and str(Path(options.thresholds).expanduser().absolute())
    return {**kept, "thresholds": file}


def _resumed(options: argparse.Namespace) -> str:
    """Return the path of the run to resume, after copying its settings into `options`."""
    from provision.commands import resuming
    from provision.validate import validation

    before = validation.to_go_on_with(options.resume)
    other_checks = options.checks or options.stage
    names = [name for name in _TAKEN_OVER if not (other_checks and name == "pairs")]
    resuming.take_over(options, before.meta(), names)
    return str(before.path)


def printed(result: ValidateResult, as_json: bool) -> None:
    """Print the summary, or JSON, and the paths of the report's files."""
    import shutil

    from provision.report import json as json_report
    from provision.report import nodes, terminal
    from provision.terminal import coloured

    health, files = result.health, result.files
    if "nodes" in files and (note := nodes.left_out(health)):
        sys.stderr.write(f"{note}\n")
    if as_json:
        sys.stdout.writelines(json_report.render(health))
        return
    width, color = shutil.get_terminal_size((100, 24)).columns, coloured(sys.stdout)
    sys.stdout.write(terminal.summary(health, width=width, color=color, context=result.context))
    sys.stdout.write(f"\nrun folder  {result.folder}\n")
    for name, file in files.items():
        sys.stdout.write(f"{name:<11} {file}\n")
