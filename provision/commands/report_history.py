"""gpuprov report history: summarise the verdicts of all runs."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Any

from provision.errors import ExitCode, RunFolderError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from provision.runs.node_history import NodeRun

_SHOWN = 20  # entries per list; --json has all


def run(options: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from provision.runs import node_history
    from provision.runs.store import runs_home

    home = Path(options.runs) if options.runs else runs_home()
    nodes = node_history.node_runs(home)
    document = _of_node(nodes, options.node, home) if options.node else _of_all(nodes, home)
    if options.json:
        import json

        sys.stdout.write(json.dumps({"format": 1, **document}, indent=1) + "\n")
    else:
        lines = _node_lines(document) if options.node else _lines(document)
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    return ExitCode.OK


def _of_node(nodes: Mapping[str, Sequence[NodeRun]], node: str, home: Path) -> dict[str, Any]:
    from provision.nearest import did_you_mean
    from provision.runs import node_history

    if node not in nodes:
        meant = did_you_mean(node, nodes)
        raise RunFolderError(
            f"{node}: never validated: no run in {home} has a verdict for it",
            f"{f'{meant} otherwise ' if meant else ''}run: gpuprov validate --nodes {shlex.quote(node)}",
        )
    return {
        "node": node,
        "runs": [_record(one) for one in nodes[node]],
        "flips": node_history.flips(nodes[node]),
        "repeat_offenders": [vars(one) for one in node_history.repeats(node, nodes[node])],
    }


def _of_all(nodes: Mapping[str, Sequence[NodeRun]], home: Path) -> dict[str, Any]:
    from provision.runs import node_history

    if not nodes:
        raise RunFolderError(
            f"never validated: no run in {home} has a verdict for any node",
            "run: gpuprov validate --nodes all",
        )
    flips = {node: times for node, runs in nodes.items() if (times := node_history.flips(runs))}
    repeats = [one for node, runs in nodes.items() for one in node_history.repeats(node, runs)]
    return {
        "nodes": {node: _record(runs[-1]) for node, runs in sorted(nodes.items())},
        "flips": dict(sorted(flips.items(), key=lambda one: (-one[1], one[0]))),
        "repeat_offenders": [
            vars(one) for one in sorted(repeats, key=lambda one: (-one.times, one.node, one.device))
        ],
    }


def _record(run: NodeRun) -> dict[str, str]:
    return {"run": run.run, "started": run.started, "verdict": run.verdict}


def _lines(document: dict[str, Any]) -> list[str]:
    """Return each list, worst first, with the number of omitted entries."""
    from provision.node_names import fold
    from provision.text import many, one_line

    by_verdict: dict[str, list[str]] = {}
    for node, past in document["nodes"].items():
        by_verdict.setdefault(past["verdict"], []).append(one_line(node, 80))
    shown = [f"last verdict of {many(len(document['nodes']), 'node')}:"]
    for verdict in ("fail", "error", "warn", "skip", "pass"):
        if names := by_verdict.get(verdict):
            shown.append(f"  {verdict:<5} {len(names):>6,}  {fold(names, 200)}")
    flips = [f"{one_line(node, 80)}: {many(times, 'time')}" for node, times in document["flips"].items()]
    repeats = [f"{one_line(one['node'], 80)} {_repeat(one)}" for one in document["repeat_offenders"]]
    for title, lines in (("verdict changed from run to run", flips), ("repeated faults", repeats)):
        shown += [f"{title}:", *(f"  {line}" for line in lines[:_SHOWN] or ["none"])]
        if len(lines) > _SHOWN:
            shown.append(f"  … and {len(lines) - _SHOWN:,} more; --json has all")
    return shown


def _node_lines(document: dict[str, Any]) -> list[str]:
    """Return the runs of a node, newest first."""
    from provision.text import many, moment, one_line

    runs = [f"{one['verdict']:<5}  {moment(one['started'])}  {one['run']}" for one in document["runs"]]
    shown = [f"{one_line(document['node'], 80)}: {many(len(runs), 'run')}, newest first", *reversed(runs)]
    shown.append(f"the verdict changed {many(document['flips'], 'time')}")
    shown += [f"repeated fault: {_repeat(one)}" for one in document["repeat_offenders"]]
    return shown


def _repeat(one: dict[str, Any]) -> str:
    from provision.text import one_line

    what = f"{one_line(one['device'], 80)} {one_line(one['fault'], 80)}"
    return f"{what}: came {one['times']} times in the last {one['runs']} runs"
