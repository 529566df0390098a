"""gpuprov drift: compare the fleet with what was declared; made for CI."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from provision.commands import fleet_options
from provision.errors import ExitCode

if TYPE_CHECKING:
    from provision.assess import Assessment
    from provision.drift import Drift
    from provision.store import RunFolder

EPILOG = """\
exit codes: 4 when a node differs; else 5 when a node could not be looked at, is refused, or a fact could not
be read; else 0. Nothing is changed. One connection per node.

examples:
  gpuprov drift
  gpuprov drift --junit drift.xml
  gpuprov drift --json | jq '.drifts[] | [.node, .fact]'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser)
    parser.add_argument("--junit", metavar="FILE", help="also write a JUnit report for CI to FILE")


def run(options: argparse.Namespace) -> ExitCode:
    from provision import shown
    from provision.store import RunFolder

    folder = RunFolder.create("drift", shown.arguments(options))
    try:
        seen = fleet_options.assess(options, "drift")
    except BaseException as error:
        folder.finish(int(getattr(error, "exit_code", ExitCode.INTERRUPTED)))
        raise
    code = verdict(seen)
    _keep(folder, seen)
    if options.junit:
        _write_junit(options.junit, seen)
    if options.json:
        import json

        document = shown.without(_document(seen, code, str(folder.path)), seen.secrets)
        sys.stdout.write(json.dumps(document, indent=1, default=str) + "\n")
    else:
        sys.stdout.write(shown.safe([*_lines(seen), f"run folder {folder.path}"], seen.secrets))
    folder.finish(code)
    return code


def verdict(seen: Assessment) -> ExitCode:
    """Drift is worse than not knowing; neither is fine."""
    found = [drift for drifts in seen.drifts.values() for drift in drifts]
    if any(not drift.unknown for drift in found):
        return ExitCode.DRIFT
    return ExitCode.INCOMPLETE if found or seen.unreachable or seen.refused else ExitCode.OK


def _keep(folder: RunFolder, seen: Assessment) -> None:
    from provision import shown

    for name, observation in seen.observations.items():
        facts = {"facts": observation.facts, "problems": observation.problems, "error": observation.error}
        folder.append("facts", shown.without({"node": name, **facts}, seen.secrets))
    for drifts in seen.drifts.values():
        for drift in drifts:
            folder.append("drifts", shown.record(drift, seen.secrets))


def _document(seen: Assessment, code: ExitCode, folder: str) -> dict[str, Any]:
    from dataclasses import asdict

    from provision import shown

    return {
        "format": 1,
        "inventory": str(seen.fleet.source),
        "run_folder": folder,
        "exit_code": int(code),
        "nodes": len(seen.fleet.nodes),
        "as_declared": len(seen.as_declared),
        "expectations": seen.expectations,
        "drifts": [shown.record(drift) for drifts in seen.drifts.values() for drift in drifts],
        "unreachable": seen.unreachable,
        "refused": {name: [asdict(each) for each in why] for name, why in seen.refused.items()},
    }


def _lines(seen: Assessment) -> list[str]:
    from provision import shown
    from provision.node_names import fold

    alike: dict[tuple[str, ...], list[str]] = {}
    for name, drifts in seen.drifts.items():
        for drift in drifts:
            alike.setdefault(_likeness(drift), []).append(name)
    by_nodes: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for likeness, names in alike.items():
        by_nodes.setdefault(tuple(names), []).append(likeness)
    lines: list[str] = []
    for nodes, likenesses in by_nodes.items():
        lines.append(f"{fold(nodes)}  ({len(nodes)} node{'s' if len(nodes) != 1 else ''})")
        for role, fact, difference, why in likenesses:
            lines += [f"  {fact} {difference}", f"      {role}: {why}"]
        lines.append("")
    lines += shown.trouble(seen.refused, seen.unreachable)
    total = len(seen.fleet.nodes)
    lines.append(
        f"{len(seen.as_declared)} of {total} nodes as declared ({seen.expectations} expectations compared)"
    )
    return lines


def _likeness(drift: Drift) -> tuple[str, ...]:
    from provision import shown

    expectation = drift.expectation
    return expectation.role, expectation.fact, shown.difference(drift), expectation.why


def _write_junit(file: str, seen: Assessment) -> None:
    """One test suite with a case for each node: failure for drift, error for what could not be looked at."""
    from pathlib import Path

    from provision import junit_drift
    from provision.errors import UsageError

    try:
        Path(file).write_text(junit_drift.render(seen), encoding="utf-8")
    except OSError as trouble:
        raise UsageError(
            f"--junit {file}: cannot be written: {trouble.strerror}", "choose another place"
        ) from None
