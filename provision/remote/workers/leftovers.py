"""Removal of units that crashed controllers left in a mesh, according to the register."""

from __future__ import annotations

from pathlib import Path

from provision.remote.workers import register, units
from provision.remote.workers.control import Control, ControlError

_swept: set[Path] = set()


def sweep() -> None:
    """End and remove, once per process, the units of dead processes that had no run folder.
    Nothing else would collect them. A unit that cannot be removed now is left for the next time."""
    folder = register.state_folder() / register.FOLDER
    if folder in _swept:
        return
    _swept.add(folder)
    for record, alive in register.records(folder):
        if not alive:
            remove(folder, record)
    register.clear(folder)


def remove(folder: Path, record: register.Record) -> str:
    """End, remove and unregister one unit; return the error, or "" on success."""
    try:
        units.removed(Control(record.socket), record)
    except ControlError as error:
        return error.what
    register.forget(folder, record)
    return ""
