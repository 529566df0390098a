"""Register of units: a file per unit, from before its start until nothing of it is left.

A run with a folder registers its units there (`units/`), other runs in the state folder, so that units of a
killed controller are found again by `up --resume`, by `gpuprov runs units`, or by the next run that uses a
mesh.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from provision import atomic_file, foreign_json, paths
from provision.errors import GpuprovError
from provision.remote.workers import sealed

FOLDER = "units"
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("label", "worker", "socket", "what", "unit"), str),
    **{"nodes": list, "begun": (int, float), "deadline": (int, float), "alone": bool},
}


@dataclass(frozen=True)
class Record:
    """One unit; `unit`: Receptor's id, empty until assigned; `begun`, `deadline`: seconds since 1970."""

    label: str
    worker: str
    socket: str
    what: str
    nodes: tuple[str, ...]
    begun: float
    deadline: float
    alone: bool = True  # no other worker can take over, so it continues while unreachable
    unit: str = ""


class Register:
    """The units of this process in one folder; a lock on a file there shows that the process is alive."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER
        self._process = os.urandom(6).hex()
        self._count = 0
        self._held: int | None = None
        self._lock = threading.Lock()

    def begin(
        self, worker: str, socket: str, what: str, nodes: Collection[str], seconds: float, *, alone: bool
    ) -> tuple[Record, bytes]:
        """Register a unit before its start and create the key for its answers. Raises GpuprovError."""
        with self._lock:
            self._count += 1
            label = f"{self._process}-{self._count}"
            now = time.time()
            record = Record(label, worker, socket, what, tuple(nodes), now, now + seconds, alone)
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                if self._held is None:
                    self._held = os.open(_lock_of(self.folder, label), os.O_RDWR | os.O_CREAT, 0o600)
                    fcntl.flock(self._held, fcntl.LOCK_EX)
                self._write(record)
            except OSError as error:
                raise GpuprovError(
                    f"{self.folder}: the unit cannot be noted: {error.strerror}",
                    "free space, or correct its mode",
                ) from None
        return record, sealed.keep(label, os.urandom(sealed.KEY_BYTES))

    def named(self, record: Record, unit: str) -> Record:
        """Record Receptor's id of a unit; failures are ignored, since the label also identifies the unit."""
        identified = replace(record, unit=unit)
        with contextlib.suppress(OSError):
            self._write(identified)
        return identified

    def gone(self, record: Record) -> None:
        """Unregister a unit of which nothing is left."""
        forget(self.folder, record)
        with self._lock, contextlib.suppress(OSError):
            if self._held is not None and not list(self.folder.glob(f"{self._process}-*.json")):
                _lock_of(self.folder, record.label).unlink()
                os.close(self._held)
                self._held = None
                self.folder.rmdir()

    def _write(self, record: Record) -> None:
        atomic_file.write(self.folder / f"{record.label}.json", json.dumps(asdict(record)) + "\n", sync=False)


def _lock_of(folder: Path, label: str) -> Path:
    return folder / f"{label.partition('-')[0]}.lock"


def forget(folder: Path, record: Record) -> None:
    """Remove a unit's file from `folder`, and its key."""
    sealed.forget(record.label)
    with contextlib.suppress(OSError):
        (folder / f"{record.label}.json").unlink()


def records(folder: Path) -> Iterator[tuple[Record, bool]]:
    """Yield each unit of a `units` folder and whether its process lives; skip malformed files."""
    for file in sorted(folder.glob("*-*.json")):
        with contextlib.suppress(OSError, ValueError):
            record = _record(foreign_json.read(file.read_text(encoding="utf-8")))
            if record is not None and f"{record.label}.json" == file.name:
                yield record, _lives(_lock_of(folder, record.label))


def clear(folder: Path) -> None:
    """Remove a `units` folder without any registered unit or live process."""
    for lock in folder.glob("*.lock"):
        if not _lives(lock) and not list(folder.glob(f"{lock.stem}-*.json")):
            with contextlib.suppress(OSError):
                lock.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _record(said: Any) -> Record | None:
    if not isinstance(said, dict) or not all(isinstance(said.get(key), kind) for key, kind in _KINDS.items()):
        return None
    if set(said) != set(_KINDS) or not all(isinstance(node, str) for node in said["nodes"]):
        return None
    return Record(**{**said, "nodes": tuple(said["nodes"])})


def _lives(lock: Path) -> bool:
    try:
        file = os.open(lock, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def state_folder() -> Path:
    """Return the folder that registers the units of runs without a run folder."""
    return paths.state_home()


_current: list[Register] = []


def current() -> Register:
    """Return this process's register: of the current run, or else of the state folder."""
    if not _current:
        _current.append(Register(state_folder()))
    return _current[-1]


@contextlib.contextmanager
def use(folder: Path) -> Iterator[None]:
    """Register units in this run's folder within the `with` block."""
    current()
    _current.append(Register(folder))
    try:
        yield
    finally:
        _current.pop()
