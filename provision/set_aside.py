"""Texts set aside in a file until they are wanted again: a fleet measures more than fits in memory."""

from __future__ import annotations

import contextlib
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path

from provision.errors import RunFolderError


def place(folder: Path) -> Path:
    """Where files that are removed again may lie: in this folder, else where the system has them.

    The folder first, since it has room for the report that they become, which a /tmp in memory has not.
    """
    return folder if os.access(folder, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Say of a file that cannot be written where it was to be. Raises RunFolderError."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"cannot store measurements in {folder}: {error.strerror or error}",
            "make room there: all of a run's measurements are kept twice while they are judged",
        ) from error


class SetAside:
    """Texts by number, in a file without a name, which is gone with the process, however that ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = place(folder)
        with explained(self._folder):
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._ends = array("q", [0])
        self._flushed = True

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, text: str) -> int:
        """Set a text aside; the number it is found by. Raises RunFolderError."""
        with explained(self._folder):
            length = self._file.write(text.encode())
        self._flushed = False
        self._ends.append(self._ends[-1] + length)
        return len(self) - 1

    def text(self, number: int) -> str:
        """The text of this number. Raises RunFolderError."""
        begin, end = self._ends[number], self._ends[number + 1]
        with explained(self._folder):
            if not self._flushed:
                self._file.flush()
                self._flushed = True
            return os.pread(self._file.fileno(), end - begin, begin).decode()
