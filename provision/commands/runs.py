"""gpuprov runs: the work that runs have given to workers; cancels it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from provision.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from provision.remote.workers.register import Record

EPILOG = """\
A unit is what a run has given to one worker of a Receptor mesh. It outlives a controller that is killed:
gpuprov up --resume collects what it did; --cancel ends it and removes what is left of it, here and there.
The locks of its nodes end by themselves half an hour later, or with up --resume.

exit codes: 0; 5 when a unit could not be removed now (run it again once the local Receptor is back).

examples:
  gpuprov runs
  gpuprov runs --cancel 20261126T031500.123Z-up
  gpuprov runs --cancel all
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "--cancel",
        metavar="WHICH",
        help="end and remove the units of a run, by its name; one of them, by its own; or all left behind",
    )
    parser.add_argument("--runs", metavar="DIR", help="the folder of runs (default: GPUPROV_RUNS)")
    parser.add_argument("--json", action="store_true", help="print the units as JSON")


def run(options: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from provision.runs.store import runs_home

    found = list(_found(Path(options.runs) if options.runs else runs_home()))
    if options.cancel:
        return _cancel(found, options.cancel)
    rows = _rows(found)
    if options.json:
        import json

        sys.stdout.write(json.dumps({"format": 1, "units": rows}, indent=1) + "\n")
    elif not rows:
        sys.stdout.write("no run has work at a worker\n")
    else:
        sys.stdout.write("".join(f"{_line(row)}\n" for row in rows))
    return ExitCode.OK


def _found(home: Path) -> Iterator[tuple[Path, str, Record, bool]]:
    """Each unit: its folder, its run (empty: of a command without a run folder), and whether its controller
    lives."""
    from provision.remote.workers import register

    folders = [(register.state_folder() / register.FOLDER, "")]
    folders += [(folder, folder.parent.name) for folder in sorted(home.glob(f"*/{register.FOLDER}"))]
    for folder, name in folders:
        for record, alive in register.records(folder):
            yield folder, name, record, alive


def _rows(found: list[tuple[Path, str, Record, bool]]) -> list[dict[str, Any]]:
    from provision.remote.workers.control import Control, ControlError, RefusedError
    from provision.text import iso

    def state(record: Record) -> str:
        try:
            known = Control(record.socket).unit(record.unit) if record.unit else None
        except (ControlError, RefusedError) as error:
            return f"unknown: {error.what}"
        return str(known.get("StateName")).lower() if known else "gone"

    return [
        {
            "unit": record.label,
            "run": name,
            "worker": record.worker,
            "what": record.what,
            "nodes": list(record.nodes),
            "state": state(record),
            "controller": "running" if alive else "gone",
            "begun": iso(record.begun),
            "deadline": iso(record.deadline),
        }
        for _, name, record, alive in found
    ]


def _line(row: dict[str, Any]) -> str:
    from provision.node_names import fold
    from provision.terminal import printable

    where = f"{row['worker']}: {row['what']} on {fold(row['nodes'])}" if row["nodes"] else row["worker"]
    times = f"begun {row['begun']}, ends {row['deadline']} at the latest"
    return printable(
        f"{row['unit']}  {row['run'] or '(no run folder)'}  {where}: {row['state']}, "
        f"its controller is {row['controller']}; {times}"
    )


def _cancel(found: list[tuple[Path, str, Record, bool]], which: str) -> ExitCode:
    from provision.remote.workers import leftovers, register
    from provision.terminal import printable

    chosen = [
        (folder, record, alive)
        for folder, name, record, alive in found
        if which in (name, record.label) or (which == "all" and not alive)
    ]
    if not chosen and which != "all":
        raise UsageError(
            f"--cancel {which}: no unit and no run with units has this name", "gpuprov runs lists them"
        )
    if going := [record.label for _, record, alive in chosen if alive]:
        raise UsageError(
            f"--cancel {which}: the controller of {going[0]} is at work",
            "interrupt it there: it ends its units",
        )
    failed = 0
    for folder, record, _ in chosen:
        trouble = leftovers.remove(folder, record)
        failed += bool(trouble)
        what = f"not removed: {trouble}" if trouble else "ended and removed"
        sys.stdout.write(printable(f"{record.label}  worker {record.worker}: {what}") + "\n")
        register.clear(folder)
    return ExitCode.INCOMPLETE if failed else ExitCode.OK
