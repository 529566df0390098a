"""gpuprov report: render a stored run, judge it again, compare it with another, pack it for a vendor."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from provision.commands import fleet_options, formats
from provision.commands.parser import add_verbs
from provision.errors import ExitCode, RunFolderError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.checks.health import FleetHealth
    from provision.report.context import Context
    from provision.report.diff import Diff
    from provision.runs.store import RunFolder


FORMATS = ("json", "html", "md", "junit", "nodes")  # the default
NAMED = (*FORMATS, "prometheus")
EPILOG = """\
report reads stored runs and connects to no node. --rejudge judges the stored raw output again: with new
thresholds, or when a run was interrupted before its report. It writes into the subfolder `rejudged`, so the
original report stays, and adds changes.json: the nodes whose verdict changed, with the finding and the limit.

exit codes: 3 when a node is unhealthy; otherwise 5 when something was not measured; otherwise 0.

examples:
  gpuprov report
  gpuprov report 20261121T101500.000Z-validate --format md --output .
  gpuprov report --format prometheus --output /var/lib/prometheus/node-exporter
  gpuprov report --rejudge --thresholds our-limits.yml
  gpuprov report --rejudge --thresholds our-limits.yml --changes --json
  gpuprov report compare 20261101T101500.000Z-validate our/other-run
  gpuprov report bundle gpu-03 --output .
  gpuprov report history gpu-03
"""

EPILOGS = {
    "show": EPILOG,
    "compare": """\
It names the nodes whose verdict changed and the finding that changed it, the nodes, checks and GPUs that were
added or removed, and the measurements that changed by more than noise: by more than the scatter of the same
change on the SKU's other devices, and by more than 2.3 % (5 % when too few devices were measured in both runs
to know the scatter). With --rejudge, both runs are first judged by the same thresholds.

exit codes: 3 when a node fails that did not fail before, or a measurement is worse; otherwise 5 when an
earlier measurement is missing; otherwise 0.
""",
    "bundle": """\
A bundle has what a vendor needs for a return of a node or a GPU: a readable summary, findings, measurements
beside those of their peers, raw output, facts, the node's history. Secrets and the names of other nodes are
removed.
""",
    "history": "It reads the verdicts that each run stores in its folder.",
    "publish": """\
For nodes with `gpuprov_scheduler: kubernetes`: labels and the node condition GpuHealthy. It drains nothing.

