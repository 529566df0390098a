"""Delivery of messages to a program of the site, to webhooks, and to an Alertmanager (alerts.py).

A message is on disk before it is sent, and stays there until every receiver has it, so that neither a restart
nor a receiver that is down loses one. After a crash it may be delivered twice, with the same `id`. Addresses
may hold a token, so they are never stored: on disk a receiver is its position in the inventory's list.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from provision import __version__, atomic_file
from provision.errors import InventoryError
from provision.fleet import Fleet
from provision.text import iso, one_line
from provision.up.hooks import PATH, changeable, end_of, placed, refuse_unusable
from provision.up.watch.alerts import Alert, Alerts
from provision.up.watch.steps import Message

FORMAT = 1
SECONDS = 10.0  # timeout for a receiver to accept a message over HTTP
PROGRAM_SECONDS = 60.0  # timeout of the site's program
PAUSES = (2.0, 5.0, 15.0, 60.0, 300.0)  # between tries; the last value repeats
GIVEN_UP = 24 * 3600.0  # age at which a message is no longer useful


@dataclass(frozen=True)
class Receiver:
    """A receiver of messages. `name`: for the log, without a secret; `send` raises OSError or ValueError."""

    name: str
    send: Callable[[Message], None]


def receivers(fleet: Fleet, overrides: Mapping[str, Any]) -> list[Receiver]:
    """Return the inventory's receivers, the same for all nodes. Raises InventoryError if one is unusable."""
    found: list[Receiver] = []
    if program := _one("gpuprov_watch_hook", fleet, overrides):
        path = placed(str(program), fleet.source)
        refuse_unusable(path, "gpuprov_watch_hook")
        found.append(Receiver("gpuprov_watch_hook", lambda message: _run(path, message)))
    for number, url in enumerate(_one("gpuprov_watch_webhooks", fleet, overrides) or (), 1):
        name = f"gpuprov_watch_webhooks, entry {number}"
        _check(name, url)
        found.append(Receiver(name, _webhook(url)))
    return found


def alertmanager(fleet: Fleet, overrides: Mapping[str, Any]) -> Callable[[Sequence[Alert]], None] | None:
    """Return a function that sends alerts to the inventory's Alertmanager, if any. Raises InventoryError."""
    url = _one("gpuprov_watch_alertmanager", fleet, overrides)
    if not url:
        return None
    _check("gpuprov_watch_alertmanager", url)
    place = url.rstrip("/") + "/api/v2/alerts"
    return lambda alerts: _post(place, alerts)


def _webhook(url: str) -> Callable[[Message], None]:
    return lambda message: _post(url, document(message))


def _one(name: str, fleet: Fleet, overrides: Mapping[str, Any]) -> Any:
    values = [overrides.get(name, node.variables.get(name)) for node in fleet.nodes.values()]
    if any(value != values[0] for value in values):
        raise InventoryError(f"{name} is not the same for all nodes", "set it once, for the group all")
    return values[0] if values else None


def _check(name: str, url: Any) -> None:
    split = urlsplit(url) if isinstance(url, str) else None
    if split is None or split.scheme not in ("http", "https") or not split.hostname:
        raise InventoryError(f"{name} is not an address", "write https://host/path")


def document(message: Message) -> dict[str, Any]:
    """Return the document for a program or a webhook."""
    return {"format": FORMAT, "gpuprov": __version__, **asdict(message), "at": iso(message.at)}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """HTTP handler that refuses redirects, so that a message for one host never reaches another."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(url: str, body: Any) -> None:
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked
        url,
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "User-Agent": f"gpuprov/{__version__}"},
    )
    opener = urllib.request.build_opener(
        _NoRedirect(), urllib.request.HTTPSHandler(context=ssl.create_default_context())
    )
    try:
        with opener.open(request, timeout=SECONDS) as answer:
            answer.read(1024)
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(f"it answered with status {error.code}") from None
    except urllib.error.URLError as error:
        raise OSError(one_line(str(error.reason), 200)) from None
    except http.client.HTTPException as error:
        raise OSError(f"it did not answer as HTTP: {type(error).__name__}") from None


def _run(program: Path, message: Message) -> None:
    """Run the site's program with kind and node as arguments and the message on standard input."""
    if what := changeable(program):
        raise OSError(f"{what[0]}: {what[1]}")
    with tempfile.TemporaryFile() as given:  # a file, because the program need not read it
        given.write(json.dumps(document(message)).encode() + b"\n")
        given.seek(0)
        process = subprocess.Popen(
            [str(program), message.kind, message.node],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": PATH, "LC_ALL": "C.UTF-8"},
            cwd=program.parent,
            start_new_session=True,
        )
        status, output = end_of(process, PROGRAM_SECONDS)
    if status is None:
        raise OSError(f"it did not end within {PROGRAM_SECONDS:g} s")
    if status:
        last = one_line(output.strip().rpartition("\n")[2], 200)
        raise OSError(f"it ended with status {status}: {last}")


