"""gpuprov init: write a commented starter inventory."""

from __future__ import annotations

import argparse
import sys

from provision.errors import ExitCode, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", nargs="?", default="inventory.yml", metavar="FILE", help="default: inventory.yml"
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="a node to put in (repeatable; default: examples)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file if there is one")


def run(options: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from provision import starter

    file = Path(options.file)
    text = starter.inventory(options.host)
    try:
        with file.open("w" if options.force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(
            f"{file} exists already", "choose another name, or --force to overwrite it"
        ) from None
    except OSError as trouble:
        raise UsageError(f"{file} cannot be written: {trouble.strerror}", "choose another place") from None
    sys.stdout.write(f"wrote {file}: edit it, then run gpuprov plan {file}\n")
    return ExitCode.OK
