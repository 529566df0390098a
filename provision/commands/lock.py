"""gpuprov lock: record the exact packages of good nodes, which plan, up and drift then require."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from provision.commands import fleet_options
from provision.errors import ExitCode, GpuprovError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.desired.lockfile import Group, Lock
    from provision.drift.assess import Assessment
    from provision.drift.lock_sources import Found

EPILOG = """\
exit codes: 0 when the file was written; 1 when a node cannot be a source, or nodes of one kind disagree.
No node is changed. An existing lock file is ignored and replaced.

examples:
  gpuprov lock --nodes gpu-01,gpu-02
  gpuprov lock --nodes rack1 --majority
  gpuprov lock inventory.yml --file locks/2026-03.yml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser, lock=False, last_used=False, gpu_only=True)
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="file to write (default: gpuprov.lock.yml beside the inventory, where other commands find it)",
    )
    parser.add_argument(
        "--majority",
        action="store_true",
        help="where nodes of one kind disagree, take the package set of the majority",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="also read nodes that differ from their declared state; skip unreachable ones",
    )


def run(options: argparse.Namespace) -> ExitCode:
    from provision.desired import lockfile
    from provision.drift import lock_sources

    seen = _look(options)
    unfit = lock_sources.unfit(seen)
    if unfit and not options.force:
        raise _no_sources(unfit)
    sources = [node for node in seen.described if node in seen.expected]
    if not sources:
        raise GpuprovError("no node could be read", "gpuprov plan shows the reason for each node")
    result = lock_sources.groups(seen, sources, majority=options.majority)
    lock = _lock(seen, sources, result.groups)
    target = Path(options.file).expanduser() if options.file else lockfile.beside(seen.fleet.source)
    _write(target, lockfile.render(lock))
    lockfile.read(target)  # an unreadable file must be noticed now, not in the next run
    loose = _loose(seen, sources)
    _say(options, lock, target, result, unfit, loose)
    if not options.json and seen.fleet.others and len(loose) < len(sources):
        sys.stdout.write(
            "plan and up refuse nodes of any other operating system, architecture or GPU from now on: to "
            "cover them, run gpuprov lock again with a good node of each kind among --nodes\n"
        )
    return ExitCode.OK


def _loose(seen: Assessment, sources: Sequence[str]) -> list[str]:
    """Return the nodes that no lock applies to, as their gpuprov_roles lacks the role for it."""
    from provision.desired import lockfile
    from provision.desired.role import roles_of

    return [
        name
        for name in sources
        if not any(role.name == lockfile.ROLE for role in roles_of(seen.declared[name], seen.described[name]))
    ]


def _look(options: argparse.Namespace) -> Assessment:
    import functools

    from provision.drift import assess, lock_sources
    from provision.remote.reach import observe

    fleet, overrides = fleet_options.load(options)
    fleet_options.say_what(fleet)
    ask = functools.partial(observe.observe, vault_password_files=fleet.vault_password_files)
    with fleet_options.Drawn() as draw:
        return assess.with_progress(
            "lock",
            fleet,
            overrides,
            draw,
            timeout=options.timeout,
            connections=options.connections,
            observe=lock_sources.asking_also(ask, fleet, overrides),
        )


def _no_sources(unfit: dict[str, str]) -> GpuprovError:
    from provision.drift import drift_text
    from provision.node_names import fold

    alike = drift_text.grouped({node: why.replace(node, "the node") for node, why in unfit.items()})
    lines = [f"{fold(nodes)}: {why}" for why, nodes in alike]
    return GpuprovError(
        "these nodes cannot be the source of a lock file:\n  " + "\n  ".join(lines),
        "run gpuprov up first, choose other nodes with --nodes, or use them as they are with --force",
    )


def _lock(seen: Assessment, sources: list[str], groups: tuple[Group, ...]) -> Lock:
    from provision import __version__
    from provision.desired.lockfile import Lock
    from provision.node_names import fold
    from provision.text import now

    origin = {"inventory": seen.fleet.source.name, "nodes": fold(sources), "gpuprov": __version__}
    return Lock(now("seconds"), origin, groups)


def _write(target: Path, text: str) -> None:
    """Write the file atomically, so that an interrupted run leaves the old one intact."""
    from provision import atomic_file

    try:
        atomic_file.write(target, text, private=False)
    except OSError as trouble:
        raise UsageError(
            f"{target}: cannot be written: {trouble.strerror}", "choose another one with --file"
        ) from None


def _say(
    options: argparse.Namespace,
    lock: Lock,
    target: Path,
    found: Found,
    unfit: dict[str, str],
    loose: Sequence[str],
) -> None:
    import json
    from dataclasses import asdict

    from provision.drift import drift_text
    from provision.node_names import fold
    from provision.text import many

    if options.json:
        groups = [asdict(group) for group in lock.groups]
        document = {
            "format": 1,
            "file": str(target),
            "groups": groups,
            "overruled": list(found.overruled),
            "forced": unfit,
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    lines = []
    for group in lock.groups:
        count = many(len(group.packages), "package")
        lines.append(f"{group.os} {group.arch}, {', '.join(group.skus)}: {count}, taken from {group.nodes}")
    if found.overruled:
        lines.append(f"{fold(found.overruled)}: differ from the majority of their kind, not used")
    if unfit:
        lines.append(f"{fold(unfit)}: used though drifted, or skipped because unreachable (--force)")
    if found.strange:
        lines.append(
            f"also locked, though another version of it is declared: {', '.join(found.strange)}; if a stack "
            "that was tried has left it, remove it from the nodes and run gpuprov lock again"
        )
    lines += [
        f"written to {target}",
        "until gpuprov up has pinned these versions, gpuprov drift reports every node of these kinds, also "
        "nodes that have them; gpuprov up installs them where they differ",
    ]
    if loose:
        lines.append(
            f"{fold(loose)}: not held to it, since gpuprov_roles there leaves out package_lock: add it"
        )
    sys.stdout.write(drift_text.safe(lines))
