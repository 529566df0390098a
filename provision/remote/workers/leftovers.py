"""What crashed controllers left in a mesh: found in the register, and removed."""

from __future__ import annotations

from pathlib import Path

from provision.remote.workers import register, units
from provision.remote.workers.control import Control, ControlError

_swept: set[Path] = set()


def sweep() -> None:
    """Once in a process: end and remove the units of processes that are gone and had no run folder: nobody
    will ask for them. What cannot be removed now stays for the next time."""
    folder = register.state_folder() / register.FOLDER
    if folder in _swept:
        return
    _swept.add(folder)
    for record, alive in register.records(folder):
        if not alive:
            remove(folder, record)
    register.clear(folder)


def remove(folder: Path, record: register.Record) -> str:
    """End and remove one unit, and forget it. Why that could not be done; empty when it was."""
    try:
        units.removed(Control(record.socket), record)
    except ControlError as error:
        return error.what
    register.forget(folder, record)
    return ""
