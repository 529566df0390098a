"""gpuprov plan: what `up` would do to each node, and why; changes nothing."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from provision.commands import wave_options
from provision.drift import fleet_options
from provision.errors import ExitCode

if TYPE_CHECKING:
    from provision.drift.assess import Assessment
    from provision.up.plan import Plan

EPILOG = """\
exit codes: 3 when a node is refused; otherwise 5 when a node could not be observed; otherwise 0.

examples:
  gpuprov plan
  gpuprov plan --nodes 'rack1:!gpu-07'
  gpuprov plan --set gpuprov_stack=r595-cuda13.2
  gpuprov plan --json | jq '.nodes[] | select(.reboot == "yes")'
  gpuprov plan --markdown >> "$GITHUB_STEP_SUMMARY"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser)
    parser.add_argument("--full", action="store_true", help="plan every role on every node, needed or not")
    wave_options.add_arguments(parser)
    parser.add_argument(
        "--reasons", action="store_true", help="show all reasons (default: six for each role)"
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown for a pull request comment")


def run(options: argparse.Namespace) -> ExitCode:
    from provision.drift import drift_text
    from provision.up import plan_report

    seen = fleet_options.assess(options, "plan")
    made = _make(options, seen)
    if options.json:
        import json

        document = drift_text.without(plan_report.document(seen, made), seen.secrets)
        sys.stdout.write(json.dumps(document, indent=1, default=str) + "\n")
    elif options.markdown:
        sys.stdout.write(drift_text.safe(plan_report.markdown(seen, made), seen.secrets))
    else:
        sys.stdout.write(
            drift_text.safe(plan_report.lines(seen, made, all_reasons=options.reasons), seen.secrets)
        )
    if seen.refused:
        return ExitCode.UNHEALTHY
    return ExitCode.INCOMPLETE if seen.unreachable else ExitCode.OK


def _make(options: argparse.Namespace, seen: Assessment) -> Plan:
    from provision.up import durations, plan

    return plan.make(
        seen.drifts,
        seen.observations,
        full=options.full,
        takes_part=seen.roles,
        rollout=wave_options.rollout(options, seen),
        minutes=durations.learn(str(seen.fleet.source.absolute())),
    )
