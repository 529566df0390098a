"""gpuprov lock: write down the exact package set of good nodes, for plan, up and drift to hold to."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from provision.commands import fleet_options
from provision.errors import ExitCode, GpuprovError, UsageError

if TYPE_CHECKING:
    from provision.assess import Assessment
    from provision.lockfile import Group, Lock

EPILOG = """\
exit codes: 0 when the file was written; 1 when a node cannot be a source, or nodes of a kind disagree.
Nothing on the nodes is changed. An existing lock file is replaced, and does not count.

examples:
  gpuprov lock --nodes gpu-01,gpu-02
  gpuprov lock --nodes rack1 --majority
  gpuprov lock inventory.yml -o locks/2026-03.yml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    fleet_options.add_arguments(parser, lock=False)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write it (default: gpuprov.lock.yml beside the inventory, where it is found)",
    )
    parser.add_argument(
        "--majority",
        action="store_true",
        help="where nodes of a kind disagree, take the set most of them have",
    )
    parser.add_argument(
        "--force", action="store_true", help="also read nodes that are not as declared; leave out silent ones"
    )


def run(options: argparse.Namespace) -> ExitCode:
    from provision import lock_sources, lockfile

    seen = _look(options)
    unfit = lock_sources.unfit(seen)
    if unfit and not options.force:
        raise _no_sources(unfit)
    sources = [node for node in seen.described if node in seen.expected]
    if not sources:
        raise GpuprovError("no node could be read", "gpuprov plan says what is wrong with them")
    found = lock_sources.groups(seen, sources, majority=options.majority)
    lock = _lock(seen, sources, found.groups)
    target = Path(options.output).expanduser() if options.output else lockfile.beside(seen.fleet.source)
    _write(target, lockfile.render(lock))
    lockfile.read(target)  # what we cannot read back must not wait for the next run to be noticed
    _say(options, lock, target, found.overruled, unfit)
    return ExitCode.OK


def _look(options: argparse.Namespace) -> Assessment:
    import functools

    from provision import assess, lock_sources, observe
    from provision.terminal import Progress

    fleet, overrides = fleet_options.load(options)
    ask = functools.partial(observe.observe, vault_password_files=fleet.vault_password_files)
    with Progress("lock", total=len(fleet.nodes)) as progress:
        return assess.assess(
            fleet,
            overrides,
            timeout=options.timeout,
            connections=options.connections,
            on_done=lambda said: progress.done(f"{said.node}: {said.error}" if said.error else ""),
            observe=lock_sources.asking_also(ask, fleet, overrides),
        )


def _no_sources(unfit: dict[str, str]) -> GpuprovError:
    from provision import shown
    from provision.node_names import fold

    alike = shown.grouped({node: why.replace(node, "it") for node, why in unfit.items()})
    lines = [f"{fold(nodes)}: {why}" for why, nodes in alike]
    return GpuprovError(
        "not good enough to be a source:\n  " + "\n  ".join(lines),
        "gpuprov up first, choose others with --nodes, or --force to take them as they are",
    )


def _lock(seen: Assessment, sources: list[str], groups: tuple[Group, ...]) -> Lock:
    from provision import __version__
    from provision.lockfile import Lock
    from provision.node_names import fold
    from provision.wording import now

    origin = {"inventory": seen.fleet.source.name, "nodes": fold(sources), "gpuprov": __version__}
    return Lock(now("seconds"), origin, groups)


def _write(target: Path, text: str) -> None:
    """An interrupted run leaves the old file whole."""
    from provision import atomic_file

    try:
        atomic_file.write(target, text, private=False)
    except OSError as trouble:
        raise UsageError(
            f"{target}: cannot be written: {trouble.strerror}", "choose another place: -o"
        ) from None


def _say(
    options: argparse.Namespace, lock: Lock, target: Path, overruled: tuple[str, ...], unfit: dict[str, str]
) -> None:
    import json
    from dataclasses import asdict

    from provision import shown
    from provision.node_names import fold
    from provision.wording import many

    if options.json:
        groups = [asdict(group) for group in lock.groups]
        document = {
            "format": 1,
            "file": str(target),
            "groups": groups,
            "overruled": list(overruled),
            "forced": unfit,
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    lines = []
    for group in lock.groups:
        count = many(len(group.packages), "package")
        lines.append(f"{group.os} {group.arch}, {', '.join(group.skus)}: {count} as on {group.nodes}")
    if overruled:
        lines.append(f"{fold(overruled)}: overruled by the majority of their kind")
    if unfit:
        lines.append(f"{fold(unfit)}: taken though not as declared, or left out because silent (--force)")
    lines += [
        f"written to {target}",
        "gpuprov drift now names every package that moves; gpuprov up moves it back",
    ]
    sys.stdout.write(shown.safe(lines))