exit codes: 5 when a node's was not written; otherwise 0.
""",
}

VERBS = {
    "show": "render a stored run",
    "compare": "show the differences between run A and the later run B",
    "bundle": "pack a run's data about one node into an archive for its vendor",
    "history": "summarize all runs: last verdicts, changes, repeated faults",
    "publish": "write a run's verdicts into Kubernetes: node labels and a condition",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser, VERBS, usual="show")
    verbs["bundle"].add_argument("node", metavar="NODE", help="its name in the run")
    for name, verb in verbs.items():
        verb.epilog = EPILOGS[name]
        if name == "compare":
            verb.add_argument("before", metavar="A", help="run folder or run name")
            verb.add_argument("after", metavar="B", help="a later one")
        elif name == "history":
            verb.add_argument("node", nargs="?", metavar="NODE", help="only this node (default: all)")
        else:
            about = "run folder or run name (default: the newest validate run)"
            verb.add_argument("run", nargs="?", metavar="RUN", help=about)
        fleet_options.add_runs(verb)
        if name != "history":
            verb.add_argument("--rejudge", action="store_true", help="judge the stored raw output again")
            about = "with --rejudge: thresholds that override or extend the shipped ones"
            verb.add_argument("--thresholds", metavar="FILE", help=about)
        if name in ("show", "bundle"):
            about = "write into this folder instead of the run folder"
            verb.add_argument("--output", metavar="DIR", help=about)
        fleet_options.add_json(verb)
    verbs["show"].add_argument(
        "--format",
        type=formats.Names(NAMED, none=True),
        action="extend",
        metavar="A,B",
        help=f"reports to write: {','.join(NAMED)} (default: all but prometheus); none: only print the "
        "summary",
    )
    about = "with --rejudge: print only the nodes whose verdict changed, and the reason"
    verbs["show"].add_argument("--changes", action="store_true", help=about)


def run(options: argparse.Namespace) -> ExitCode:
    if options.act == "history":
        from provision.commands import report_history

        return report_history.run(options)
    for name in ("thresholds", "changes"):
        if getattr(options, name, None) and not options.rejudge:
            raise UsageError(f"--{name} works with --rejudge only", "add --rejudge")
    if options.act == "compare":
        return _compare(options)
    from provision.runs import stored_health

    folder = find_run(options.run, Path(options.runs) if options.runs else None)
    if options.act == "show":
        return _show(folder, options)
    health = _judged(folder, options)[0] if options.rejudge else stored_health.of_run(folder)
    if options.act == "bundle":
        return _bundle(folder, health, options)
    from provision.commands import report_publish

    return report_publish.run(health, options)


def _show(folder: RunFolder, options: argparse.Namespace) -> ExitCode:
    from dataclasses import replace

    from provision import report
    from provision.checks.judge import Verdict
    from provision.report.causes import overall
    from provision.runs import stored_health

    health, changed = _judged(folder, options) if options.rejudge else (stored_health.of_run(folder), None)
    target = Path(options.output) if options.output else folder.path / ("rejudged" if options.rejudge else "")
    chosen = FORMATS if options.format is None else options.format
    context = _context(folder, health, chosen)
    files = report.write_all(health, target, chosen, context)
    if files:
        context = replace(context, folder=str(target.absolute()))
    if changed is not None:
        _write_changes(changed, target)
    _print(health, changed, files, context, options)
    codes = {Verdict.FAIL: ExitCode.UNHEALTHY, Verdict.ERROR: ExitCode.INCOMPLETE}
    return codes.get(overall(health), ExitCode.OK)


def _context(folder: RunFolder, health: FleetHealth, formats: Sequence[str]) -> Context:
    """Return a report's data beyond the run's own health; only HTML has plots, which need many samples."""
    if "html" in formats:
        from provision.report.context import of_run

        return of_run(folder, health)
    from provision.report.context import Context
    from provision.runs import node_history

    return Context(earlier=node_history.earlier(folder, health))


def _judged(folder: RunFolder, options: argparse.Namespace) -> tuple[FleetHealth, Diff | None]:
    """Judge the run again; return its health, and the changes, or None without an earlier report."""
    from provision.report.diff import diff
    from provision.runs import stored_health
    from provision.validate import campaign

    health = campaign.rejudge(folder, Path(options.thresholds) if options.thresholds else None)
    try:
        before = stored_health.of_run(folder)
    except RunFolderError as reason:
        if getattr(options, "changes", False):
            raise RunFolderError(
                f"there is no earlier report to compare with: {reason.what}", "leave out --changes"
            ) from None
        return health, None
    return health, diff(before, health, measured=False)


def _write_changes(changed: Diff, target: Path) -> None:
    from provision import atomic_file
    from provision.report import diff_text

    text = json.dumps(diff_text.changes_document(changed), indent=1, ensure_ascii=False, default=str)
    path = target / "changes.json"
    try:
        target.mkdir(parents=True, exist_ok=True)  # even with --format none, this file is written
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

    from provision.report import diff_text, nodes, terminal
    from provision.report import json as json_report
    from provision.terminal import coloured

    if "nodes" in files and (note := nodes.left_out(health)):
        sys.stderr.write(f"{note}\n")
    if changed is None:
        lines, details = ["there is no earlier report to compare with"], []
    else:
        lines = diff_text.verdict_lines(changed.verdicts)
        details = list(diff_text.finding_lines(changed.verdicts))
    if changed and options.changes:
        shown = [*(lines or ["no verdict changed"]), *details]
        document = json.dumps(diff_text.changes_document(changed), indent=1, default=str)
        sys.stdout.write(document + "\n" if options.json else "".join(f"{line}\n" for line in shown))
        return
    if options.json:
        sys.stdout.writelines(json_report.render(health))
        if options.rejudge:
            sys.stderr.writelines(f"{line}\n" for line in lines)
        return
    width = shutil.get_terminal_size((100, 24)).columns
    sys.stdout.write(terminal.summary(health, width=width, color=coloured(sys.stdout), context=context))
    if options.rejudge:
        shown = [*(lines or ["no verdict changed"]), *(f"  {line}" for line in details)]
        sys.stdout.write("\njudged again:\n" + "".join(f"  {line}\n" for line in shown))
    if files:
        sys.stdout.write("\n" + "".join(f"{name:<6} {path}\n" for name, path in files.items()))


def find_run(name: str | None, runs: Path | None) -> RunFolder:
    """Find the requested run: a folder, a name below `runs`, or the newest validate run.

    Raises RunFolderError if it does not exist or is not a validate run.
    """
    from provision.nearest import did_you_mean
    from provision.runs import store

    home = runs or store.runs_home()
    if name is None:
        if not any((path / "run.json").is_file() for path in home.glob("*Z-validate")):
            raise RunFolderError(
                f"never validated: there is no validate run in {home}",
                "run: gpuprov validate --nodes all; or set GPUPROV_RUNS if the runs are in another folder",
            )
        return store.latest("validate", runs)
    here = Path(name).parent if Path(name).name == "report.json" else Path(name)
    path = next((path for path in (here, home / name) if (path / "run.json").is_file()), None)
    if path is None:
        names = sorted((folder.name for folder in home.glob("*Z-validate")), reverse=True)
        raise RunFolderError(
            f"there is no run {name}: it is not a run folder, and no run in {home} has this name",
            did_you_mean(
                name, names, f"there are: {', '.join(names[:3])}" if names else "gpuprov validate creates one"
            ),
        )
    folder = store.RunFolder.open(path)
    verb = folder.meta().get("verb")
    if verb != "validate":
        raise RunFolderError(f"{path} is a run of `{verb}`, which measures no health", "name a validate run")
    return folder


def _compare(options: argparse.Namespace) -> ExitCode:
    """Print the comparison; the exit code reflects whether the later run is worse."""
    from provision.report import diff_text
    from provision.report.diff import diff

    before, after = (_health(name, options) for name in (options.before, options.after))
    if before.run_id == after.run_id:
        raise UsageError(f"{options.before} and {options.after} are the same run", "name two runs")
    comparison = diff(before, after)
    if options.json:
        sys.stdout.write(json.dumps(diff_text.comparison_document(comparison), indent=1) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in diff_text.comparison(comparison))
    if comparison.worse:
        return ExitCode.UNHEALTHY
    return ExitCode.INCOMPLETE if comparison.less_known else ExitCode.OK


def _health(name: str, options: argparse.Namespace) -> FleetHealth:
    """Return a run's report; a run without one is judged from its stored output."""
    from provision.runs import stored_health

    folder = find_run(name, Path(options.runs) if options.runs else None)
    if not options.rejudge and (folder.path / "report.json").exists():
        return stored_health.of_run(folder)
    from provision.validate import campaign

    return campaign.rejudge(folder, Path(options.thresholds) if options.thresholds else None)


def _bundle(folder: RunFolder, fleet: FleetHealth, options: argparse.Namespace) -> ExitCode:
    """Write the archive next to the run's report or into --output, and print its contents and gaps."""
    from provision.api import bundles

    target = Path(options.output).expanduser() if options.output else folder.path
    packed = bundles.pack(folder, fleet, options.node, target)
    made = packed.bundle
    if options.json:
        document = {
            "format": 1,
            "bundle": str(packed.path),
            "node": packed.node,
            "files": list(made.files),
            "removed": dict(made.removed),
            "notes": list(packed.notes),
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return ExitCode.OK
    removed = ", ".join(f"{kind} ({count:,})" for kind, count in made.removed.items())
    lines = [
        f"bundle   {packed.path} ({len(made.files)} files)",
        f"removed  {removed or 'nothing was found to remove'}",
        *packed.notes,
        "Read the archive before you hand it out, README.txt first.",
    ]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return ExitCode.OK
