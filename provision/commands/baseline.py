"""gpuprov baseline learn: derive a thresholds file from stored runs of one's own fleet."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from provision.commands import fleet_options
from provision.commands.parser import add_verbs
from provision.errors import ExitCode, GpuprovError, RunFolderError

if TYPE_CHECKING:
    from provision.checks.health import FleetHealth
    from provision.checks.judging.baseline import Baseline
    from provision.checks.thresholds import Threshold

EPILOG = """\
Use runs of a fleet that is known to be good: a few bad parts are excluded as outliers, but a fleet that is
slow as a whole is not detected. A metric measured on too few nodes, or with too much scatter, gets no
limit; the output lists it under `not learnt`.

Each limit comes with its 95 % confidence interval (it counts nodes, because GPUs of one node are not
independent), the share of healthy parts that it is expected to fail, and the number of nodes that makes it
trustworthy: with that many, the interval extends at most a fifth of the way from the limit to the median.

exit codes: 0 when the file was written; 1 when nothing could be learnt.

examples:
  gpuprov baseline learn
  gpuprov baseline learn 20261121T101500.000Z-validate --file our-limits.yml
  gpuprov report --rejudge --thresholds our-limits.yml
  gpuprov validate --nodes all --thresholds our-limits.yml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    about = "derive a limit for each GPU product and metric from stored validate runs"
    learn = add_verbs(parser, {"learn": about})["learn"]
    learn.add_argument(
        "run", nargs="*", metavar="RUN", help="run folders or run names (default: the newest validate run)"
    )
    learn.add_argument(
        "--file", metavar="FILE", default="baseline.yml", help="file to write (default baseline.yml)"
    )
    fleet_options.add_runs(learn)
    learn.add_argument(
        "--margin",
        type=_percent,
        metavar="PERCENT",
        help="distance of each limit from the fleet's median, in percent (default 10)",
    )


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 40:
        raise argparse.ArgumentTypeError("give a number from 1 to 40")
    return value / 100


def run(options: argparse.Namespace) -> ExitCode:
    import dataclasses

    from provision.checks import thresholds
    from provision.checks.judging import baseline

    reports = _runs(options)
    use = baseline.rules()
    if options.margin is not None:
        use = dataclasses.replace(use, margin=options.margin)
    newest = max(run.started for run in reports)
    learnt = baseline.learn((sample for run in reports for sample in baseline.samples(run)), newest[:7], use)
    if not learnt.limits:
        _say(learnt)
        raise GpuprovError(
            f"no limit could be derived from {', '.join(run.run_id for run in reports)}",
            f"give runs of at least {use.nodes} nodes of one GPU product, with checks that measure speed",
        )
    target = Path(options.file).expanduser()
    _write(target, baseline.render(learnt, newest[:10]))
    for sku in learnt.limits:
        thresholds.for_sku(sku, target)  # a file that we write must pass the checks of its readers
    _say(learnt)
    sys.stdout.write(f"\nwritten  {target}\ntry it   gpuprov report --rejudge --thresholds {target}\n")
    return ExitCode.OK


def _runs(options: argparse.Namespace) -> list[FleetHealth]:
    """Return the runs' reports, each once; a run without a report is judged from its stored output."""
    from provision.commands import report
    from provision.runs import stored_health
    from provision.validate import campaign

    reports = {}
    for name in options.run or [None]:
        folder = report.find_run(name, Path(options.runs) if options.runs else None)
        try:
            reports[folder.path.name] = stored_health.of_run(folder)
        except RunFolderError:
            reports[folder.path.name] = campaign.rejudge(folder)
    if undated := [run.run_id for run in reports.values() if not run.started[:7]]:
        raise RunFolderError(f"{undated[0]} has no start time", "leave it out")
    return list(reports.values())


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpuprovError(f"{path} cannot be written: {error.strerror}", "name another --file") from None


def _certainty(learnt: Baseline, sku: str, limit: Threshold) -> str:
    """Return one line on how trustworthy the limit is; empty for a count, which has no noise."""
    from provision.checks.judging.threshold_evidence import share_failed, share_text
    from provision.text import many

    certain = learnt.certainty.get((sku, limit.metric))
    if certain is None:
        return ""
    enough = f"{certain.enough:,}" if certain.enough else "more than a million"
    trust = "enough to trust it" if certain.trustworthy else f"{enough} make it trustworthy"
    return (
        f"    95 % interval {certain.low:.5g} to {certain.high:.5g}; healthy parts failed "
        f"{share_text(share_failed(limit), 'about')}; learnt from {many(certain.nodes, 'node')}; {trust}\n"
    )


def _say(learnt: Baseline) -> None:
    for sku, limits in learnt.limits.items():
        sys.stdout.write(f"{sku}\n")
        for limit in limits:
            sign = "≥" if limit.direction == "at_least" else "≤"
            basis = limit.source.partition(": ")[2].partition("; runs")[0]
            sys.stdout.write(f"  {limit.metric:<34} {sign} {limit.limit:g} {limit.unit}  ({basis})\n")
            sys.stdout.write(_certainty(learnt, sku, limit))
    if learnt.unlearnt:
        sys.stdout.write("not learnt\n")
    for one in learnt.unlearnt:
        sys.stdout.write(f"  {one.sku} {one.metric}: {one.why}\n")
