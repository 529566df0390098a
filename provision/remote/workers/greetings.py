"""What workers said when they were greeted, remembered for the commands of the next hour.

A greeting takes three seconds: Receptor asks for the state of a unit once a second, and fetches what it
printed once a second (pkg/workceptor/remote_work.go). Nothing breaks when what is remembered is wrong: a
worker that has booted or was changed since then refuses its unit (`worker_entry.main`), and is greeted
again.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any

from provision import atomic_file, foreign_json
from provision.remote.workers import register, worker_stream

KEPT = 3600.0  # seconds
_LIMIT = 4 * 1024 * 1024  # bytes of the file: some 200 for each worker
_writing = threading.Lock()  # workers are greeted at the same time


def recalled(*worker: str) -> str | None:
    """The public key of a worker that was as this gpuprov is. `worker`: all that tells it from others."""
    known = _read().get(_name(worker))
    return str(known["key"]) if known is not None and known["versions"] == worker_stream.digest() else None


def remember(key: str, *worker: str) -> None:
    """Its public key; what cannot be written is asked again."""
    said = {"key": key, "versions": worker_stream.digest(), "until": time.time() + KEPT}
    with _writing:
        _write({**_read(), _name(worker): said})


def forget(*worker: str) -> None:
    """It was lost: the next command greets it."""
    with _writing:
        known = _read()
        if known.pop(_name(worker), None) is not None:
            _write(known)


def _write(known: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_file.write(_file(), json.dumps(known) + "\n", sync=False)


def _file() -> Path:
    return register.state_folder() / "greetings.json"


def _name(worker: tuple[str, ...]) -> str:
    return json.dumps(worker)


def _read() -> dict[str, Any]:
    """All that is not too old; nothing where the file is not one of ours."""
    try:
        with _file().open("rb") as file:
            known = foreign_json.read(file.read(_LIMIT))
        now = time.time()
        return {
            name: said
            for name, said in known.items()
            if isinstance(said["key"], str)
            and isinstance(said["versions"], str)
            and now < said["until"] <= now + KEPT
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
