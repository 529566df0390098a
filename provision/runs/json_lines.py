"""Files of JSON lines: appended a whole line at a time, read back line by line.

A kill -9 costs at most the line being written, and several processes may append to one file.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from provision.errors import RunFolderError


class Lines:
    """A file that records are appended to, for as long as it is open. It is made with the first record."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """A line for each, none of another process in between, handed to the kernel before it returns: a kill
        costs at most the one being written."""
        text = "".join(json.dumps(record, separators=(",", ":"), default=str) + "\n" for record in records)
        if not text:
            return
        left = text.encode()
        if self._file is None:
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            _drop_torn_tail(self._file)
            while left:
                left = left[os.write(self._file, left) :]
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def _drop_torn_tail(file: int) -> None:
    """Cut off a last line that a kill left unfinished, so that the next one does not become part of it."""
    end = os.fstat(file).st_size
    if end == 0 or os.pread(file, 1, end - 1) == b"\n":
        return
    position, keep = end, 0
    while position > 0:
        start = max(0, position - 65536)
        newline = os.pread(file, position - start, start).rfind(b"\n")
        if newline >= 0:
            keep = start + newline + 1
            break
        position = start
    os.ftruncate(file, keep)


def records(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each record of an open file with the byte it begins at; a last line cut by a kill is passed over.

    Raises RunFolderError for a line in the middle that is not JSON.
    """
    torn: int | None = None
    place = 0
    for number, line in enumerate(lines, 1):
        begin, place = place, place + len(line)
        if torn is not None:
            raise RunFolderError(f"{path}:{torn} is not JSON", "something else than gpuprov changed the file")
        try:
            record = json.loads(line.decode(errors="replace"))
        except (ValueError, RecursionError):
            torn = number  # the last line may be cut; one in the middle may not
            continue
        if isinstance(record, dict):
            yield begin, record
