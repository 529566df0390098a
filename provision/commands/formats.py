"""The option `--format A,B`: names of formats, optionally with the file that each is written to."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from provision.errors import UsageError


class Names:
    """Argparse type of comma-separated known names; `none`: that word means no format."""

    def __init__(self, known: Sequence[str], *, none: bool = False) -> None:
        self.known = known
        self._none = none

    def __call__(self, text: str) -> list[str]:
        names = [name.strip() for name in text.split(",") if name.strip()]
        if self._none and names == ["none"]:
            return []
        odd = [name for name in names if name not in self.known]
        if odd or not names:
            from provision.nearest import did_you_mean

            near = did_you_mean(odd[0], self.known) if odd else ""
            choices = f"choose among {','.join(self.known)}{', or none' * self._none}"
            raise argparse.ArgumentTypeError(f"{choices}\n  → {near}" if near else choices)
        return names


class Files:
    """Argparse type of comma-separated NAME=FILE; the file defaults to "-", standard output."""

    def __init__(self, known: Sequence[str]) -> None:
        self.known = known

    def __call__(self, text: str) -> list[tuple[str, str]]:
        pairs = [one.strip().partition("=") for one in text.split(",") if one.strip()]
        Names(self.known)(",".join(name for name, _, _ in pairs))
        return [(name, file or "-") for name, _, file in pairs]


def outputs(chosen: Sequence[tuple[str, str]], as_json: bool) -> list[tuple[str, str]]:
    """Return (format, file) pairs, with text on standard output if nothing else goes there.
    Raises UsageError, before any node is observed."""
    targets = [*chosen, *([("json", "-")] if as_json else [])]
    if "-" not in [file for _, file in targets]:
        targets.append(("text", "-"))
    if [file for _, file in targets].count("-") > 1:
        raise UsageError(
            "two formats would go to standard output", "give all but one of them a file: --format NAME=FILE"
        )
    for _, file in targets:
        path = Path(file)
        if file != "-" and (path.is_dir() or not path.absolute().parent.is_dir()):
            why = "is a folder" if path.is_dir() else "is in a folder that does not exist"
            raise UsageError(f"{file}: cannot be written: it {why}", "choose another file")
    return targets


def write(file: str, text: str) -> None:
    """Write a file atomically for periodic readers (a node exporter), unless it is a link, pipe or device.
    Raises UsageError if it cannot be written."""
    from provision import atomic_file

    path = Path(file)
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK):
            path.write_text(text, encoding="utf-8")
        else:
            atomic_file.write(path, text, private=False)
    except OSError as trouble:
        raise UsageError(f"{file}: cannot be written: {trouble.strerror}", "choose another file") from None
