"""gpuprov init: write a commented starter inventory."""

from __future__ import annotations

import argparse
import sys

from provision.errors import ExitCode, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        default="inventory.yml",
        metavar="FILE",
        help="file to write (default: inventory.yml)",
    )
    parser.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="add this node (repeatable; default: example nodes)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run(options: argparse.Namespace) -> ExitCode:
    from pathlib import Path

    from provision.desired import inventory

    file = Path(options.file)
    text = inventory.starter(options.host)
    try:
        with file.open("w" if options.force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise UsageError(
            f"{file} exists already", "choose another name, or overwrite it with --force"
        ) from None
    except OSError as trouble:
        raise UsageError(f"{file} cannot be written: {trouble.strerror}", "choose another place") from None
    sys.stdout.write(f"wrote {file}: edit it, then run gpuprov plan {file}\n")
    return ExitCode.OK
