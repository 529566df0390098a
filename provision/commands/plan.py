"""gpuprov plan: show what `up` would do to each node, and why; changes nothing."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from provision.commands import fleet_options, formats
from provision.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from provision.api.plans import PlanResult
    from provision.up.waves import Share

NAMES = ("text", "json", "markdown", "github")

EPILOG = """\
exit codes: 3 when a node is refused; otherwise, with --exit-code, 4 when a node would change; otherwise 5
when a node is unreachable, unreadable or unknown to its scheduler; otherwise 0.

examples:
  gpuprov plan
  gpuprov plan --nodes 'rack1:!gpu-07'
  gpuprov plan --set gpuprov_stack=r595-cuda13.2
  gpuprov plan --diff                       also the files that would change
  gpuprov plan --remove validation_tools    what taking a role off changes
  gpuprov plan --json | jq '.nodes[] | select(.reboot == "yes")'
  gpuprov plan --format github --exit-code  for a pull request on the inventory
  gpuprov plan --offline                    check the inventory alone
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
    parser.add_argument(
        "--format",
        type=formats.Files(NAMES),
        action="extend",
        default=[],
        metavar="A,B=FILE",
        help=f"{', '.join(NAMES)} (default: text), each on standard output or in a file. markdown: a pull "
        "request comment; github: an annotation, and Markdown in the job's summary",
    )
    parser.add_argument("--exit-code", action="store_true", help="exit 4 when a node would change")
    parser.add_argument(
        "--offline",
        action="store_true",
        help="reach no node: check the inventory, its variables, stacks, hooks and what contradicts itself",
    )


def run(options: argparse.Namespace) -> ExitCode:
    remove = removed(options)
    outputs = formats.outputs(options.format, options.json)
    if options.offline:
        return _offline(options, remove)

    from provision.api import plans
    from provision.terminal import coloured, painted

    loaded = fleet_options.loaded(options)
    with fleet_options.progress("plan", len(loaded.nodes)) as on_event:
        result = plans.plan(
            loaded,
            limits=fleet_options.limits(options),
            full=options.full,
            remove=remove,
            wave=options.wave,
            canary=not options.no_canary,
            on_event=on_event,
        )
    for name, file in outputs:
        text = _rendered(name, result, options)
        if file == "-":
            sys.stdout.write(painted(text) if name == "text" and coloured(sys.stdout) else text)
        else:
            formats.write(file, text)
    seen = result.seen
    if seen.refused:
        return ExitCode.UNHEALTHY
    if options.exit_code and result.changes:
        return ExitCode.DRIFT
    return ExitCode.INCOMPLETE if seen.unreachable or result.plan.scheduler else ExitCode.OK


def _rendered(name: str, result: PlanResult, options: argparse.Namespace) -> str:
    import json

    from provision.drift import drift_text
    from provision.up import plan_report

    seen, made = result.seen, result.plan
    if name == "json":
        return json.dumps(result.document(), indent=1, default=str) + "\n"
    if name == "github":
        return plan_report.github(seen, made, diff=options.diff)
    if name == "markdown":
        return drift_text.safe(plan_report.markdown(seen, made, diff=options.diff), seen.secrets)
    lines = plan_report.lines(seen, made, all_reasons=options.reasons, diff=options.diff)
    return drift_text.safe(lines, seen.secrets)


def _offline(options: argparse.Namespace, remove: tuple[str, ...]) -> ExitCode:
    """Check everything that needs no node; mistakes are raised."""
    from provision.desired.expectations import facts_to_ask
    from provision.drift import assess
    from provision.remote.schedulers import chosen
    from provision.text import many
    from provision.up import hooks, resume

    if options.json or options.format:
        raise UsageError("--offline makes no plan: it prints text alone", "leave out --format or --json")
    fleet, overrides = fleet_options.load(options)
    resume.refuse_twice_named(fleet)
    hooks.load(fleet, overrides)
    chosen.load(fleet, overrides)
    for view in assess.declare(fleet, overrides, fleet_options.say, remove=remove).views.values():
        facts_to_ask(view)
    sys.stdout.write(
        f"{fleet.source}: {many(len(fleet.nodes), 'node')}, no mistake found in variables, stacks, versions, "
        "addresses and hooks\nnot looked at, since no node was reached: logins, GPUs and operating systems "
        "and what they rule out, what differs from the declared state, the scheduler\n"
    )
    return ExitCode.OK


def add_removal(parser: argparse.ArgumentParser) -> None:
    fleet_options.add_repeatable(
        parser,
        "--remove",
        "ROLE",
        "take this role off the nodes again: packages, files, holds and services; nothing else is changed "
        "(repeatable)",
    )


def removed(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the roles to remove, in order. Raises UsageError."""
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
    """Parse a number or percentage of nodes, for argparse."""
    from provision.up import waves

    try:
        return waves.share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def some_nodes(text: str) -> Share:
    """Parse a number or percentage of nodes above zero, for argparse."""
    parsed = share(text)
    if not parsed.number:
        raise argparse.ArgumentTypeError("must be 1 or more, or a percentage above 0%")
    return parsed
