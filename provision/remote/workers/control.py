"""Client of Receptor's control socket: lines of text over a Unix socket, as in Receptor 1.5.5.

The protocol is from pkg/controlsvc/controlsvc.go and pkg/workceptor/controlsvc.go of
github.com/ansible/receptor, compared with the answers of Debian 13's 1.5.5. Receptor's Python client
(receptorctl) is not used: none of its reads has a timeout, not even the greeting, so a hanging Receptor would
block gpuprov; and it reads lines of unlimited length.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from provision import foreign_json
from provision.errors import GpuprovError
from provision.remote.protocol import one_line

SOCKET = "/run/receptor/receptor.sock"
ANSWER = 15.0  # seconds for an answer that Receptor has ready
START = 120.0  # seconds for Receptor to hand a unit to a worker, or to announce retries
_LINE = 32 * 1024 * 1024  # bytes of an answer: `work list` and `status` in a mesh of thousands
_CHUNK = 1 << 16
_GREETING = re.compile(r"Receptor Control, node (\S+)")
_CREATED = re.compile(r"Work unit created with ID (\w{1,128})\. Send stdin data and EOF\.")
_STREAMING = re.compile(r"Streaming results for work unit \w+")
_UNKNOWN = "unknown work unit"
COMPLETE = ("Succeeded", "Failed", "Canceled")


class ControlError(GpuprovError):
    """This machine's Receptor is unreachable or answers incorrectly."""


class RefusedError(GpuprovError):
    """Receptor rejected a command; `what` is its own message."""


