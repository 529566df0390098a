"""gpuprov plan: what `up` would do to each node, and why; changes nothing."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from provision.drift import fleet_options
from provision.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from provision.drift.assess import Assessment
    from provision.up.waves import Rollout, Share


EPILOG = """\
exit codes: 3 when a node is refused; otherwise 5 when a node is unreachable or unreadable; otherwise 0.

examples:
  gpuprov plan
  gpuprov plan --nodes 'rack1:!gpu-07'
  gpuprov plan --set gpuprov_stack=r595-cuda13.2
  gpuprov plan --diff                                 also what would become of the files that differ
  gpuprov plan --remove nccl                          what taking this role off the nodes would change
  gpuprov plan --json | jq '.nodes[] | select(.reboot == "yes")'
  gpuprov plan --markdown >> "$GITHUB_STEP_SUMMARY"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser)
    parser.add_argument("--full", action="store_true", help="plan every role on every node, needed or not")
    add_removal(parser)
    add_wave_options(parser)
    parser.add_argument(
        "-v",
        "--verbose",
        "--reasons",
        dest="reasons",
        action="store_true",
        help="show every change with its reason and the names of its facts (default: 12 lines for each role)",
    )
    parser.add_argument(
        "-D",
        "--diff",
        action="store_true",
        help="show the differences in the content of files that roles write whole, with secrets masked",
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown for a pull request comment")


def run(options: argparse.Namespace) -> ExitCode:
    from provision.drift import drift_text
    from provision.terminal import coloured, painted
    from provision.up import durations, plan, plan_report

    remove = removed(options)
    seen = fleet_options.assess(options, "plan", remove=remove)
    made = plan.make(
        seen.drifts,
        seen.observations,
        full=options.full,
        takes_part=seen.roles,
        remove=remove,
        rollout=rollout(options, seen),
        minutes=durations.learn(seen.fleet.place),
    )
    if options.json:
        import json

        document = drift_text.without(plan_report.document(seen, made), seen.secrets)
        sys.stdout.write(json.dumps(document, indent=1, default=str) + "\n")
    elif options.markdown:
        lines = plan_report.markdown(seen, made, diff=options.diff)
        sys.stdout.write(drift_text.safe(lines, seen.secrets))
    else:
        lines = plan_report.lines(seen, made, all_reasons=options.reasons, diff=options.diff)
        text = drift_text.safe(lines, seen.secrets)
        sys.stdout.write(painted(text) if coloured(sys.stdout) else text)
    if seen.refused:
        return ExitCode.UNHEALTHY
    return ExitCode.INCOMPLETE if seen.unreachable else ExitCode.OK


def add_removal(parser: argparse.ArgumentParser) -> None:
    fleet_options.add_repeatable(
        parser,
        "--remove",
        "ROLE",
        "take this role off the nodes again: packages, files, holds and services; nothing else is changed "
        "(repeatable)",
    )


def removed(options: argparse.Namespace) -> tuple[str, ...]:
    """The roles to be removed, in that order. Raises UsageError."""
    from provision.desired import removal

    if options.remove and options.full:
        raise UsageError(
            "--remove and --full contradict each other", "--full applies roles, --remove removes them"
        )
    return removal.named(options.remove)


def add_wave_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wave",
        "--wave-size",
        dest="wave",
        type=some_nodes,
        metavar="N|P%",
        help="wave size: a number of nodes or a percentage (default: all nodes up to 20, otherwise 10 %%)",
    )
    parser.add_argument(
        "--no-canary",
        action="store_true",
        help="do not start with a canary wave (one node of each SKU and operating system)",
    )


def share(text: str) -> Share:
    """A number of nodes or a percentage of them, for argparse."""
    from provision.up import waves

    try:
        return waves.share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def some_nodes(text: str) -> Share:
    """The same, but not none."""
    found = share(text)
    if not found.number:
        raise argparse.ArgumentTypeError("must be 1 or more, or a percentage above 0%")
    return found


def rollout(options: argparse.Namespace, seen: Assessment) -> Rollout:
    """How the fleet is divided, from the command line and the inventory. Raises StackError."""
    from provision.up import waves

    return waves.rollout(seen.declared, seen.described, size=options.wave, canary=not options.no_canary)
