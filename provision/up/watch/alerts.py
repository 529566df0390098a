"""Alerts in Alertmanager, each renewed while its condition lasts and ended afterwards.

Alertmanager drops an alert at its `endsAt` unless it is renewed (POST /api/v2/alerts of its API v2;
openapi.yaml of its sources), so those of a stopped watch end. Each open alert has a file, for the next
watch."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from provision import atomic_file
from provision.text import iso
from provision.up.watch.incidents import FORMAT, Incident
from provision.up.watch.steps import Message

MINUTES = 15  # lifetime of an alert without renewal
RENEW = 300.0  # seconds between two renewals
AGAIN = 15.0  # seconds after a failed one

Alert = Mapping[str, Any]


def alert(message: Message, ends: float) -> Alert:
    """Convert a message to an alert that ends at `ends` (seconds since 1970) unless it is renewed."""
    labels = {
        "alertname": "GpuprovWatch",
        "kind": message.kind,
        "node": message.node,
        "severity": "info" if message.kind == "replaced" else "critical",
        "device": message.device if message.node else "",
        "serial": message.serial,
    }
    annotations = {"summary": message.text, "action": message.action, "next": message.next, "id": message.id}
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": iso(message.at),
        "endsAt": iso(max(message.at, ends)),
    }


def is_over(
    message: Message,
    incidents: Mapping[str, Incident],
    held: Collection[str],
    validated: Mapping[str, float],
) -> bool:
    """Return whether the condition of a message is over; `validated`: spare → time of its last pass.

    `held`: ids of messages about lasting conditions: a limit that keeps nodes in service, a spare without its
    pool."""
    if not message.incident:
        passed = validated.get(message.node, 0.0) > message.at
        return passed if message.kind == "spare-failed" else message.id not in held
    incident = incidents.get(message.incident)
    if incident is None or not incident.holds_node:
        return True
    if message.kind == "not-drained":
        return incident.drained is not None
    return message.kind == "no-spare" and incident.placed is not None


class Alerts:
    """The open alerts, stored in a folder. Thread-safe.

    `post`: sends them to Alertmanager, raises OSError or ValueError; `say`: writes a log line."""

    def __init__(
        self, folder: Path, post: Callable[[Sequence[Alert]], None], say: Callable[[str], None]
    ) -> None:
        self._folder, self._post, self._say = folder, post, say
        self._guard = threading.Lock()
        self._open: dict[str, Message] = {}
        self._over: dict[str, Message] = {}
        self._due, self._failed = 0.0, False
        for path in sorted(folder.glob("[!.]*.json")):
            try:
                message = Message(**json.loads(path.read_text("ascii"))["message"])
            except (OSError, ValueError, KeyError, TypeError):
                with contextlib.suppress(OSError):
                    path.replace(path.with_suffix(".unreadable"))
                say(f"{path.name} in {folder} is not an alert, and was set aside")
            else:
                self._open[message.id] = message

    def open(self, message: Message) -> None:
        """Send this alert now, and renew it. One that cannot be stored on disk is lost on restart."""
        with self._guard:
            if message.id in self._open:
                return
            row = {"format": FORMAT, "message": asdict(message)}
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                atomic_file.write(self._path(message), json.dumps(row) + "\n")
            except OSError as error:
                self._say(
                    f"{self._folder} cannot be written: {error.strerror}; the alert is sent all the same"
                )
            self._over.pop(message.id, None)
            self._open[message.id] = message
            self._due = 0.0

    def settle(self, over: Callable[[Message], bool]) -> None:
        """End the alerts that are over."""
        with self._guard:
            for message in [one for one in self._open.values() if over(one)]:
                self._over[message.id] = self._open.pop(message.id)
                self._due = 0.0

    def round(self) -> float:
        """Send due alerts; return the seconds until the next is due."""
        now = time.monotonic()
        with self._guard:
            if now < self._due:
                return self._due - now
            still, over = list(self._open.values()), list(self._over.values())
            self._due = now + RENEW  # `open` sets it to 0 for a new alert
        rows = [alert(one, time.time() + MINUTES * 60) for one in still]
        labels = [row["labels"] for row in rows]
        # The same alert may have been opened again, with another number of nodes for instance.
        rows += [row for row in (alert(one, time.time()) for one in over) if row["labels"] not in labels]
        try:
            if rows:
                self._post(rows)
        except (OSError, ValueError) as error:
            if not self._failed:
                self._say(f"gpuprov_watch_alertmanager was not told: {error}; trying again")
            self._failed = True
            with self._guard:
                self._due = now + AGAIN
            return AGAIN
        self._failed = False
        with self._guard:
            for message in over:
                if self._over.pop(message.id, None) is not None:
                    with contextlib.suppress(OSError):
                        self._path(message).unlink()
            return max(0.1, self._due - now)

    def _path(self, message: Message) -> Path:
        return self._folder / f"{message.id}.json"
