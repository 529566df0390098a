"""gpuprov report --compare A B: what differs from one stored run to another."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from provision.commands.stored_run import find_run, stored
from provision.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from provision.checks.health import FleetHealth


def run(options: argparse.Namespace) -> ExitCode:
    """Print the comparison; the exit code says whether the later run is worse."""
    from provision.report import diff_text
    from provision.report.diff import diff

    before, after = (_health(name, options) for name in options.compare)
    if before.run_id == after.run_id:
        raise UsageError(f"{options.compare[0]} and {options.compare[1]} are the same run", "name two runs")
    found = diff(before, after)
    if options.json:
        sys.stdout.write(json.dumps(diff_text.comparison_document(found), indent=1) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in diff_text.comparison(found))
    if found.worse:
        return ExitCode.UNHEALTHY
    return ExitCode.INCOMPLETE if found.less_known else ExitCode.OK


def _health(name: str, options: argparse.Namespace) -> FleetHealth:
    """A run's report; one that was cut off before its report is judged from what it kept."""
    folder = find_run(name, Path(options.runs) if options.runs else None)
    if not options.rejudge and (folder.path / "report.json").exists():
        return stored(folder)
    from provision.validate import campaign

    return campaign.rejudge(folder, Path(options.thresholds) if options.thresholds else None)
