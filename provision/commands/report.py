"""gpuprov report: renders a stored run, judges it again, compares it with another, packs it for a vendor."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from provision.errors import ExitCode, RunFolderError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from provision.checks.health import FleetHealth
    from provision.report.context import Context
    from provision.report.diff import Diff
    from provision.runs.store import RunFolder

FORMATS = ("json", "html", "md", "junit", "nodes")
NONE = ["none"]

EPILOG = """\
report reads stored runs and connects to no node. --rejudge judges the stored raw output again: with new
thresholds, or when a run was interrupted before its report. It writes into the subfolder `rejudged`, so the
original report stays, and adds changes.json: the nodes whose verdict changed, with the finding and the limit.

--compare shows the nodes whose verdict changed and the finding that changed it, the nodes, checks and GPUs
that were added or removed, and the measurements that changed by more than noise: by more than the scatter
of the same change on the SKU's other devices, and by more than 2.3 % (5 % when too few devices were measured
in both runs to know the scatter). With --rejudge, both runs are first judged by the same thresholds.

--bundle packs what a vendor needs for a return of a node or a GPU: a readable summary, findings, measurements
beside those of their peers, raw output, facts, the node's history. Secrets and the names of other nodes are
removed.

--history summarizes all runs: the verdicts that each run stores in its folder.

exit codes: 3 when a node is unhealthy; otherwise 5 when something was not measured; otherwise 0.
with --compare: 3 when a node fails that did not fail before, or a measurement is worse; otherwise 5 when an
earlier measurement is missing; otherwise 0. with --bundle and --history: 0.

examples:
  gpuprov report
  gpuprov report 20261121T101500.000Z-validate --format md --output .
  gpuprov report --rejudge --thresholds our-limits.yml
  gpuprov report --rejudge --thresholds our-limits.yml --changes --json
  gpuprov report --compare 20261101T101500.000Z-validate 20261121T101500.000Z-validate
  gpuprov report --bundle gpu-03 --output .
  gpuprov report --history gpu-03
"""


def _formats(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == NONE:
        return []
    if not names or any(name not in FORMATS for name in names):
        raise argparse.ArgumentTypeError(f"choose among {','.join(FORMATS)}, or none")
    return names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="run folder or run name (default: the newest validate run)"
    )
    parser.add_argument(
        "--runs",
        metavar="DIR",
        help="folder of the runs (default: $GPUPROV_RUNS, otherwise the state folder)",
    )
    parser.add_argument(
        "--format",
        type=_formats,
        metavar="A,B",
        help=f"reports to write (default {','.join(FORMATS)}); none: only print the summary",
    )
    parser.add_argument("--output", metavar="DIR", help="write into this folder instead of the run folder")
    parser.add_argument("--rejudge", action="store_true", help="judge the stored raw output again")
    parser.add_argument(
        "--thresholds",
        metavar="FILE",
        help="with --rejudge: thresholds that override or extend the shipped ones",
    )
    parser.add_argument(
        "--changes",
        action="store_true",
        help="with --rejudge: print only the nodes whose verdict changed, and the reason",
    )
    parser.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="show the differences between run A and the later run B (folders or names)",
    )
    parser.add_argument(
        "--bundle",
        metavar="NODE",
        help="pack the run's data about one node into an archive for its vendor",
    )
    parser.add_argument(
        "--history",
        nargs="?",
        const="",
        metavar="NODE",
        help="summarize all runs: last verdicts, changes, devices with repeated faults (NODE: of that node)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(options: argparse.Namespace) -> ExitCode:
    _refuse_contradictions(options)
    if options.compare:
        from provision.commands import report_compare

        return report_compare.run(options)
    if options.history is not None:
        from provision.commands import report_history

        return report_history.run(options)
    from dataclasses import replace
    from pathlib import Path

    from provision import report
    from provision.checks.judge import Verdict
    from provision.commands.stored_run import find_run, stored
    from provision.report.causes import overall

    folder = find_run(options.run, Path(options.runs) if options.runs else None)
    health, changed = _judged(folder, options) if options.rejudge else (stored(folder), None)
    if options.bundle is not None:
        from provision.commands import report_bundle

        return report_bundle.run(folder, health, options)
    target = Path(options.output) if options.output else folder.path / ("rejudged" if options.rejudge else "")
    formats = FORMATS if options.format is None else options.format
    context = _context(folder, health, formats)
    files = report.write_all(health, target, formats, context)
    if files:
        context = replace(context, folder=str(target.absolute()))
    if changed is not None:
        _write_changes(changed, target)
    _print(health, changed, files, context, options)
    codes = {Verdict.FAIL: ExitCode.UNHEALTHY, Verdict.ERROR: ExitCode.INCOMPLETE}
    return codes.get(overall(health), ExitCode.OK)


def _context(folder: RunFolder, health: FleetHealth, formats: Sequence[str]) -> Context:
    """What is told beyond the run's own health: only the page has plots, of many samples."""
    if "html" in formats:
        from provision.report.context import of_run

        return of_run(folder, health)
    from provision.report.context import Context
    from provision.runs import node_history

    return Context(earlier=node_history.earlier(folder, health))