class Teller(contextlib.AbstractContextManager["Teller"]):
    """Sender of the outbox and of `alerts`, in its own thread. `say`: writes a log line."""

    def __init__(
        self,
        outbox: Path,
        to: Sequence[Receiver],
        say: Callable[[str], None],
        alerts: Alerts | None = None,
    ) -> None:
        self._outbox, self._to, self._say, self._alerts = outbox, to, say, alerts
        self._wake, self._ended = threading.Event(), False
        self._told: set[str] = set()
        self._waits: dict[str, tuple[float, int]] = {}  # message → not before, tries
        self._kept: list[tuple[Message, list[int]]] = []  # without room on disk; receivers still missing
        self._thread = threading.Thread(target=self._loop, name="tell", daemon=True)

    def __enter__(self) -> Teller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._wake.set()
        self._thread.join(SECONDS)

    def tell(self, message: Message) -> None:
        """Put a message into the outbox, once, and open its alert; if writing fails, send from memory."""
        if self._alerts is not None:
            self._alerts.open(message)
            self._wake.set()
        if message.id in self._told:
            return
        self._told.add(message.id)
        self._say(f"{message.kind}: {message.text}")
        if not self._to:
            return
        row = {"format": FORMAT, "message": asdict(message), "left": list(range(len(self._to)))}
        try:
            atomic_file.write(self._outbox / f"{message.id}.json", json.dumps(row) + "\n")
        except OSError as error:
            self._say(f"{self._outbox} cannot be written: {error.strerror}; sending from memory")
            self._kept.append((message, list(range(len(self._to)))))
        self._wake.set()

    def settle(self, over: Callable[[Message], bool]) -> None:
        """End the alerts that are over."""
        if self._alerts is not None:
            self._alerts.settle(over)
            self._wake.set()

    def _loop(self) -> None:
        while not self._ended:
            self._wake.clear()
            try:
                pause = self._round()
                if self._alerts is not None and not self._ended:
                    pause = min(pause, self._alerts.round())
            except Exception as error:  # without this thread no message would be delivered
                pause = PAUSES[0]
                self._say(f"messages could not be sent: {type(error).__name__}: {error}; trying again")
            self._wake.wait(pause)

    def _round(self) -> float:
        """Send all due messages; return the seconds until the next may be due."""
        now, soonest = time.monotonic(), 3600.0
        for row in list(self._kept):
            row[1][:] = self._left(*row, news=False)
            if row[1]:
                soonest = PAUSES[0]
            else:
                self._kept.remove(row)
        for path in sorted(self._outbox.glob("[!.]*.json")):
            if self._ended:
                break
            due, tries = self._waits.get(path.name, (0.0, 0))
            if due <= now and not self._sent(path):
                pause = PAUSES[min(tries, len(PAUSES) - 1)]
                self._waits[path.name] = due, tries = time.monotonic() + pause, tries + 1
            if path.name in self._waits:
                soonest = min(soonest, max(0.1, due - time.monotonic()))
        return soonest

    def _left(self, message: Message, left: Sequence[int], news: bool) -> list[int]:
        """Send a message to these receivers; return the ones that did not accept it."""
        still = []
        for number in left:
            if number >= len(self._to):
                continue  # the inventory names fewer receivers now
            try:
                self._to[number].send(message)
            except (OSError, ValueError) as error:
                still.append(number)
                if news:
                    self._say(f"{self._to[number].name} was not told of {message.id}: {error}; trying again")
        return still

    def _sent(self, path: Path) -> bool:
        """Deliver a message; return whether all receivers have it now."""
        try:
            row = json.loads(path.read_text("ascii"))
            message, left = Message(**row["message"]), [int(number) for number in row["left"]]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            with contextlib.suppress(OSError):
                path.replace(path.with_suffix(".unreadable"))
            self._say(f"{path.name} in the outbox is not a message, and was set aside")
            return True
        still = self._left(message, left, news=path.name not in self._waits)
        with contextlib.suppress(OSError):
            if not still or time.time() - message.at > GIVEN_UP:
                path.unlink()
                self._waits.pop(path.name, None)
                return True
            if still != left:
                atomic_file.write(path, json.dumps({**row, "left": still}) + "\n")
        return False
