"""Cache of workers' answers to a greeting, kept for commands of the next hour.

A greeting takes three seconds, because Receptor polls the state of a unit once a second, and its output once
a second (pkg/workceptor/remote_work.go). A stale entry is harmless: a worker that was rebooted or changed
since rejects its unit (`worker_entry.main`), and is greeted again.
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
_LIMIT = 4 * 1024 * 1024  # limit of the file in bytes; each worker takes about 200
_writing = threading.Lock()  # workers are greeted concurrently


def recalled(*worker: str) -> str | None:
    """Return the cached public key of a worker with this gpuprov's version; `worker` identifies it."""
    entry = _read().get(_name(worker))
    return str(entry["key"]) if entry is not None and entry["versions"] == worker_stream.digest() else None


def remember(key: str, *worker: str) -> None:
    """Cache a worker's public key; a failed write only costs another greeting."""
    entry = {"key": key, "versions": worker_stream.digest(), "until": time.time() + KEPT}
    with _writing:
        _write({**_read(), _name(worker): entry})


def forget(*worker: str) -> None:
    """Forget a lost worker, so that the next command greets it."""
    with _writing:
        entries = _read()
        if entries.pop(_name(worker), None) is not None:
            _write(entries)


def _write(known: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        _file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_file.write(_file(), json.dumps(known) + "\n", sync=False)


def _file() -> Path:
    return register.state_folder() / "greetings.json"


def _name(worker: tuple[str, ...]) -> str:
    return json.dumps(worker)


def _read() -> dict[str, Any]:
    """Return the entries that have not expired; empty if the file is malformed."""
    try:
        with _file().open("rb") as file:
            entries = foreign_json.read(file.read(_LIMIT))
        now = time.time()
        return {
            name: entry
            for name, entry in entries.items()
            if isinstance(entry["key"], str)
            and isinstance(entry["versions"], str)
            and now < entry["until"] <= now + KEPT
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
