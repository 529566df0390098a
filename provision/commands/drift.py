"""gpuprov drift: compare the fleet with its declared state and with itself; made for CI."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options, formats
from provision.drift.formats import NAMES
from provision.errors import ExitCode

if TYPE_CHECKING:
    from provision.drift.drift_report import DriftReport
    from provision.events import Event

EPILOG = """\
exit codes: 4 when a node differs from its declared state or from the majority of its kind; otherwise 5 when
a node is unreachable, unreadable or refused, or a fact could not be read; otherwise 0. With
--require-validated also 3 when a node's newest check failed, and 5 when a node has no current pass.

drift changes nothing, and opens one connection per node. The run folder receives each node's facts as they
arrive.

A format without a file goes to standard output. When every format has a file, standard output gets the text
report.

Undeclared facts (VBIOS, BIOS, card firmware, kernel, link widths) are compared within each GPU product and
operating system, in groups of three nodes or more. gpuprov_ignore_majority in the inventory lists the facts
in which a node may differ.

examples:
  gpuprov drift
  gpuprov drift --require-validated --no-majority
  gpuprov drift --format sarif=drift.sarif,markdown=summary.md
  gpuprov drift --format prometheus=/var/lib/node-exporter/gpuprov.prom
  gpuprov drift --json | jq '.drifts[] | [.node, .fact]'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser)
    parser.add_argument(
        "--format",
        type=formats.Files(NAMES),
        action="extend",
        default=[],
        metavar="A,B=FILE",
        help=f"{', '.join(NAMES)} (default: text), each on standard output or in a file",
    )
    parser.add_argument(
        "--no-majority", action="store_true", help="do not compare undeclared facts within the fleet"
    )
    parser.add_argument(
        "--require-validated",
        action="store_true",
        help="exit 3 when a node failed a check of the standard stage, 5 when it has no current pass in one",
    )


def run(options: argparse.Namespace) -> ExitCode:
    outputs = formats.outputs(options.format, options.json)

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
    _publish(result.report, outputs)
    return result.report.code


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the command line for the run folder, without values of `--set`, which may be secrets."""
    kept = {name: given for name, given in vars(options).items() if name not in ("set", "print_completion")}
    return {**kept, "set": [text.partition("=")[0] for text in options.set]}


class _Kept:
    """The folder and number of stored answers, reported when a run is interrupted."""

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


def _publish(report: DriftReport, wanted: list[tuple[str, str]]) -> None:
    import importlib

    from provision.terminal import coloured, painted

    names = [name for name, _ in wanted]
    for name, file in wanted:
        # Only requested formats are imported.
        form = importlib.import_module(f"provision.drift.formats.{name}")
        if name == "github" and "markdown" not in names:  # otherwise the user publishes the Markdown
            form.summarize(report)
        text = form.render(report)
        if file == "-":
            sys.stdout.write(painted(text) if name == "text" and coloured(sys.stdout) else text)
            continue
        formats.write(file, text)
