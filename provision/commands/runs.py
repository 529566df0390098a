"""gpuprov runs: list stored runs, and the work of runs at workers."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options
from provision.commands.parser import add_verbs
from provision.errors import ExitCode, RunFolderError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from provision.remote.workers.register import Record

EPILOG = """\
A unit is what a run has given to one worker of a Receptor mesh. It outlives a controller that is killed:
gpuprov up --resume collects what it did; cancel ends it and removes what is left of it, here and there. The
locks of its nodes end by themselves half an hour later, or with up --resume.

exit codes: 0; 5 when a unit could not be removed now (run it again once the local Receptor is back).

examples:
  gpuprov runs
  gpuprov runs --json | jq -r '.runs[] | select(.verb == "up") | .run'
  gpuprov runs units
  gpuprov runs cancel 20261126T031500.123Z-up
  gpuprov runs cancel all
"""

VERBS = {
    "list": "list the stored runs, newest first",
    "units": "list the work that runs have given to workers of a mesh",
    "cancel": "end such work, and remove what is left of it",
}
_SHOWN = 20  # entries of the list; --json has all
_FIELDS = ("started", "finished", "exit_code", "inventory", "counts")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = add_verbs(parser, VERBS, usual="list")
    verbs["list"].epilog = EPILOG
    about = "a run, by its name; one unit, by its own; or all whose controller has gone"
    verbs["cancel"].add_argument("which", metavar="WHICH", help=about)
    for name, verb in verbs.items():
        fleet_options.add_runs(verb)
        if name != "cancel":
            fleet_options.add_json(verb)


def run(options: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from provision.runs.store import runs_home

    home = Path(options.runs) if options.runs else runs_home()
    if options.act == "cancel":
        return _cancel(list(_found(home)), options.which)
    if options.act == "units":
        rows, lines = _rows(list(_found(home))), _line
        empty = "no run has work at a worker\n"
    else:
        rows, lines = _stored(home), _stored_line
        empty = f"there is no run in {home}\n"
    if options.json:
        import json

        key = "units" if options.act == "units" else "runs"
        sys.stdout.write(json.dumps({"format": 1, key: rows}, indent=1) + "\n")
        return ExitCode.OK
    shown = rows if options.act == "units" else rows[:_SHOWN]
    sys.stdout.write("".join(f"{lines(row)}\n" for row in shown) or empty)
    if hidden := len(rows) - len(shown):
        sys.stdout.write(f"… and {hidden:,} more; --json has all\n")
    return ExitCode.OK


def _stored(home: Path) -> list[dict[str, Any]]:
    """Return all runs, newest first, including those with an unreadable run.json."""
    from provision.runs.store import RunFolder

    rows = []
    for path in sorted(home.glob("*Z-*"), reverse=True):
        row: dict[str, Any] = {"run": path.name, "verb": path.name.partition("Z-")[2]}
        try:
            meta = RunFolder.open(path).meta()
        except RunFolderError as error:
            rows.append({**row, "error": error.what})
            continue
        arguments = meta.get("arguments")
        nodes = meta.get("nodes") or (arguments.get("nodes") if isinstance(arguments, dict) else None)
        row["nodes"] = len(nodes) if isinstance(nodes, list) else None
        rows.append(row | {key: meta.get(key) for key in _FIELDS})
    return rows


def _stored_line(row: dict[str, Any]) -> str:
    from provision.terminal import printable
    from provision.text import many

    if "error" in row:
        return printable(f"{row['run']}  {row['error']}")
    counts = row["counts"] if isinstance(row["counts"], dict) else {}
    ended = "no exit code" if row["exit_code"] is None else f"exit {row['exit_code']}"
    about = [
        row["run"],
        ended,
        *([many(row["nodes"], "node")] if row["nodes"] is not None else []),
        *([", ".join(f"{count} {what}" for what, count in counts.items() if count)] if counts else []),
        *([str(row["inventory"])] if row["inventory"] else []),
    ]
    return printable("  ".join(about))


def _found(home: Path) -> Iterator[tuple[Path, str, Record, bool]]:
    """Yield the folder, run ("" without a run folder), record, and controller's liveness of each unit."""
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
            unit = Control(record.socket).unit(record.unit) if record.unit else None
        except (ControlError, RefusedError) as error:
            return f"unknown: {error.what}"
        return str(unit.get("StateName")).lower() if unit else "gone"

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
            f"{which}: no unit and no run with units has this name", "gpuprov runs units lists them"
        )
    if going := [record.label for _, record, alive in chosen if alive]:
        raise UsageError(
            f"{which}: the controller of {going[0]} is at work",
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
