"""The options of `plan` and `up` that divide a fleet into waves."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from provision.drift.assess import Assessment
    from provision.up.waves import Rollout, Share


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wave",
        "--wave-size",
        dest="wave",
        type=some_nodes,
        metavar="N|P%",
        help="wave size: a number of nodes or a percentage (default: all nodes up to 20, otherwise 10 %%)",
    )
    parser.add_argument(
        "--no-canary",
        action="store_true",
        help="do not start with a canary wave (one node of each SKU and operating system)",
    )


def share(text: str) -> Share:
    """A number of nodes or a percentage of them, for argparse."""
    from provision.up import waves

    try:
        return waves.share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def some_nodes(text: str) -> Share:
    """The same, but not none."""
    found = share(text)
    if not found.number:
        raise argparse.ArgumentTypeError("must be 1 or more, or a percentage above 0%")
    return found


def rollout(options: argparse.Namespace, seen: Assessment) -> Rollout:
    """How the fleet is divided, from the command line and the inventory. Raises StackError."""
    from provision.up import waves

    return waves.rollout(seen.declared, seen.described, size=options.wave, canary=not options.no_canary)
