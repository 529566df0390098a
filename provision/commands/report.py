"""gpuprov report: a stored run's report again, judged again, compared to another, or packed for a vendor."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from provision.errors import ExitCode, RunFolderError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from provision.health import FleetHealth
    from provision.report.changes import NodeChange
    from provision.report.context import Context
    from provision.store import RunFolder

FORMATS = ("json", "html", "md", "junit", "nodes")
NONE = ["none"]

EPILOG = """\
No node is touched. --rejudge judges the raw output that the run kept: under new thresholds, or when a run was
cut off before its report. What it writes goes to the run's folder `rejudged`, beside the report of the day,
with changes.json: which nodes have another verdict now, by which finding, under which limit.

--compare says whose verdict changed and by which finding, which nodes, checks and GPUs came or went, and
which measurements moved by more than noise: by more than the changes of the SKU's other devices scatter, and
by more than 2.3 % (5 % where too few were measured twice to know that). --rejudge judges both alike first.

--bundle packs what a vendor needs to take a node or a GPU back: a readable summary, findings, measurements
beside their peers', raw output, facts, the node's history. Secrets and the names of other nodes are removed.

--history asks all runs at once, from an index beside them (index.sqlite) that may be removed at any time.

exit codes: as validate's: 3 when a node is unhealthy; else 5 when something was not measured; else 0.
with --compare: 3 when a node fails that did not, or something was measured to be worse; else 5 when something
that was measured before is not any more; else 0. with --bundle: 0 when the archive was written.
with --history: 0.

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
        "run", nargs="?", metavar="RUN", help="a run's folder, or its name; default: the newest validate run"
    )
    parser.add_argument(
        "--runs", metavar="DIR", help="where runs are (default: GPUPROV_RUNS, else the state folder)"
    )
    parser.add_argument(
        "--format",
        type=_formats,
        metavar="A,B",
        help=f"reports to write (default {','.join(FORMATS)}); none: only print",
    )
    parser.add_argument("--output", metavar="DIR", help="write here instead of into the run's folder")
    parser.add_argument("--rejudge", action="store_true", help="judge the kept raw output again")
    parser.add_argument(
        "--thresholds",
        metavar="FILE",
        help="with --rejudge: limits that win over the shipped ones, or add to them",
    )
    parser.add_argument(
        "--changes", action="store_true", help="with --rejudge: print only whose verdict changed, and by what"
    )
    parser.add_argument(
        "--compare", nargs=2, metavar=("A", "B"), help="what differs from run A to run B (folders, or names)"
    )
    parser.add_argument(
        "--bundle",
        metavar="NODE",
        help="pack all that the run knows of one node into an archive for its vendor",
    )
    parser.add_argument(
        "--history",
        nargs="?",
        const="",
        metavar="NODE",
        help="what all runs say: last verdicts, changes, devices that are bad again and again; or of NODE",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of what a person reads")


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
    from provision.commands.stored_run import find_run, stored
    from provision.judge import Verdict
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
        _write_changes(changed, health, target)
    _print(health, changed, files, context, options)
    codes = {Verdict.FAIL: ExitCode.UNHEALTHY, Verdict.ERROR: ExitCode.INCOMPLETE}
    return codes.get(overall(health), ExitCode.OK)


def _context(folder: RunFolder, health: FleetHealth, formats: Sequence[str]) -> Context:
    """What is told beyond the run's own health: only the page has plots, of many samples."""
    if "html" in formats:
        from provision import report_context

        return report_context.read(folder, health)
    from provision import verdict_history
    from provision.report.context import Context

    return Context(earlier=verdict_history.earlier(folder, health))


def _refuse_contradictions(options: argparse.Namespace) -> None:
    """Raises UsageError for options that mean nothing together."""
    if options.thresholds and not options.rejudge:
        raise UsageError("--thresholds only matters when judging again", "add --rejudge")
    if options.changes and not options.rejudge:
        raise UsageError("--changes only tells what judging again changed", "add --rejudge")
    for mode, others in (
        ("compare", "run bundle history format output changes"),
        ("bundle", "history format changes"),
        ("history", "run rejudge format output changes"),
    ):
        for other in others.split():
            if getattr(options, mode) is not None and getattr(options, other) not in (None, False):
                name = f"the run {options.run}" if other == "run" else f"--{other}"
                raise UsageError(f"--{mode} and {name} mean nothing together", f"leave out {name}")


def _judged(folder: RunFolder, options: argparse.Namespace) -> tuple[FleetHealth, list[NodeChange] | None]:
    """The run judged again, and what that changed; None when there is no report from before."""
    from pathlib import Path

    from provision import campaign
    from provision.commands.stored_run import stored
    from provision.report import changes

    health = campaign.rejudge(folder, Path(options.thresholds) if options.thresholds else None)
    try:
        before = stored(folder)
    except RunFolderError as reason:
        if options.changes:
            raise RunFolderError(
                f"there is no report from before to compare with: {reason.what}", "leave out --changes"
            ) from None
        return health, None
    return health, changes.between(before, health)


def _write_changes(changed: list[NodeChange], health: FleetHealth, target: Path) -> None:
    import json

    from provision.report import changes

    text = json.dumps(changes.document(changed, health.run_id), indent=1, ensure_ascii=False, default=str)
    path = target / "changes.json"
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}", "name another --output") from None


def _print(
    health: FleetHealth,
    changed: list[NodeChange] | None,
    files: dict[str, Path],
    context: Context,
    options: argparse.Namespace,
) -> None:
    import shutil

    from provision.report import changes, json, nodes, terminal

    if "nodes" in files and (said := nodes.left_out(health)):
        sys.stderr.write(f"{said}\n")
    if options.changes:
        _print_changes(changed or [], health, options)
        return
    if changed is None:
        lines, more = ["there is no report from before to compare with"], []
    else:
        lines, more = changes.summary(changed), list(changes.details(changed))
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


def _print_changes(changed: list[NodeChange], health: FleetHealth, options: argparse.Namespace) -> None:
    import json

    from provision.report import changes

    if options.json:
        sys.stdout.write(json.dumps(changes.document(changed, health.run_id), indent=1, default=str) + "\n")
        return
    told = [*(changes.summary(changed) or ["no verdict changed"]), *changes.details(changed)]
    sys.stdout.write("".join(f"{line}\n" for line in told))