def _refuse_contradictions(options: argparse.Namespace) -> None:
    """Raises UsageError for options that mean nothing together."""
    if options.thresholds and not options.rejudge:
        raise UsageError("--thresholds works with --rejudge only", "add --rejudge")
    if options.changes and not options.rejudge:
        raise UsageError("--changes works with --rejudge only", "add --rejudge")
    for mode, others in (
        ("compare", "run bundle history format output changes"),
        ("bundle", "history format changes"),
        ("history", "run rejudge format output changes"),
    ):
        for other in others.split():
            if getattr(options, mode) is not None and getattr(options, other) not in (None, False):
                name = f"the run {options.run}" if other == "run" else f"--{other}"
                raise UsageError(f"--{mode} cannot be combined with {name}", f"leave out {name}")


def _judged(folder: RunFolder, options: argparse.Namespace) -> tuple[FleetHealth, Diff | None]:
    """The run judged again, and what that changed; None when there is no report from before."""
    from pathlib import Path

    from provision.commands.stored_run import stored
    from provision.report.diff import diff
    from provision.validate import campaign

    health = campaign.rejudge(folder, Path(options.thresholds) if options.thresholds else None)
    try:
        before = stored(folder)
    except RunFolderError as reason:
        if options.changes:
            raise RunFolderError(
                f"there is no earlier report to compare with: {reason.what}", "leave out --changes"
            ) from None
        return health, None
    return health, diff(before, health, measured=False)


def _write_changes(changed: Diff, target: Path) -> None:
    import json

    from provision import atomic_file
    from provision.report import diff_text

    text = json.dumps(diff_text.changes_document(changed), indent=1, ensure_ascii=False, default=str)
    path = target / "changes.json"
    try:
        target.mkdir(parents=True, exist_ok=True)  # the one file written with --format none
        atomic_file.write(path, text + "\n", private=False)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}", "name another --output") from None


def _print(
    health: FleetHealth,
    changed: Diff | None,
    files: dict[str, Path],
    context: Context,
    options: argparse.Namespace,
) -> None:
    import shutil
    from json import dumps as json_of

    from provision.report import diff_text, json, nodes, terminal

    if "nodes" in files and (said := nodes.left_out(health)):
        sys.stderr.write(f"{said}\n")
    if changed is None:
        lines, more = ["there is no earlier report to compare with"], []
    else:
        lines = diff_text.verdict_lines(changed.verdicts)
        more = list(diff_text.finding_lines(changed.verdicts))
    if changed and options.changes:
        told = [*(lines or ["no verdict changed"]), *more]
        document = json_of(diff_text.changes_document(changed), indent=1, default=str)
        sys.stdout.write(document + "\n" if options.json else "".join(f"{line}\n" for line in told))
        return
    if options.json:
        sys.stdout.writelines(json.render(health))
        if options.rejudge:
            sys.stderr.writelines(f"{line}\n" for line in lines)
        return
    color = sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns
    sys.stdout.write(terminal.summary(health, width=width, color=color, context=context))
    if options.rejudge:
        told = [*(lines or ["no verdict changed"]), *(f"  {line}" for line in more)]
        sys.stdout.write("\njudged again:\n" + "".join(f"  {line}\n" for line in told))
    if files:
        sys.stdout.write("\n" + "".join(f"{name:<6} {path}\n" for name, path in files.items()))
