"""A document with a generated end, which is written into the document or printed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Build the argument parser of such a script; `about`: its docstring."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", metavar="FILE", type=Path, help="replace the tables in this document")
    return parser


def write(document: Path | None, begin: str, lines: Iterable[str]) -> None:
    """Write these lines after the marker `begin` of the document, or print them without a document."""
    text = "\n".join(lines) + "\n"
    if document:
        prose = document.read_text(encoding="utf-8").partition(begin)[0]
        document.write_text(f"{prose}{begin}\n{text}", encoding="utf-8")
    else:
        sys.stdout.write(text)
