"""gpuprov drift: compares the fleet with its declared state and with itself; made for CI."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options
from provision.drift.formats import NAMES
from provision.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from provision.drift.drift_report import DriftReport
    from provision.events import Event

EPILOG = """\
exit codes: 4 when a node differs from its declared state or from the majority of its kind; otherwise 5 when
a node is unreachable, unreadable or refused, or a fact could not be read; otherwise 0. With
--require-validated also 3 when a node's newest check failed, and 5 when a node has no current pass.

drift changes nothing, and opens one connection per node. The run folder receives each node's facts as they
arrive.

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

    from provision.api import drifts

    loaded = fleet_options.loaded(options)
    kept = _Kept()
    try:
        with fleet_options.progress("drift", len(loaded.nodes), kept.take) as on_event:
            result = drifts.drift(
                loaded,
                limits=fleet_options.limits(options),
                compare=not options.no_majority,
                require_validated=options.require_validated,
                arguments=_arguments(options),
                on_event=on_event,
            )
    except KeyboardInterrupt:
        sys.stderr.write(kept.line)
        raise
    _publish(result.report, wanted)
    return result.report.code


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The command line for the run folder; values of `--set` may be secrets: only their names are kept."""
    kept = {name: given for name, given in vars(options).items() if name not in ("set", "print_completion")}
    return {**kept, "set": [text.partition("=")[0] for text in options.set]}


class _Kept:
    """Where the nodes' answers are written, for the last words of a run that is interrupted."""

    def __init__(self) -> None:
        self._folder = ""
        self._nodes = 0

    def take(self, event: Event) -> None:
        from provision.events import NodeAnswered, RunBegan

        self._nodes += isinstance(event, NodeAnswered)
        if isinstance(event, RunBegan):
            self._folder = str(event.folder)

    @property
    def line(self) -> str:
        from provision.text import many

        return f"\ngpuprov: {many(self._nodes, 'node')} observed: {self._folder}\n" if self._nodes else ""


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
