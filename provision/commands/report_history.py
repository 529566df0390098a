"""gpuprov report --history: verdicts of all runs together, from an index beside the runs."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from provision.errors import ExitCode, RunFolderError

if TYPE_CHECKING:
    from provision.run_index import Index

_SHOWN = 20  # of each list; --json has all


def run(options: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from provision.run_index import Index

    with Index(Path(options.runs) if options.runs else None) as index:
        document = _of_node(index, options.history) if options.history else _of_all(index)
    if options.json:
        import json

        sys.stdout.write(json.dumps({"format": 1, **document}, indent=1) + "\n")
    else:
        lines = _node_lines(document) if options.history else _lines(document)
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    return ExitCode.OK


def _of_node(index: Index, node: str) -> dict[str, Any]:
    from provision.nearest import did_you_mean

    past = index.of(node)
    if not past:
        raise RunFolderError(
            f"no run in {index.home} has a verdict for {node}",
            did_you_mean(node, index.last(), "gpuprov report --history lists the known nodes"),
        )
    repeats = [vars(one) for one in index.repeats() if one.node == node]
    return {
        "node": node,
        "runs": [vars(one) for one in past],
        "flips": index.flips().get(node, 0),
        "repeat_offenders": repeats,
    }


def _of_all(index: Index) -> dict[str, Any]:
    last = index.last()
    if not last:
        raise RunFolderError(
            f"no run in {index.home} has a verdict for any node", "gpuprov validate creates one"
        )
    return {
        "nodes": {node: vars(past) for node, past in sorted(last.items())},
        "flips": dict(sorted(index.flips().items(), key=lambda one: (-one[1], one[0]))),
        "repeat_offenders": [vars(one) for one in index.repeats()],
    }


def _lines(document: dict[str, Any]) -> list[str]:
    """Each list worst first, and how much of it is not shown."""
    from provision.node_names import fold
    from provision.wording import many, one_line

    by_verdict: dict[str, list[str]] = {}
    for node, past in document["nodes"].items():
        by_verdict.setdefault(past["verdict"], []).append(one_line(node, 80))
    told = [f"last verdict of {many(len(document['nodes']), 'node')}:"]
    for verdict in ("fail", "error", "warn", "skip", "pass"):
        if names := by_verdict.get(verdict):
            told.append(f"  {verdict:<5} {len(names):>6,}  {fold(names, 200)}")
    flips = [f"{one_line(node, 80)}: {many(times, 'time')}" for node, times in document["flips"].items()]
    repeats = [
        f"{one_line(one['node'], 80)} {one_line(one['device'], 80)}: {_times(one)}"
        for one in document["repeat_offenders"]
    ]
    for title, lines in (("verdict changed from run to run", flips), ("repeated faults", repeats)):
        told += [f"{title}:", *(f"  {line}" for line in lines[:_SHOWN] or ["none"])]
        if len(lines) > _SHOWN:
            told.append(f"  … and {len(lines) - _SHOWN:,} more; --json has all")
    return told


def _node_lines(document: dict[str, Any]) -> list[str]:
    """Newest first, as a person asks."""
    from provision.wording import many, moment, one_line

    said = [f"{one['verdict']:<5}  {moment(one['started'])}  {one['run']}" for one in document["runs"]]
    told = [f"{one_line(document['node'], 80)}: {many(len(said), 'run')}, newest first", *reversed(said)]
    told.append(f"the verdict changed {many(document['flips'], 'time')}")
    told += [
        f"repeated fault: {one_line(one['device'], 80)}, {_times(one)}"
        for one in document["repeat_offenders"]
    ]
    return told


def _times(one: dict[str, Any]) -> str:
    return f"in {one['times']} of the last {one['runs']} runs"