class Control:
    """This machine's Receptor; thread-safe, since each command has its own connection."""

    def __init__(self, path: str = SOCKET) -> None:
        self.path = path

    def status(self) -> dict[str, Any]:
        """Return the state of the mesh: NodeID, RoutingTable, Advertisements. Raises ControlError."""
        fields = ["NodeID", "RoutingTable", "Advertisements"]
        return self._asked(json.dumps({"command": "status", "requested_fields": fields}))

    def units(self) -> dict[str, Any]:
        """Return the state of every known unit by id. Raises ControlError."""
        return self._asked("work list")

    def unit(self, unit: str) -> dict[str, Any] | None:
        """Return the state of one unit, or None if it is unknown. Raises ControlError."""
        try:
            return self._asked(f"work status {unit}")
        except RefusedError as error:
            if _UNKNOWN in error.what:
                return None
            raise

    def cancel(self, unit: str) -> bool:
        """End a unit; return whether its worker was notified (else Receptor retries). Raises ControlError."""
        try:
            return "cancelled" in self._asked(f"work cancel {unit}", START)
        except RefusedError as error:
            return _UNKNOWN in error.what  # on either side: no unit is left to end

    def release(self, unit: str) -> None:
        """End a unit and remove its files on both sides; raise ControlError if that fails here.

        An unreachable worker removes them once it is reachable."""
        for command in ("release", "force-release"):  # the second if the worker no longer knows the unit
            with contextlib.suppress(RefusedError):
                self._asked(f"work {command} {unit}", START)
                return

    def submit(
        self,
        node: str,
        work_type: str,
        payload: bytes,
        *,
        tls_client: str,
        label: str,
        ttl: float,
        named: Callable[[str], None],
    ) -> None:
        """Start a signed unit on `node` with `payload` as its standard input.

        `named` gets its id before the payload is sent. `label` is kept in the unit's parameters. A unit that
        does not start within `ttl` seconds fails. Raises RefusedError (not started) and ControlError."""
        command = {
            **{"command": "work", "subcommand": "submit", "node": node, "worktype": work_type},
            **{"tlsclient": tls_client, "signwork": "true", "ttl": f"{ttl:.0f}s", LABEL: label},
        }
        with self._session() as session:
            created = _CREATED.fullmatch(session.ask(json.dumps(command)))
            if created is None:
                raise self._strange("no id of a unit")
            named(created[1])
            session.send(payload)
            session.end()
            session.answer(START)

    def results(self, unit: str, start: int) -> Results:
        """Return a unit's output from byte `start` on. Raises RefusedError and ControlError."""
        session = _Session(self.path)
        try:
            if not _STREAMING.fullmatch(session.ask(f"work results {unit} {start}")):
                raise self._strange("no results")
        except BaseException:
            session.close()
            raise
        return Results(session)

    def _asked(self, command: str, seconds: float = ANSWER) -> dict[str, Any]:
        with self._session() as session:
            line = session.ask(command, seconds)
        try:
            answer = foreign_json.read(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._strange(f"{one_line(line, 60)!r}")
        return answer

    def _session(self) -> contextlib.closing[_Session]:
        return contextlib.closing(_Session(self.path))

    def _strange(self, what: str) -> ControlError:
        return ControlError(
            f"{self.path} answers with {what}", "is it the control socket of a Receptor of 1.5 or newer?"
        )


LABEL = "gpuprov_unit"  # parameter of a unit, which Receptor passes on and its command workers ignore


class Results:
    """The growing output of a running unit."""

    def __init__(self, session: _Session) -> None:
        self._session = session

    def read(self, seconds: float) -> bytes | None:
        """Return more output, b"" at its end (or Receptor's), or None after a timeout."""
        return self._session.more(seconds)

    def close(self) -> None:
        self._session.close()


class _Session:
    """One connection; raises ControlError if it breaks or times out, RefusedError for a rejected command."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._said = bytearray()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(ANSWER)
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise self._absent(error) from None
        try:
            if not _GREETING.fullmatch(self.answer(ANSWER)):
                raise ControlError(
                    f"{path} is no control socket of Receptor", "correct gpuprov_receptor_socket"
                )
        except BaseException:
            self.close()
            raise

    def ask(self, command: str, seconds: float = ANSWER) -> str:
        self.send(f"{command}\n".encode())
        return self.answer(seconds)

    def send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(START)
            self._socket.sendall(data)
        except OSError as error:
            raise self._broken(error) from None

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def answer(self, seconds: float) -> str:
        """Return one line, without its newline."""
        end = time.monotonic() + seconds
        while (at := self._said.find(b"\n")) < 0:
            data = self._received(end - time.monotonic())
            if data is None:
                raise ControlError(
                    f"the Receptor of this machine did not answer within {seconds:.0f} s ({self._path})",
                    "look at its log: journalctl -u receptor",
                )
            if not data or len(self._said) > _LINE:
                raise self._broken(None)
            self._said += data
        line = bytes(self._said[:at])
        del self._said[: at + 1]
        text = line.decode("utf-8", "replace").strip()
        if text.startswith("ERROR: "):
            raise RefusedError(one_line(text.removeprefix("ERROR: "), 300), "")
        return text

    def more(self, seconds: float) -> bytes | None:
        if self._said:  # received together with the first line
            data = bytes(self._said)
            self._said.clear()
            return data
        return self._received(seconds)

    def close(self) -> None:
        self._socket.close()

    def _received(self, seconds: float) -> bytes | None:
        try:
            self._socket.settimeout(max(0.01, seconds))
            return self._socket.recv(_CHUNK)
        except TimeoutError:
            return None
        except OSError:
            return b""

    def _absent(self, error: OSError) -> ControlError:
        what = f"the Receptor of this machine cannot be reached at {self._path}: {error.strerror or error}"
        if isinstance(error, FileNotFoundError):
            return ControlError(
                what, "start it (systemctl start receptor), or correct gpuprov_receptor_socket"
            )
        if isinstance(error, PermissionError):
            return ControlError(what, "run gpuprov as a user who may use that socket (a member of its group)")
        return ControlError(what, "start it: systemctl restart receptor")

    def _broken(self, error: OSError | None) -> ControlError:
        cause = f": {error.strerror or error}" if error is not None else ""
        return ControlError(
            f"the Receptor of this machine closed the connection ({self._path}){cause}",
            "look at its log (journalctl -u receptor), then run again",
        )


def labelled(units: Mapping[str, Any], label: str) -> str | None:
    """Return the id of the unit with this label in the result of `Control.units`."""
    for unit, state in units.items():
        extra = state.get("ExtraData") if isinstance(state, Mapping) else None
        params = extra.get("RemoteParams") if isinstance(extra, Mapping) else None
        if isinstance(params, Mapping) and params.get(LABEL) == label:
            return str(unit)
    return None
