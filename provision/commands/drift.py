"""gpuprov drift: compares the fleet with its declared state and with itself; made for CI."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from provision.drift import fleet_options
from provision.drift.formats import NAMES
from provision.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from provision.drift.drift_report import DriftReport
    from provision.drift.drifts import Drift
    from provision.remote.observe import Observation
    from provision.runs.store import RunFolder

EPILOG = """\
exit codes: 4 when a node differs from its declared state or from the majority of its kind; otherwise 5 when
a node is unreachable, unreadable or refused, or a fact could not be read; otherwise 0. With
--require-validated also 3 when a node's newest check failed, and 5 when a node has no current pass.

drift changes nothing, and opens one connection per node. For hundreds of nodes, and with more than one CPU
core, it starts several processes; GPUPROV_PROCESSES sets their number (1: no further process). Each process
opens its own connection to a jump host. The run folder receives each node's facts as they arrive.

--format may be repeated; the first --output belongs to the first --format, and so on. A format without a file
goes to standard output. When every format has a file, standard output gets the text report.

Undeclared facts (VBIOS, BIOS, card firmware, kernel, link widths) are compared within each GPU product and
operating system, in groups of three nodes or more. gpuprov_ignore_majority in the inventory lists the facts
in which a node may differ.

examples:
  gpuprov drift
  gpuprov drift --require-validated --no-majority
  gpuprov drift --format sarif --output drift.sarif --format markdown --output summary.md
  gpuprov drift --format prometheus --output /var/lib/prometheus/node-exporter/gpuprov-drift.prom
  gpuprov drift --json | jq '.drifts[] | [.node, .fact]'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser)
    parser.add_argument(
        "--format",
        action="append",
        default=[],
        choices=NAMES,
        help="text (default), or a format for CI (repeatable)",
    )
    fleet_options.add_repeatable(
        parser, "--output", "FILE", "write the matching --format to FILE (- is stdout; repeatable)"
    )
    parser.add_argument("--junit", metavar="FILE", help="same as --format junit --output FILE")
    parser.add_argument(
        "--no-majority", action="store_true", help="do not compare undeclared facts within the fleet"
    )
    parser.add_argument(
        "--require-validated",
        action="store_true",
        help="exit 3 when a node failed a check of the standard stage, 5 when it has no current pass in one",
    )


def run(options: argparse.Namespace) -> ExitCode:
    wanted = outputs(options)

    from provision.drift import drift_report, drift_text
    from provision.runs.store import RunFolder
    from provision.text import many

    folder = RunFolder.create("drift", drift_text.arguments(options))
    seen_there = _Seen(folder)
    try:
        with seen_there:
            also, also_of = drift_report.FACTS, drift_report.FACTS_OF
            seen = fleet_options.assess(
                options, "drift", also=also, also_of=also_of, on_judged=seen_there.keep
            )
        report = drift_report.make(
            seen,
            compare=not options.no_majority,
            required=options.require_validated,
            run_folder=str(folder.path),
        )
    except BaseException as error:
        folder.finish(int(getattr(error, "exit_code", ExitCode.INTERRUPTED)))
        if isinstance(error, KeyboardInterrupt) and seen_there.nodes:
            sys.stderr.write(f"\ngpuprov: {many(seen_there.nodes, 'node')} observed: {folder.path}\n")
        raise
    _keep(folder, report)
    try:
        _publish(report, wanted)
    finally:
        folder.finish(report.code)
    return report.code


class _Seen(contextlib.ExitStack):
    """What was seen and found on each node, written down as it comes: an interrupted run leaves that much."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__()
        self.nodes = 0
        self._facts, self._drifts = map(self.push, (folder.lines("facts"), folder.lines("drifts")))

    def keep(self, said: Observation, found: Sequence[Drift], secrets: Collection[str]) -> None:
        from provision.drift import drift_text
        from provision.runs import store

        self.nodes += 1
        facts = {"facts": said.facts, "problems": said.problems, "error": said.error}
        record = drift_text.without({"node": said.node, **facts}, secrets)
        self._facts.append([store.without_secrets(record)])
        self._drifts.append([store.without_secrets(drift_text.record(drift, secrets)) for drift in found])


def outputs(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Which format goes to which file ("-": standard output). Raises UsageError, before any node is asked."""
    from pathlib import Path

    formats = [*options.format, *(["json"] if options.json else [])]
    if len(options.output) > len(formats):
        raise UsageError(
            f"--output {options.output[-1]} belongs to no --format", "give a --format for each --output"
        )
    missing = len(formats) - len(options.output)
    wanted = list(zip(formats, [*options.output, *["-"] * missing], strict=True))
    if options.junit:
        wanted.append(("junit", options.junit))
    if "-" not in [file for _, file in wanted]:
        wanted.append(("text", "-"))
    if [file for _, file in wanted].count("-") > 1:
        raise UsageError(
            "two formats would go to standard output", "give all but one of them an --output FILE"
        )
    for _, file in wanted:
        place = Path(file)
        if file != "-" and (place.is_dir() or not place.absolute().parent.is_dir()):
            why = "is a folder" if place.is_dir() else "is in a folder that does not exist"
            raise UsageError(f"{file}: cannot be written: it {why}", "choose another file")
    return wanted


def _publish(report: DriftReport, wanted: list[tuple[str, str]]) -> None:
    import importlib
    from pathlib import Path

    from provision.terminal import coloured, painted

    names = [name for name, _ in wanted]
    for name, file in wanted:
        # Only the formats that are wanted are imported.
        form = importlib.import_module(f"provision.drift.formats.{name}")
        if name == "github" and "markdown" not in names:  # who asks for that puts it where it belongs
            form.summarize(report)
        text = form.render(report)
        if file == "-":
            sys.stdout.write(painted(text) if name == "text" and coloured(sys.stdout) else text)
            continue
        try:
            _write(Path(file), text)
        except OSError as trouble:
            raise UsageError(
                f"{file}: cannot be written: {trouble.strerror}", "choose another file"
            ) from None


def _write(path: Path, text: str) -> None:
    """A file whole or not at all, for who reads it now and then (a node exporter); a pipe or a device, and
    what a link leads to, as it is. Raises OSError."""
    from provision import atomic_file

    if path.is_symlink() or (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK):
        path.write_text(text, encoding="utf-8")
    else:
        atomic_file.write(path, text, private=False)


def _keep(folder: RunFolder, report: DriftReport) -> None:
    """What is odd in the fleet, line by line, for who looks at the run later."""
    from dataclasses import asdict

    from provision.drift import drift_text

    seen = report.seen
    for outlier in report.odd.outliers if report.odd else ():
        folder.append("majority", drift_text.without(asdict(outlier), seen.secrets))
    for tie in report.odd.ties if report.odd else ():
        folder.append("majority", drift_text.without(asdict(tie), seen.secrets))
